"""argv -> Launch: what ``vllm serve`` and ``api_server`` make of a command line, release by release."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from functools import cache

from packaging.version import Version

from ullage.core.launch import Arg, Launch, Value
from ullage.core.tables import load
from ullage.core.versions import parse_release
from ullage.engines.runtime.command import Command, read
from ullage.engines.runtime.flags import FlagRow, Flags, FlagTable, is_flag
from ullage.engines.vllm.printed import keywords, mapping, scalar

_MODULES = ("vllm.entrypoints.openai.api_server", "vllm.entrypoints.api_server", "vllm.entrypoints.cli.main")
_FILES = re.compile(r"(?:^|/)vllm/entrypoints/(?:openai/)?api_server\.py$")
_IMAGE = re.compile(r"^(?:[\w.-]+(?::\d+)?/)*[\w.-]*vllm[\w.-]*(?:/[\w.-]*)?(?::[\w.+-]+)?(?:@sha256:\w+)?$")
_CONTAINERS = ("docker", "podman", "nerdctl", "apptainer", "singularity")
_OFFLINE = re.compile(r"\b(?:Async)?(?:LLM|LLMEngine|EngineArgs|AsyncEngineArgs)\((?P<arguments>.*)", re.DOTALL)
_HUMAN = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT])")
_DECIMAL = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
#: releases in which ``-O3`` is a level of its own, not compilation_config
_LEVELS_SINCE = Version("0.12.0")
MAX_DEPTH = 12


@cache
def flags(release: Version | None) -> Flags:
    """The flags of a release; None: the newest."""
    return Flags(load("ullage.engines.vllm", "flags.toml", FlagTable).flag, release)


def owns_command(argv: Sequence[str]) -> bool:
    """True if ``argv`` starts a vLLM server: its program, its module, a container of it, or ``LLM(..)``."""
    return (
        _program_end(argv) is not None or _image_at(argv) is not None or bool(_OFFLINE.search(" ".join(argv)))
    )


def _program_end(argv: Sequence[str]) -> int | None:
    """Where the server's own arguments begin."""
    for i, word in enumerate(argv):
        if word in _MODULES or _FILES.search(word):
            return i + 1
        if word.rsplit("/", 1)[-1] in ("vllm", "vllm.exe") and argv[i + 1 : i + 2] == ["serve"]:
            return i + 2
        if word == "vllm.entrypoints.cli.main" and argv[i + 1 : i + 2] == ["serve"]:
            return i + 2
    return None


def _image_at(argv: Sequence[str]) -> int | None:
    """Where the image of a container stands, if it is one of vLLM's."""
    names = [word.rsplit("/", 1)[-1] for word in argv[:4]]
    if not any(name in _CONTAINERS for name in names):
        return None
    for i, word in enumerate(argv):
        value_of_option = i > 0 and argv[i - 1] in ("--name", "-v", "--volume", "--hostname", "--network", "-w")
        if i >= 2 and not value_of_option and _IMAGE.match(word) and word not in ("vllm",):
            return i
    return None


def parse(text: str, version: str | None) -> Launch:
    """The launch behind a command as pasted, or behind ``LLM(model=..)``. Raises CommandError where the quoting
    is broken; of another program's command only the flags are read."""
    command = read(text, lambda words: owns_command(list(words)))
    tagged = parse_release(command.image or _image(command.words))
    version = version or (str(tagged) if tagged else None)
    args, unknown = _python(command), list[str]()
    if not args:
        args, unknown = _read(list(_arguments(command)), parse_release(version))
    model = args["model"].value if "model" in args else None
    return Launch(
        engine="vllm", version=version, version_source="command" if version else None,
        model=model if isinstance(model, str) else None, args=args, env=command.env, command=text,
        unknown=tuple(unknown),
    )  # fmt: skip


def _image(words: Sequence[str]) -> str | None:
    at = _image_at(words)
    return words[at] if at is not None else None


