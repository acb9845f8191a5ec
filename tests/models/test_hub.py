"""Models from a hub: a small server on loopback that is honest, slow, hostile or gated."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from ullage.core.errors import InputError
from ullage.models import hub, hub_http
from ullage.models.hub import fetch, source
from ullage.models.hub_http import Limits
from ullage.models.hub_places import endpoint, is_hub_id, revision_of, snapshot, token
from ullage.models.load import from_directory
from ullage.planning.plan import Asked, plan

ID = "Some-Owner/Unheard-Of-1B"
CONFIG = {
    "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 256, "max_position_embeddings": 4096,
    "architectures": ["LlamaForCausalLM"], "torch_dtype": "bfloat16",
}  # fmt: skip
COMMIT = "0123456789abcdef0123456789abcdef01234567"
SECRET = "hf_not-a-real-token"
SHORT = Limits(connect_s=0.5, total_s=1.0)


def shard(name: str, elements: int, padding: int = 0) -> bytes:
    """A whole safetensors file of one BF16 tensor, weights and all."""
    entry = {name: {"dtype": "BF16", "shape": [elements], "data_offsets": [0, 2 * elements]}}
    text = json.dumps({"__metadata__": {"x": "y" * padding}, **entry}).encode()
    return len(text).to_bytes(8, "little") + text + bytes(2 * elements)


class Hub(ThreadingHTTPServer):
    """Serves ``files``; ``act`` may answer a request first (True: it has)."""

    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {"config.json": json.dumps(CONFIG).encode()}
        self.seen: list[tuple[str, str | None, str | None]] = []
        self.sent = 0
        self.ranges = True
        self.most_at_once = self.now = 0
        self.act: Callable[[BaseHTTPRequestHandler, str], bool] = lambda handler, name: False
        super().__init__(("127.0.0.1", 0), Answer)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up is what these tests are about."""


