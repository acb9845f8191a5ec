"""Records what the engine's own parser takes, to check flags.toml against: spelling -> form of value.

    PYTHON tools/flags_real.py --engine sglang --release DIR/sglang-0.5.9 >> tests/engines/real_flags.jsonl

DIR/sglang-0.5.9 is an unpacked wheel; PYTHON one with torch and transformers (vLLM: also pydantic), not ullage's own.
The release's source is imported as it is; packages that are absent are inert stand-ins. One line of JSON a release.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.abc
import importlib.machinery
import json
import os
import sys
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

FLAGS = ("_StoreTrueAction", "_CountAction")
SWITCHES = ("BooleanOptionalAction", "EnableDisableAction")
PARSERS = ("vllm.entrypoints.openai.cli_args", "vllm.entrypoints.launchers.cli_args", "vllm.entrypoints.common.cli_args")
#: never a stand-in: libraries look at whether these are there
OPTIONAL = ("torch_xla", "torch_npu", "amdsmi", "uvicorn_worker", "colorama", "rich", "IPython", "jax", "tensorflow")


class Inert:
    """Stands for anything: class, value, decorator, context."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __call__(self, *args: Any, **__: Any) -> Any:
        return args[0] if len(args) == 1 and callable(args[0]) else self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Inert()

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __mro_entries__(self, _: Any) -> tuple[type, ...]:
        return (object,)

    def __getitem__(self, _: Any) -> Any:
        return self

    def __or__(self, other: Any) -> Any:
        return other

    __ror__ = __or__


class StandIn(types.ModuleType):
    __version__ = "99.0.0"
    __path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Inert()


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds every package that nobody else has found, except the engine's own modules."""

    def __init__(self, engine: str) -> None:
        self.kept = (engine, *OPTIONAL)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        top = name.partition(".")[0]
        parent = sys.modules.get(name.rpartition(".")[0])
        fresh = "." not in name and top not in self.kept and top not in sys.stdlib_module_names and not top.startswith("_")
        if isinstance(parent, StandIn) or fresh:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        return StandIn(spec.name)

    def exec_module(self, module: types.ModuleType) -> None: ...


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
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError:
            continue
        made: argparse.ArgumentParser = module.make_arg_parser(flexible())
        return made
    raise ModuleNotFoundError(", ".join(PARSERS))


def form(action: argparse.Action) -> str:
    """none, switch, one, optional or many: what may follow the flag."""
    kind = type(action).__name__
    if kind in SWITCHES:
        return "switch"
    if kind in FLAGS or kind == "_StoreFalseAction" or action.nargs == 0:
        return "none"
    if action.nargs in ("+", "*") or (isinstance(action.nargs, int) and action.nargs > 1):
        return "many"
    return "optional" if action.nargs == "?" else "one"


def bare_package(engine: str, root: Path) -> None:
    """SGLang's own package without its ``__init__``, which loads the client."""
    package = types.ModuleType(engine)
    package.__path__ = [str(root / engine)]
    package.__dict__["__version__"] = root.name.partition("-")[2]
    sys.modules[engine] = package


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=("sglang", "vllm"), required=True)
    parser.add_argument("--release", type=Path, required=True)
    given = parser.parse_args(arguments)
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "CRITICAL")
    sys.path.insert(0, str(given.release))
    import transformers

    for name in ("AutoConfig", "AutoModel", "AutoProcessor", "AutoImageProcessor", "AutoTokenizer"):
        getattr(transformers, name).register = lambda *_, **__: None
    sys.meta_path.append(Finder(given.engine))
    if given.engine == "sglang":
        bare_package("sglang", given.release)
    actions = parser_of(given.engine)._actions
    flags = {each: form(action) for action in actions for each in action.option_strings if action.dest != "help"}
    choices = {a.option_strings[0]: sorted(map(str, a.choices)) for a in actions if a.option_strings and a.choices}
    version = given.release.name.partition("-")[2]
    print(json.dumps({"engine": given.engine, "release": version, "flags": flags, "choices": choices}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
