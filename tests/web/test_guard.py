"""Who may ask the page, and what it may read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("starlette")
from starlette.testclient import TestClient

from ullage.web import app as module
from ullage.web.app import application

HOST = "127.0.0.1:8787"
PLAN = {"command": "vllm serve Qwen/Qwen3-8B", "gpu": "1x H100"}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("root")
    (folder / "a.log").write_text("one\ntwo\n")
    (folder / "out").symlink_to("/etc/passwd")
    return folder


@pytest.fixture(scope="module")
def page(root: Path) -> Iterator[TestClient]:
    with TestClient(application([HOST], [str(root)]), base_url=f"http://{HOST}") as client:
        yield client


def test_a_page_is_sealed(page: TestClient) -> None:
    reply = page.get("/why")
    assert reply.status_code == 200
    policy = reply.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    assert "://" not in reply.text
    for name in ("report.css", "site.css", "why.js", "plan.js", "ask.js", "icon.svg"):
        assert page.get(f"/static/{name}").status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1:9", "", "127.0.0.1:8787.evil.example"])
def test_another_host_is_refused(page: TestClient, host: str) -> None:
    assert page.get("/why", headers={"host": host}).status_code == 403
    assert page.post("/api/plan", json=PLAN, headers={"host": host}).status_code == 403


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:9"},
        {"sec-fetch-site": "cross-site"},
    ],
)
def test_a_request_of_another_site_is_refused(page: TestClient, headers: dict[str, str]) -> None:
    assert page.post("/api/plan", json=PLAN, headers=headers).status_code == 403


def test_its_own_page_may_ask(page: TestClient) -> None:
    reply = page.post("/api/plan", json=PLAN, headers={"origin": f"http://{HOST}"})
    assert reply.status_code == 200
    assert reply.json()["verdict"] == "starts"


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "../../etc/passwd", "out", "absent", "", "a.log\0x", "~root/.bashrc", "id:nothing"]
)
def test_what_lies_outside_the_roots_is_refused(page: TestClient, root: Path, path: str) -> None:
    given = path if path.startswith(("/", "id:", "~")) else str(root / path) if path else path
    reply = page.get("/api/lines", params={"log": given})
    assert reply.status_code == 422
    assert "root:" not in reply.text
    assert page.post("/api/why", json={"logs": [given]}).status_code == 422


def test_what_lies_below_a_root_is_read(page: TestClient, root: Path) -> None:
    assert page.get("/api/lines", params={"log": str(root / "a.log")}).json()["lines"] == ["one", "two"]


@pytest.mark.parametrize("name", ["../work.py", "..%2fwork.py", "site", "site.css.py", "%2e%2e/app.py"])
def test_only_the_pages_own_files_are_served(page: TestClient, name: str) -> None:
    assert page.get(f"/static/{name}").status_code == 404


def test_a_bad_question_is_one_line(page: TestClient) -> None:
    for body in (
        b"",
        b"{",
        b'{"command": 3}',
        b'{"command": "ls"}',
        b'{"command": "vllm serve x", "set": {"x y": 1}}',
        b"[" * 100_000,
    ):
        reply = page.post("/api/plan", content=body)
        assert reply.status_code == 422
        assert "\n" not in reply.json()["error"]


def test_too_much_is_refused(page: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ullage.web.files.MOST_BYTES", 100)
    monkeypatch.setattr(module, "MOST_QUESTION", 100)
    assert "larger" in page.post("/api/logs?name=x", content=b"x" * 200).json()["error"]
    assert "larger" in page.post("/api/plan", content=b"x" * 200).json()["error"]


def test_beyond_loopback_a_token_is_needed(root: Path) -> None:
    with TestClient(
        application([HOST], [str(root)], "s3cret"), base_url=f"http://{HOST}", follow_redirects=False
    ) as client:
        assert client.get("/why").status_code == 401
        assert client.get("/why?token=wrong").status_code == 401
        assert client.post("/api/plan", json=PLAN).status_code == 401
        reply = client.get("/why?token=s3cret")
        assert reply.status_code == 303
        assert "HttpOnly" in reply.headers["set-cookie"]
        assert client.get("/why").status_code == 200
        client.cookies.clear()
        assert client.get("/why", headers={"authorization": "Bearer s3cret"}).status_code == 200