class Answer(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass

    def do_GET(self) -> None:
        hub_server = self.server
        name = self.path.rpartition("/")[2]
        hub_server.seen.append((self.path, self.headers.get("Range"), self.headers.get("Authorization")))
        hub_server.now += 1
        hub_server.most_at_once = max(hub_server.most_at_once, hub_server.now)
        try:
            if not hub_server.act(self, name):
                self.serve(name)
        finally:
            hub_server.now -= 1

    def serve(self, name: str) -> None:
        data = self.server.files.get(name)
        if data is None:
            self.refuse(404, "EntryNotFound")
            return
        asked = self.headers.get("Range")
        total = len(data)
        if asked and self.server.ranges:
            first, _, last = asked.removeprefix("bytes=").partition("-")
            data = data[int(first) : int(last) + 1]
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {first}-{int(first) + len(data) - 1}/{total}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        for at in range(0, len(data), 1 << 16):
            self.server.sent += self.wfile.write(data[at : at + (1 << 16)])

    def refuse(self, status: int, code: str = "") -> None:
        self.send_response(status)
        if code:
            self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()


@pytest.fixture
def servers() -> Iterator[Callable[[], Hub]]:
    started: list[tuple[Hub, threading.Thread]] = []

    def start() -> Hub:
        server = Hub()
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        started.append((server, thread))
        return server

    yield start
    for server, thread in started:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def served(servers: Callable[[], Hub], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    server = servers()
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("no_proxy", "*")
    for name in ("ULLAGE_OFFLINE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_DISABLE_IMPLICIT_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    return server


def sharded(server: Hub, count: int) -> None:
    names = [f"model-{n:05}-of-{count:05}.safetensors" for n in range(1, count + 1)]
    server.files |= {name: shard(f"t{n}.weight", 1000 + n) for n, name in enumerate(names)}
    index = {"weight_map": {f"t{n}.weight": name for n, name in enumerate(names)}}
    server.files["model.safetensors.index.json"] = json.dumps(index).encode()


def test_a_single_file_without_its_weights(served: Hub) -> None:
    served.files["model.safetensors"] = whole = shard("a.weight", 4_000_000)
    folder = fetch(ID)
    assert folder is not None
    found = from_directory(folder)
    assert (found.checkpoint_bytes, found.parameters) == (8_000_000, 4_000_000)
    copy = folder / "model.safetensors"
    assert copy.stat().st_size == len(whole)
    assert copy.stat().st_blocks * 512 < 100_000
    assert served.sent < 1_000_000
    assert source(folder, ID) == f"hub: {ID} at {served.url.removeprefix('http://')} {COMMIT[:12]}"


def pausing(handler: BaseHTTPRequestHandler, name: str) -> bool:
    time.sleep(0.02)
    return False


def test_shards_by_range_and_at_most_four_at_once(served: Hub) -> None:
    sharded(served, 12)
    served.act = pausing
    folder = fetch(ID)
    assert folder is not None
    assert from_directory(folder).checkpoint_bytes == sum(2 * (1000 + n) for n in range(12))
    ranges = [asked for path, asked, _ in served.seen if path.endswith(".safetensors")]
    assert ranges == [f"bytes=0-{hub_http.FIRST_BYTES - 1}"] * 12
    assert served.most_at_once == hub.NUM_CONNECTIONS == 4
    assert all(f"/resolve/{COMMIT}/" in path for path, _, _ in served.seen[1:])
    assert {path.name for path in folder.parent.iterdir()} == {"main"}
    assert not [path for path in folder.iterdir() if path.name.endswith((".part", ".tmp"))]


def test_a_header_longer_than_the_first_range(served: Hub) -> None:
    served.files["model.safetensors"] = shard("a.weight", 8, padding=3 * hub_http.FIRST_BYTES)
    folder = fetch(ID)
    assert folder is not None
    assert from_directory(folder).checkpoint_bytes == 16
    assert len([path for path, _, _ in served.seen if path.endswith("model.safetensors")]) == 2


@pytest.mark.parametrize("padding", [0, 3 * hub_http.FIRST_BYTES])
def test_a_server_that_ignores_ranges_is_left_after_the_header(served: Hub, padding: int) -> None:
    served.ranges = False
    served.files["model.safetensors"] = whole = shard("a.weight", 40_000_000, padding)
    folder = fetch(ID)
    assert folder is not None
    assert (folder / "model.safetensors").stat().st_size == len(whole)
    assert served.sent < len(whole) / 2


def test_the_cache_is_used_again_and_offline_too(served: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    served.files["model.safetensors"] = shard("a.weight", 8)
    first = fetch(ID)
    asked = len(served.seen)
    assert fetch(ID) == first
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert fetch(ID) == first
    assert len(served.seen) == asked
    assert fetch(ID, revision="other") is None


def test_an_old_copy_of_a_branch_is_renewed_and_kept_where_the_hub_is_away(served: Hub) -> None:
    first = fetch(ID)
    assert first is not None
    old = time.time() - hub.FRESH_S - 60
    os.utime(first, (old, old))
    served.files["config.json"] = json.dumps({**CONFIG, "num_hidden_layers": 3}).encode()
    assert fetch(ID) == first
    assert len(from_directory(first).layers) == 3
    os.utime(first, (old, old))
    served.act = lambda handler, name: handler.refuse(503) or True  # type: ignore[attr-defined]
    notes: list[str] = []
    assert fetch(ID, note=notes.append) == first
    assert "503" in notes[0]


def test_the_token_goes_to_the_hub_and_never_to_another_host(
    served: Hub, servers: Callable[[], Hub], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", SECRET)
    other = servers()
    other.files["model.safetensors"] = shard("a.weight", 8)

    def elsewhere(handler: BaseHTTPRequestHandler, name: str) -> bool:
        if name != "model.safetensors":
            return False
        handler.send_response(302)
        handler.send_header("Location", f"{other.url}/store/{name}")
        handler.send_header("Content-Length", "0")
        handler.end_headers()
        return True

    served.act = elsewhere
    folder = fetch(ID)
    assert folder is not None
    assert from_directory(folder).checkpoint_bytes == 16
    assert {sent for _, _, sent in served.seen} == {f"Bearer {SECRET}"}
    assert [sent for _, _, sent in other.seen] == [None]
    assert other.seen[0][1] is not None
    assert SECRET not in "".join(path.read_text(errors="replace") for path in folder.iterdir())


def test_a_model_that_has_moved_on_the_same_hub(served: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", SECRET)
    served.files["model.safetensors"] = shard("a.weight", 8)

    def moved(handler: BaseHTTPRequestHandler, name: str) -> bool:
        if not handler.path.startswith(f"/{ID}/"):
            return False
        handler.send_response(307)
        handler.send_header("Location", handler.path.replace(ID, "new/name"))
        handler.send_header("X-Repo-Commit", "f" * 40)
        handler.end_headers()
        return True

    served.act = moved
    folder = fetch(ID)
    assert folder is not None
    assert from_directory(folder).checkpoint_bytes == 16
    assert source(folder, ID).endswith(" ffffffffffff")
    assert {sent for _, _, sent in served.seen} == {f"Bearer {SECRET}"}
    assert all(asked or not path.endswith(".safetensors") for path, asked, _ in served.seen)


def test_redirects_without_an_end(served: Hub) -> None:
    def round_and_round(handler: BaseHTTPRequestHandler, name: str) -> bool:
        handler.send_response(302)
        handler.send_header("Location", handler.path)
        handler.end_headers()
        return True

    served.act = round_and_round
    notes: list[str] = []
    assert fetch(ID, note=notes.append) is None
    assert "redirects" in notes[0]
    assert len(served.seen) == hub_http.MOST_REDIRECTS + 1


@pytest.mark.parametrize(
    "target", ["file:///etc/passwd", "ftp://127.0.0.1/x", "http://a@127.0.0.1/x", "", "http://["]
)
def test_a_redirect_to_what_is_no_web_address(served: Hub, target: str) -> None:
    def astray(handler: BaseHTTPRequestHandler, name: str) -> bool:
        handler.send_response(302)
        handler.send_header("Location", target)
        handler.end_headers()
        return True

    served.act = astray
    notes: list[str] = []
    assert fetch(ID, note=notes.append) is None
    assert "redirects" in notes[0]


@pytest.mark.parametrize(
    ("status", "code", "words"),
    [
        (401, "", "HF_TOKEN"), (403, "GatedRepo", "gated"), (404, "RepoNotFound", "no such model"),
        (404, "RevisionNotFound", "no such revision"), (404, "", "config.json"),
    ],
)  # fmt: skip
def test_refusals_are_one_line(
    served: Hub, monkeypatch: pytest.MonkeyPatch, status: int, code: str, words: str
) -> None:
    monkeypatch.setenv("HF_TOKEN", SECRET)
    served.act = lambda handler, name: handler.refuse(status, code) or True  # type: ignore[attr-defined]
    with pytest.raises(InputError) as caught:
        fetch(ID)
    assert words in caught.value.line
    assert ID in caught.value.line
    assert SECRET not in caught.value.line


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_hub_in_trouble_is_a_hub_that_does_not_answer(served: Hub, status: int) -> None:
    served.act = lambda handler, name: handler.refuse(status) or True  # type: ignore[attr-defined]
    notes: list[str] = []
    assert fetch(ID, note=notes.append) is None
    assert str(status) in notes[0]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ((1 << 60).to_bytes(8, "little") + b"{}", "length field"), (b"", "length field"),
        ((9).to_bytes(8, "little") + b"[1, 2, 3]", "not as it should be"),
    ],
)  # fmt: skip
def test_a_hostile_header(served: Hub, data: bytes, words: str) -> None:
    served.files["model.safetensors"] = data
    with pytest.raises(InputError, match=words):
        fetch(ID)
    with pytest.raises(InputError, match=words):
        fetch(ID)


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "config.json", "a/b.safetensors", "..", "x\0.safetensors"]
)
def test_a_hostile_index(served: Hub, tmp_path: Path, name: str) -> None:
    served.files["model.safetensors.index.json"] = json.dumps({"weight_map": {"a": name}}).encode()
    with pytest.raises(InputError, match="index"):
        fetch(ID)
    assert not [path for path in tmp_path.rglob("*") if path.name in ("passwd", "b.safetensors")]


def test_a_config_without_an_end(served: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "MOST_CONFIG_BYTES", 1000)
    served.files["config.json"] = b" " * 2000
    with pytest.raises(InputError, match="1000"):
        fetch(ID)


def test_a_slow_hub_is_left_in_time(served: Hub) -> None:
    def drip(handler: BaseHTTPRequestHandler, name: str) -> bool:
        handler.wfile.write(b"HTTP/1.0 200 OK\r\n")
        for n in range(100):
            time.sleep(0.05)
            handler.wfile.write(b"X-%d: y\r\n" % n)
        return True

    served.act = drip
    notes: list[str] = []
    start = time.monotonic()
    assert fetch(ID, note=notes.append, limits=SHORT) is None
    assert time.monotonic() - start < 2.0
    assert "too slow" in notes[0]


def test_shards_too_slow_leave_the_shape_and_the_next_visit_goes_on(served: Hub) -> None:
    sharded(served, 6)
    slow = "model-00004-of-00006.safetensors"

    def sleepy(handler: BaseHTTPRequestHandler, name: str) -> bool:
        if name == slow:
            time.sleep(1.5)
        return False

    served.act = sleepy
    notes: list[str] = []
    folder = fetch(ID, note=notes.append, limits=SHORT)
    assert folder is not None
    assert "too slow" in notes[0]
    found = from_directory(folder)
    assert (len(found.layers), found.checkpoint_bytes) == (2, None)
    served.act = lambda handler, name: False
    served.seen.clear()
    whole = fetch(ID)
    assert whole is not None
    assert from_directory(whole).checkpoint_bytes == sum(2 * (1000 + n) for n in range(6))
    assert [path.rpartition("/")[2] for path, _, _ in served.seen if path.endswith(".safetensors")] == [slow]


def test_a_name_server_that_does_not_answer(served: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    asleep = threading.Event()

    def never(*_: object, **__: object) -> list[object]:
        asleep.wait(5)
        raise socket.gaierror(socket.EAI_AGAIN, "no answer")

    monkeypatch.setattr(socket, "getaddrinfo", never)
    notes: list[str] = []
    start = time.monotonic()
    assert fetch(ID, note=notes.append, limits=SHORT) is None
    assert time.monotonic() - start < 0.9
    assert notes
    asleep.set()


def test_nobody_listens(served: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{taken.getsockname()[1]}")
        notes: list[str] = []
        assert fetch(ID, note=notes.append) is None
    assert "refused" in notes[0]


def test_a_proxy_of_the_environment_is_used(served: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("no_proxy")
    monkeypatch.setenv("http_proxy", served.url)
    monkeypatch.setenv("HF_ENDPOINT", "http://hub.invalid")
    assert fetch(ID) is not None
    assert served.seen[0][0] == f"http://hub.invalid/{ID}/resolve/main/config.json"


@pytest.mark.parametrize("name", ["ULLAGE_OFFLINE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"])
def test_offline(served: Hub, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "1")
    assert fetch(ID) is None
    monkeypatch.setenv(name, "0")
    assert fetch(ID, online=False) is None
    assert not served.seen
    assert fetch(ID) is not None


def test_a_cache_that_cannot_be_written(served: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(InputError, match="XDG_CACHE_HOME"):
        fetch(ID)


@pytest.mark.parametrize(
    "text",
    ["a", "a/b/c", "../b", "a/..", "/a/b", "a/b..c", "a\\b/c", "a/b?c", "a/b\n", "é/b", "a/b.git", "x/y:Q4_K_M", "./b", "a--b/c"],
)  # fmt: skip
def test_what_is_no_id(text: str) -> None:
    assert not is_hub_id(text)
    with pytest.raises(InputError):
        fetch(text)


@pytest.mark.parametrize("text", ["..", "a/../b", "/a", "", "a b", "a//b", "a/", "-a"])
def test_what_is_no_revision(text: str) -> None:
    with pytest.raises(InputError):
        revision_of(text)


@pytest.mark.parametrize("text", ["file:///etc", "hub", "https://me:pw@hub", "https://hub/?q", "https://a b"])
def test_what_is_no_hub(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("HF_ENDPOINT", text)
    with pytest.raises(InputError, match="HF_ENDPOINT") as caught:
        endpoint()
    assert "pw" not in caught.value.line


def test_where_the_token_is_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    assert token() is None
    (tmp_path / "token").write_text("hf_of-the-login\n")
    assert token() == "hf_of-the-login"
    (tmp_path / "elsewhere").write_text("hf_of-the-path")
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "elsewhere"))
    assert token() == "hf_of-the-path"
    monkeypatch.setenv("HF_TOKEN", "hf_two\r\nX-Evil: lines")
    with pytest.raises(InputError) as caught:
        token()
    assert "hf_two" not in caught.value.line


def cached(home: Path, *, weights: bool = True) -> Path:
    """The user's own cache: blobs, a snapshot of links to them, and the branch's commit."""
    repository = home / "hub" / f"models--{ID.replace('/', '--')}"
    folder = repository / "snapshots" / COMMIT
    for made in (repository / "blobs", repository / "refs", folder):
        made.mkdir(parents=True)
    (repository / "refs" / "main").write_text(COMMIT)
    files = {"config.json": json.dumps(CONFIG).encode(), "model.safetensors": shard("a.weight", 8)}
    for number, (name, data) in enumerate(files.items()):
        if weights or name == "config.json":
            (repository / "blobs" / str(number)).write_bytes(data)
        (folder / name).symlink_to(Path("../../blobs") / str(number))
    return repository


def test_the_users_own_cache_comes_first(served: Hub, tmp_path: Path) -> None:
    cached(tmp_path / "hf")
    kept = snapshot(ID)
    assert kept is not None
    found = plan(Asked(f"vllm serve {ID}", "H100", "0.19.0", hub=True)).model
    assert found is not None
    assert (found.id, found.checkpoint_bytes, found.source) == (
        ID,
        16,
        f"Hugging Face cache: {ID} at {COMMIT[:12]}",
    )
    assert snapshot(ID, "v2") is None
    assert snapshot(ID, COMMIT) == kept
    assert not served.seen


def test_a_cache_whose_ref_leads_astray(tmp_path: Path, served: Hub) -> None:
    refs = cached(tmp_path / "hf") / "refs" / "main"
    for text in ("../../..", "", "main", "0" * 5000):
        refs.write_text(text)
        assert snapshot(ID) is None


def test_a_download_that_has_not_ended_is_not_taken_for_the_model(served: Hub, tmp_path: Path) -> None:
    cached(tmp_path / "hf", weights=False)
    served.files["model.safetensors"] = shard("a.weight", 16)
    found = plan(Asked(f"vllm serve {ID}", "H100", "0.19.0", hub=True)).model
    assert found is not None
    assert found.checkpoint_bytes == 32
    assert found.source.startswith(f"hub: {ID} at 127.0.0.1:")


def test_a_plan_asks_the_hub_only_for_what_it_does_not_know(served: Hub) -> None:
    known = plan(Asked("vllm serve Qwen/Qwen3-8B", "H100", "0.19.0", hub=True)).model
    assert known is not None
    assert known.source.startswith("catalogue: ")
    assert plan(Asked(f"vllm serve {ID}", "H100", "0.19.0")).model is None
    assert not served.seen
    found = plan(Asked(f"vllm serve {ID}", "H100", "0.19.0", hub=True))
    assert found.model is not None
    assert found.model.id == ID
    assert served.seen


def test_a_plan_falls_back_to_a_like_model_and_says_why(served: Hub) -> None:
    served.act = lambda handler, name: handler.refuse(401) or True  # type: ignore[attr-defined]
    found = plan(Asked("vllm serve somebody/Qwen3-8B-FP8", "H100", "0.19.0", hub=True))
    assert found.model is not None
    assert "shape only" in found.model.source
    assert [caution.id for caution in found.cautions][:1] == ["hub"]
    with pytest.raises(InputError, match="HF_TOKEN"):
        plan(Asked(f"vllm serve {ID}", "H100", "0.19.0", hub=True))


def ran(*words: str, **env: str) -> dict[str, object]:
    line = [
        sys.executable,
        "-m",
        "ullage.cli",
        "plan",
        "--json",
        "--gpu",
        "H100",
        *words,
        "--",
        "vllm",
        "serve",
        ID,
    ]
    done = subprocess.run(line, capture_output=True, timeout=60, check=False, env={**os.environ, **env})
    assert not done.stderr, done.stderr.decode()
    return json.loads(done.stdout)["model"]  # type: ignore[no-any-return]


def test_the_command_line(served: Hub) -> None:
    for without in (ran("--no-hub"), ran(ULLAGE_OFFLINE="1")):
        assert without["source"] is None
    assert not served.seen
    assert str(ran()["source"]).startswith(f"hub: {ID}")


def test_urllib_is_imported_only_to_ask() -> None:
    code = (
        "import sys; from ullage.planning.plan import Asked, plan; plan(Asked('vllm serve Qwen/Qwen3-8B', 'H100', hub=True));"
        "print([name for name in ('urllib.request', 'http.client', 'ssl', 'socket', 'ullage.models.hub') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"