def _arguments(command: Command) -> Iterator[str]:
    """The server's own arguments; of another program what follows its first flag."""
    words = list(command.words)
    start, at = _program_end(words), _image_at(words)
    if start is None and at is not None:
        # the image's entry point is the server, since 0.11.1 `vllm serve`
        start = at + 2 if words[at + 1 : at + 2] == ["serve"] else at + 1
    if start is None:
        start = next((i for i, word in enumerate(words) if word.startswith("--")), len(words))
    return iter(words[start:])


def _python(command: Command) -> dict[str, Arg]:
    """The arguments of ``LLM(model="..", ..)`` in a script or a report."""
    if _program_end(command.words) is not None or _image_at(command.words) is not None:
        return {}
    found = _OFFLINE.search(" ".join(command.words))
    values = keywords(found["arguments"]) if found else {}
    return {name: Arg(value, "given", f"{name}={value!r}") for name, value in values.items()}  # type: ignore[arg-type]


def _read(argv: list[str], release: Version | None) -> tuple[dict[str, Arg], list[str]]:
    """Settings by name, and what this release does not know."""
    known, args, unknown = flags(release), {}, []
    at = 0
    while at < len(argv):
        word = argv[at]
        at += 1
        if word == "--":
            continue
        if not is_flag(word):
            if "model" not in args and not word.startswith("("):
                args["model"] = Arg(word, "given", word)
            else:
                unknown.append(word)
            continue
        name, equals, inline = _spelled(word, release)
        row, here, off = _row(known, name)
        if row is None:
            unknown.append(word)
            at = _past(argv, at) if not equals else at
            continue
        if not here:
            unknown.append(name)
        values, at = ([inline], at) if equals else _values(argv, at, row, dotted="." in name)
        _set(args, row, name, values, off=off, release=release)
    return args, unknown


def _spelled(word: str, release: Version | None) -> tuple[str, str, str]:
    """A flag as argparse sees it: hyphens for underscores, its inline value; ``-O3`` taken apart."""
    level = re.fullmatch(r"-O=?([\w-]+)", word)
    if level:
        new = release is None or release >= _LEVELS_SINCE
        return ("--optimization-level" if new else "--compilation-config.mode"), "=", level[1]
    name, equals, value = word.partition("=")
    if name.startswith("--"):
        head, dot, keys = name.partition(".")
        name = head.replace("_", "-") + dot + keys
    return name, equals, value


def _row(known: Flags, name: str) -> tuple[FlagRow | None, bool, bool]:
    """The row of a spelling, whether this release has it, and whether it switches off."""
    head = name.partition(".")[0]
    row, here = known.find(head)
    if row is not None:
        return row, here, False
    if head.startswith("--no-"):
        row, here = known.find("--" + head.removeprefix("--no-"))
        return row, here and row is not None and row.type in ("switch", "optional-bool"), True
    return None, False, False


def _past(argv: list[str], at: int) -> int:
    """Behind the value of an unknown flag, if it has one."""
    return at + 1 if at < len(argv) and not is_flag(argv[at]) else at


def _values(argv: list[str], at: int, row: FlagRow, *, dotted: bool) -> tuple[list[str], int]:
    """The words that a flag takes, and where the next flag stands."""
    following: list[str] = []
    while at + len(following) < len(argv) and not is_flag(argv[at + len(following)]):
        following.append(argv[at + len(following)])
    if row.type in ("flag", "unflag", "switch", "optional-bool") and not dotted:
        said = following[:1] if following[:1] and following[0].lower() in ("true", "false", "1", "0") else []
        return said, at + len(said)
    if row.type.startswith("list-") and not dotted:
        return following, at + len(following)
    if following and following[0][:1] in "{[":
        taken = _closed(following)  # JSON whose quotes the shell has eaten comes in pieces
        return [" ".join(following[:taken])], at + taken
    return following[:1], at + len(following[:1])


def _closed(words: list[str]) -> int:
    depth = 0
    for i, word in enumerate(words):
        depth += sum(word.count(c) for c in "{[") - sum(word.count(c) for c in "}]")
        if depth <= 0:
            return i + 1
    return 1


