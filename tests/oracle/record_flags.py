"""Records what the engines' own parsers take, to hold flags.toml to: a line of JSON a release.

    PYTHON tests/oracle/record_flags.py --oracle sglang_oracle.py --release DIR/vllm-0.33.0 >> tests/oracle/flags.jsonl

``--oracle`` is the script with the stand-ins for absent packages (as for record_sglang.py); DIR/vllm-0.33.0 an unpacked
wheel; PYTHON one with torch and transformers, not ullage's own. The release's source is imported unchanged.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any

SWITCHES = ("BooleanOptionalAction", "EnableDisableAction")
PARSERS = (
    "vllm.entrypoints.openai.cli_args",
    "vllm.entrypoints.launchers.cli_args",
    "vllm.entrypoints.common.cli_args",
)
#: what vLLM may lack here
ABSENT = """gguf outlines outlines_core lmformatenforcer partial_json_parser airportsdata ray datasets scipy torchaudio
torchvision depyf lark mistral_common tiktoken blake3 cv2 soundfile xformers compressed_tensors watchfiles
pythonjsonlogger openai_harmony anthropic mcp diskcache llguidance xgrammar pybase64 cbor2 setproctitle nvtx ninja
prometheus_fastapi_instrumentator flashinfer"""


def stand_in(oracle: Path, engine: str, root: Path) -> None:
    spec = importlib.util.spec_from_file_location("oracle", oracle)
    assert spec is not None and spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.path.insert(0, str(root))
    if engine == "sglang":
        module.install(root.name, str(root), 81559, 8, (9, 0), "12.8", "NVIDIA H100")
        return
    import transformers

    for name in ("AutoConfig", "AutoModel", "AutoProcessor", "AutoImageProcessor", "AutoTokenizer"):
        getattr(transformers, name).register = lambda *_, **__: None
    module.STANDINS.clear()
    module.STANDINS.update(ABSENT.split())
    for name in list(module.STANDINS):
        with contextlib.suppress(ImportError, ValueError):
            if importlib.util.find_spec(name) is not None:
                module.STANDINS.discard(name)
    sys.meta_path.append(module._Finder())


def parser_of(engine: str) -> argparse.ArgumentParser:
    if engine == "sglang":
        parser = argparse.ArgumentParser()
        importlib.import_module("sglang.srt.server_args").ServerArgs.add_cli_args(parser)
        return parser
    try:
        flexible = importlib.import_module("vllm.utils.argparse_utils").FlexibleArgumentParser
    except ImportError:
        flexible = importlib.import_module("vllm.utils").FlexibleArgumentParser
    for name in PARSERS:
        with contextlib.suppress(ModuleNotFoundError):
            make = importlib.import_module(name).make_arg_parser
            made: argparse.ArgumentParser = make(flexible())
            return made
    raise ModuleNotFoundError(", ".join(PARSERS))


def form(action: argparse.Action) -> str:
    """none, switch, one, optional or many: what may follow the flag."""
    kind = type(action).__name__
    if kind in SWITCHES:
        return "switch"
    if action.nargs == 0:
        return "none"
    if action.nargs in ("+", "*") or (isinstance(action.nargs, int) and action.nargs > 1):
        return "many"
    return "optional" if action.nargs == "?" else "one"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--oracle", type=Path, required=True)
    parser.add_argument("--release", type=Path, required=True)
    given = parser.parse_args()
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "CRITICAL")
    engine, _, version = given.release.name.partition("-")
    with contextlib.redirect_stdout(sys.stderr):
        stand_in(given.oracle, engine, given.release)
        actions = [action for action in parser_of(engine)._actions if action.dest != "help"]
    flags = {spelling: form(action) for action in actions for spelling in action.option_strings}
    choices = {
        action.option_strings[0]: sorted(
            str(getattr(each, "value", each)) for each in action.choices if each is not None
        )
        for action in actions
        if action.option_strings and action.choices
    }
    print(json.dumps({"engine": engine, "release": version, "flags": flags, "choices": choices}))


if __name__ == "__main__":
    main()
