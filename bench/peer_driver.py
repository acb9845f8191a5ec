"""Asks one peer for one launch, in the peer's own Python: the hub that it knows is a folder here.

    python peer_driver.py PEER FOLDER '{"model": .., "gib": .., "tp": .., "share": .., "context": .., "kv": ..}'

Prints one JSON object: {"pool_gib": .., "weights_gib": ..} of one rank, each null where the peer does not say
it.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import unquote, urlparse

GIB = 1 << 30


def answer(root: Path, url: str, span: str | None) -> tuple[int, bytes]:
    """What the hub would say: a file or a part of it, a list of files, or 404."""
    path = unquote(urlparse(url).path)
    listing = re.fullmatch(r"/api/models/([^/]+/[^/]+)(/(tree|revision)/[^/]+)?", path)
    if listing:
        folder = root / listing[1]
        files = [
            {"type": "file", "path": f.name, "rfilename": f.name, "size": f.stat().st_size}
            for f in sorted(folder.glob("*"))
        ]
        body = files if listing[3] == "tree" else {"id": listing[1], "sha": "0" * 40, "siblings": files}
        return (200, json.dumps(body).encode()) if folder.is_dir() else (404, b"{}")
    file = re.fullmatch(r"/([^/]+/[^/]+)/(?:resolve|raw)/[^/]+/(.+)", path)
    found = root / file[1] / file[2] if file else root / "none"
    if not found.is_file():
        return 404, b"{}"
    with found.open("rb") as stream:
        part = re.fullmatch(r"bytes=(\d+)-(\d*)", span or "")
        if part is None:
            return 200, stream.read(64 << 20)
        stream.seek(int(part[1]))
        return 206, stream.read(int(part[2] or 0) - int(part[1]) + 1 if part[2] else 64 << 20)


def kvfit(root: Path, asked: dict) -> dict:
    import kvfit.cli
    import kvfit.hf

    class Reply(io.BytesIO):
        status = 200

        @property
        def headers(self) -> dict[str, str]:
            return {}

        def geturl(self) -> str:
            return "https://huggingface.co/"

        def getcode(self) -> int:
            return 200

    def opened(request: urllib.request.Request, timeout: float | None = None) -> Reply:
        code, body = answer(root, request.full_url, request.get_header("Range"))
        if code == 404:
            raise urllib.error.HTTPError(request.full_url, 404, "none", None, None)  # type: ignore[arg-type]
        return Reply(body)

    class Opener:
        open = staticmethod(opened)

    kvfit.hf.urlopen = opened
    kvfit.hf.build_opener = lambda *_: Opener
    said = printed(kvfit.cli.main, [
        asked["model"], "--hardware", f"custom:{asked['gib']}", "--gpus", str(asked["tp"]), "--tp",
        str(asked["tp"]),
        "--context", str(asked["context"]), "--utilization", str(asked["share"]), "--json",
        *(["--kv-dtype", "fp8"] if asked.get("kv") == "fp8" else []), "--allow-context-overflow",
    ])  # fmt: skip
    return found_in(json.loads(said), asked["tp"])


def found_in(data: dict, tp: int) -> dict:
    """kvfit says what one rank's budget and weights are, and leaves the rest to the cache."""
    layouts = [row for row in data.get("layouts", []) if row.get("attention_tensor_parallel") == tp]
    if not layouts:
        return {"pool_gib": None, "weights_gib": None, "why": "no layout of this size"}
    row = layouts[0]
    fixed = row.get("fixed_cache_per_rank_gib") or 0.0
    taken = row["weights_per_rank_gib"] + row["runtime_reserve_per_rank_gib"] + fixed
    pool = row["budget_per_rank_gib"] - taken
    return {"pool_gib": pool, "weights_gib": row["weights_per_rank_gib"]}