def _set(
    args: dict[str, Arg], row: FlagRow, name: str, values: list[str], *, off: bool, release: Version | None
) -> None:
    keys = name.split(".")[1:]
    source = " ".join([name, *values])
    if keys:
        before = args[row.setting].value if row.setting in args else None
        nested = _nested(keys, values[0] if values else "")
        args[row.setting] = Arg(_merged(before if isinstance(before, dict) else {}, nested), "given", source)
        return
    args[row.setting] = Arg(_value(row, values, off=off), "given", source)


def _nested(keys: list[str], text: str) -> dict[str, object]:
    """``--x.a.b v`` as {"a": {"b": v}}; ``--x.a+ v,w`` as a list."""
    value = _json(text)
    if keys[-1].endswith("+"):
        keys, value = [*keys[:-1], keys[-1][:-1]], list(text.split(","))
    elif isinstance(value, str):
        value = human_int(value) or value
    for key in reversed(keys[:MAX_DEPTH]):
        value = {key: value}
    return value if isinstance(value, dict) else {}


def _merged(before: dict[str, object], added: dict[str, object]) -> dict[str, object]:
    merged = dict(before)
    for key, value in added.items():
        old = merged.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            merged[key] = _merged(old, value)
        elif isinstance(old, list) and isinstance(value, list):
            merged[key] = [*old, *value]
        else:
            merged[key] = value
    return merged


def _value(row: FlagRow, values: list[str], *, off: bool) -> Value:
    """The value of a flag, of the row's type; text that is none of that type stays text."""
    kind = row.type
    if kind in ("flag", "switch", "optional-bool", "unflag"):
        said = values[0].lower() not in ("false", "0") if values else True
        return said != (off or kind == "unflag")
    if kind.startswith("list-"):
        one = kind.removeprefix("list-")
        found = [_scalar(one, value) for value in values]
        return (
            found[0]
            if row.name == "served_model_name" and len(found) == 1 and row.type == "str"
            else list(found)
        )
    text = values[0] if values else ""
    if kind == "json":
        return _json(text)  # type: ignore[return-value]
    return _scalar(kind, text)


def _scalar(kind: str, text: str) -> str | int | float:
    if kind in ("int", "size"):
        if kind == "size" and text.strip().lower() == "auto":
            return -1
        number = human_int(text) if kind == "size" else None
        value = scalar(text.strip()) if number is None else number
        return value if isinstance(value, int) and not isinstance(value, bool) else text
    if kind == "float":
        value = scalar(text.strip())
        return float(value) if isinstance(value, int | float) else text
    return text


def human_int(text: str) -> int | None:
    """``32k`` = 32000, ``32K`` = 32768, ``25.6k`` = 25600; decimals only with the small letters.

    vllm 0.8.3 to 0.33.0, human_readable_int. None where ``text`` has no such form.
    """
    found = _HUMAN.fullmatch(text.strip())
    if found is None:
        return None
    number, suffix = found.groups()
    if suffix in _DECIMAL:
        return int(float(number) * _DECIMAL[suffix])
    return int(number) * _BINARY[suffix] if number.isdigit() else None


def _json(text: str) -> object:
    """JSON, or what is left of it when the shell has eaten its quotes; else the text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    if text.lstrip()[:1] == "{":
        return mapping(text) or text
    if re.fullmatch(r"\w+=\d+(?:,\w+=\d+)*", text):
        return {name: int(count) for name, _, count in (pair.partition("=") for pair in text.split(","))}
    word = scalar(text.strip())
    return word if isinstance(word, int | float | bool) else text


def defaults(release: Version | None) -> dict[str, Value]:
    """Setting -> argparse's default, for the settings that have one."""
    return {name: _listed(value) for name, value in flags(release).defaults().items()}


def _listed(value: object) -> Value:
    return list(value) if isinstance(value, list) else value  # type: ignore[return-value]
