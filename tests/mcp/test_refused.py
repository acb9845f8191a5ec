"""What is asked wrongly, or beyond the roots: one line, an error of the tool, and the server goes on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ullage.core.errors import InputError
from ullage.mcp.roots import Roots

from .conftest import GPU, LAUNCH, Served, text

HOSTILE: list[tuple[str, dict[str, Any], str]] = [
    ("plan", {"command": "x" * 10_000_000}, "length <= 65536"),
    ("plan", {"command": 3}, "Expected `str`, got `int`"),
    ("plan", {}, "missing required field `command`"),
    ("plan", {"command": "vllm serve m", "shell": True}, "unknown field `shell`"),
    ("plan", {"command": "vllm serve a\0b"}, "NUL"),
    ("plan", {"command": "rm -rf /"}, "starts neither"),
    ("plan", {"command": "vllm serve 'm"}, ""),
    ("plan", {"command": f"{LAUNCH} 0.5", "gpu": "ssh:elsewhere"}, "another machine"),
    ("plan", {"command": f"{LAUNCH} 0.5", "gpu": GPU, "readings": {"a b": 1}}, "Expected `str` matching"),
    (
        "plan",
        {"command": f"{LAUNCH} 0.5", "gpu": GPU, "readings": {"nothing_gib": 1}},
        "no figure that a plan uses",
    ),
    ("plan", {"command": f"{LAUNCH} 0.5", "contexts": [0]}, ">= 1"),
    ("why", {"logs": []}, "length >= 1"),
    ("why", {"logs": ["a.log"] * 65}, "length <= 64"),
    ("why", {"logs": ["no-such-run"]}, "can be read"),
    ("spec", {"command": f"{LAUNCH} 0.5", "accept": [2]}, "<= 1"),
    ("spec", {"command": f"{LAUNCH} 0.5", "gpu": GPU}, "does not speculate"),
    ("comm_plan", {"command": f"{LAUNCH} 0.5", "via": "carrier pigeon"}, "matching regex"),
    ("check", {"engine": "llama"}, "no engine that is known"),
    ("runs", {"name": "../../etc"}, "no run of that name"),
    ("run", {"command": f"{LAUNCH} 0.5"}, "no tool of this server"),
    ("nothing", {}, "no tool of this server"),
]


def outside(served: Served) -> list[tuple[str, dict[str, Any]]]:
    """Every way to name a file, each leading out of the roots."""
    model = served.folder / "model"
    model.mkdir()
    (model / "config.json").write_text('{"architectures": ["SecretForCausalLM"], "hidden_size": 64}')
    (served.folder / "secret.yaml").write_text("max-model-len: 4242\n")
    (served.logs / "link.log").symlink_to("/etc/hosts")
    (served.logs / "linked").symlink_to(model)
    inside = served.logs / "inside"
    inside.mkdir()
    (inside / "config.json").symlink_to(model / "config.json")
    plan = {"command": "vllm serve Qwen/Qwen3-8B", "gpu": "H100"}
    return [
        *(("why", {"logs": [path]}) for path in (
            "/etc/hosts", "../secret.yaml", "~/x.log", "link.log", "x/../../secret.yaml", "/proc/self/environ",
            "/dev/zero", "-",
        )),
        ("why", {"logs": ["baseline.log"], "baseline": ["/etc/hosts"]}),
        ("why", {"logs": ["baseline.log"], "model_dir": str(model)}),
        ("diff", {"a": "/etc/hosts", "b": "baseline.log"}),
        ("plan", {**plan, "model_dir": str(model)}), ("plan", {**plan, "model_dir": "linked"}),
        ("plan", {**plan, "model_dir": "inside"}), ("plan", {**plan, "model_dir": "~"}),
        ("plan", {**plan, "command": f"vllm serve {model}"}),
        ("plan", {**plan, "command": f"vllm serve {served.logs / 'linked'}"}),
        ("plan", {**plan, "command": f"vllm serve Qwen/Qwen3-8B --config {served.folder / 'secret.yaml'}"}),
        ("plan", {**plan, "command": "vllm serve Qwen/Qwen3-8B --config ../../secret.yaml"}),
        ("plan", {**plan, "command": "vllm serve Qwen/Qwen3-8B --config ~/secret.yaml"}),
        ("spec", {**plan, "method": "ngram", "depth": 3, "logs": ["/etc/hosts"]}),
        ("comm_plan", {**plan, "topology": "/etc/hosts"}), ("comm_plan", {**plan, "measured": ["/etc/hosts"]}),
        ("check", {"folder": "/etc"}),
    ]  # fmt: skip


def test_hostile_arguments(served: Served) -> None:
    async def body(client: Any) -> None:
        for name, arguments, words in HOSTILE:
            found = await client.call_tool(name, arguments)
            said = text(found)
            assert found.is_error and found.structured_content is None, (name, said[:200])
            assert words in said and "\n" not in said and len(said) < 2000, (name, said[:200])
            assert "Traceback" not in said and "fault of ullage" not in said, said
        assert not (await client.call_tool("why", {"logs": ["baseline.log"]})).is_error

    served.stdio(body)


def test_no_file_beyond_the_roots(served: Served) -> None:
    async def body(client: Any) -> None:
        for name, arguments in outside(served):
            found = await client.call_tool(name, arguments)
            assert found.is_error, (name, arguments, text(found)[:300])
            said = text(found)
            assert (
                "\n" not in said and "Secret" not in said and "4242" not in said and "localhost" not in said
            ), said

    served.stdio(body)


def test_roots(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "inner").mkdir(parents=True)
    (root / "a.log").write_text("a")
    (tmp_path / "root-beside").mkdir()
    (tmp_path / "root-beside" / "b.log").write_text("b")
    os.mkfifo(root / "pipe")
    roots = Roots([str(root)])
    assert roots.path("a.log") == roots.path("inner/../a.log") == roots.path(str(root / "a.log"))
    assert roots.path("inner", folder=True)
    for given in (
        "",
        "a\0b",
        "~",
        "../root-beside/b.log",
        str(tmp_path / "root-beside" / "b.log"),
        "pipe",
        "inner",
    ):
        with pytest.raises(InputError):
            roots.path(given)


def test_without_the_extra_one_line(tmp_path: Path) -> None:
    hide = "import sys; sys.modules['mcp'] = None; sys.modules['mcp_types'] = None; from ullage.cli import main; main(['mcp'])"
    done = subprocess.run(
        [sys.executable, "-c", hide], capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "ullage: ullage mcp: needs one more package; hint: pip install 'ullage[mcp]'\n"
    done = subprocess.run(
        [sys.executable, "-m", "ullage", "mcp", "--root", str(tmp_path / "no")], capture_output=True, text=True
    )
    assert done.returncode == 2 and done.stderr.count("\n") == 1


def test_help_imports_no_sdk() -> None:
    look = (
        "import sys; from ullage.cli import answer; answer(['mcp', '--help'])\n"
        "assert not {'mcp', 'pydantic', 'starlette', 'anyio'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", look], check=True, stdout=subprocess.DEVNULL)