def hf_mem(root: Path, asked: dict) -> dict:
    import httpx2
    from hf_mem import cli

    class Client(httpx2.AsyncClient):
        def __init__(self, **_: object) -> None:
            super().__init__(transport=httpx2.MockTransport(self._served))

        @staticmethod
        def _served(request: httpx2.Request) -> httpx2.Response:
            code, body = answer(root, str(request.url), request.headers.get("range"))
            return httpx2.Response(code, content=body)

    httpx2.AsyncClient = Client  # type: ignore[misc]
    sys.argv = ["hf-mem", "--model-id", asked["model"], "--json-output", "--experimental",
                "--max-model-len", str(asked["context"])]  # fmt: skip
    said = json.loads(printed(cli.main, None))
    return {"pool_gib": None, "weights_gib": said["memory"] / GIB / asked["tp"], "why": "weights alone"}


def vramscout(root: Path, asked: dict) -> dict:
    from vramscout import modern_cli

    said = json.loads(printed(modern_cli.main, [
        str(root / asked["model"]), "--tp", str(asked["tp"]), "--vram-gib", str(asked["gib"]), "--context",
        str(asked["context"]), "--engine", "vllm", "--gpu-memory-utilization", str(asked["share"]), "--json",
        *(["--kv-dtype", "fp8"] if asked.get("kv") == "fp8" else []),
    ]))  # fmt: skip
    if "parts_gib" not in said:
        return {"pool_gib": None, "weights_gib": None, "why": str(said.get("error") or list(said))[:100]}
    parts = said["parts_gib"]
    beside = sum(
        size for name, size in parts.items() if "cache" not in name.lower() and "state" not in name.lower()
    )
    weights = next((size for name, size in parts.items() if "weights" in name.lower()), None)
    return {"pool_gib": said["memory_budget_gib"] - beside, "weights_gib": weights}


#: the machines that aiconfigurator has figures of, by a word of the GPU's name
_SYSTEMS = {
    "H100": "h100_sxm", "H200": "h200_sxm", "A100": "a100_sxm", "B200": "b200_sxm", "B300": "b300_sxm", "L40S":
    "l40s",
    "L4": "l4", "A30": "a30", "RTX PRO 6000": "rtx_pro_6000_server",
}  # fmt: skip


def aiconfigurator(root: Path, asked: dict) -> dict:
    system = next((name for word, name in _SYSTEMS.items() if word in asked["gpu"]), None)
    if system is None:
        return {"pool_gib": None, "weights_gib": None, "why": f"no figures of {asked['gpu']}"}
    from aiconfigurator.cli.api import cli_estimate

    text = (root / asked["model"] / "config.json").read_text()
    moe = {"moe_tp_size": asked["tp"], "moe_ep_size": 1} if "experts_per_tok" in text else {}
    found = cli_estimate(
        **moe, model_path=str(root / asked["model"]), system_name=system, backend_name="vllm",
        tp_size=asked["tp"],
        batch_size=1, isl=min(asked["context"], 8192), osl=2,
    ).summary.get_memory()  # fmt: skip
    pool = asked["share"] * asked["gib"] - (found["total"] - found["kvcache"])
    return {"pool_gib": pool, "weights_gib": found["weights"]}


def printed(main: object, argv: list[str] | None) -> str:
    """What a command prints, the JSON object in it. Raises ValueError with its words where it prints none."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(argv) if argv is not None else main()  # type: ignore[operator]
        except SystemExit as left:
            if left.code not in (0, None, 1, 2):
                raise
    text = out.getvalue()
    if "{" not in text:
        raise ValueError(" ".join((err.getvalue() or text).split())[-120:])
    return text[text.index("{") :]


def main() -> None:
    peer, folder, request = sys.argv[1:4]
    asked, root = json.loads(request), Path(folder)
    peers = {"kvfit": kvfit, "hf-mem": hf_mem, "vramscout": vramscout, "aiconfigurator": aiconfigurator}
    with contextlib.redirect_stderr(io.StringIO()):
        try:
            said = peers[peer](root, asked)
        except (Exception, SystemExit) as error:
            said = {"pool_gib": None, "weights_gib": None, "why": f"{type(error).__name__}: {str(error)[:80]}"}
    print(json.dumps(said))


if __name__ == "__main__":
    main()
