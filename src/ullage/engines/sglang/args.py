"""argv -> Launch: what `sglang.launch_server` and `sglang serve` make of a command line, release by release."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

from packaging.version import Version

from ullage.core.errors import CommandError
from ullage.core.launch import Arg, Launch, Value
from ullage.core.tables import load
from ullage.core.versions import parse_release
from ullage.engines.runtime.command import read
from ullage.engines.runtime.flags import FlagRow, Flags, FlagTable, Scalar, is_flag, values_after

#: modules whose parser is ServerArgs' own
_MODULES = (
    "sglang.launch_server", "sglang.srt.server", "sglang.bench_one_batch", "sglang.bench_offline_throughput",
)  # fmt: skip
_WRAPPERS = re.compile(r"dynamo\.sglang(?:\.\w+)*")
_PROGRAMS = ("sglang", "sgl")
_FILE = re.compile(r"(?:^|/)sglang/(?:python/sglang/)?launch_server\.py$")
_PLACEHOLDER = re.compile(r"[A-Z][A-Z_<>]*|\$\{?\w+\}?|<[^>]*>")
_NO_VALUE = ("flag", "unflag", "switch")


@cache
def _rows() -> list[FlagRow]:
    table: FlagTable = load("ullage.engines.sglang", "flags.toml", FlagTable)
    return table.flag


@cache
def flags(release: Version | None) -> Flags:
    """The flags of a release (None: the newest)."""
    return Flags(_rows(), release)


def defaults(release: Version | None) -> dict[str, Value]:
    """Defaults that ServerArgs declares, before anything is worked out; None and False are left out."""
    return {name: _listed(value) for name, value in flags(release).defaults().items()}


def _listed(value: Scalar) -> Value:
    return list(value) if isinstance(value, list) else value


@cache
def all_names() -> frozenset[str]:
    """The settings of every release."""
    return frozenset(row.name for row in _rows())


@cache
def names_of(release: Version | None) -> frozenset[str]:
    """The settings that have a flag in ``release``."""
    return frozenset(row.name for row in flags(release).now.values())


def owns_command(argv: Sequence[str]) -> bool:
    """True if ``argv`` starts an SGLang server."""
    return _program_end(argv) is not None


def _program_end(words: Sequence[str]) -> int | None:
    """Where the arguments begin: behind "-m sglang.launch_server", "sglang serve", or the path of the file."""
    for i, word in enumerate(words):
        if word in _MODULES or _WRAPPERS.fullmatch(word) or _FILE.search(word):
            return i + 1
        if word.rsplit("/", 1)[-1] in _PROGRAMS and "serve" in words[i + 1 : i + 2]:
            return i + 2
    return None


def parse(text: str, version: str | None) -> Launch:
    """The launch behind a command as pasted; its release is read from the image's tag where none is given.

    Raises CommandError where the quoting is broken, or a flag's value is not of its type.
    """
    command = read(text, owns_command)
    tagged = parse_release(command.image)
    version = version or (str(tagged) if tagged else None)
    start = _program_end(command.words)
    if start is None:
        start = next((i for i, word in enumerate(command.words) if word.startswith("--")), len(command.words))
    args, unknown, loose = _read(list(command.words[start:]), parse_release(version))
    if loose and "model_path" not in args:
        args["model_path"] = Arg(loose[0], "given", loose[0])
        del loose[0]
    model = args["model_path"].value if "model_path" in args else None
    return Launch(
        engine="sglang", version=version, version_source="command" if version else None,
        model=model if isinstance(model, str) else None, args=args, env=command.env, command=text,
        unknown=(*unknown, *loose),
    )  # fmt: skip


def _read(argv: list[str], release: Version | None) -> tuple[dict[str, Arg], list[str], list[str]]:
    """Settings, flags that the release does not know, and words that belong to no flag."""
    args: dict[str, Arg] = {}
    unknown: list[str] = []
    loose: list[str] = []
    at = 0
    while at < len(argv):
        word = argv[at]
        at += 1
        if not is_flag(word) or " " in word.partition("=")[0]:
            loose.append(word)
            continue
        spelling, inline, value = word.partition("=")
        row, known, off = _find(spelling, release)
        taken = [value] if inline else []
        if not inline and (row is None or row.type not in _NO_VALUE):
            taken = values_after(argv, at - 1, many=row is not None and row.type.startswith("list-"))
            at += len(taken)
        if row is None or not known:
            unknown.append(spelling)
        else:
            _set(args, row, taken, spelling, off=off)
    return args, unknown, loose


def _find(spelling: str, release: Version | None) -> tuple[FlagRow | None, bool, bool]:
    """The row of a spelling, whether the release knows it, and whether it is the "--no-..." of a switch. Where
    the release is not known, a flag of any release is one."""
    row, known = flags(release).find(spelling)
    if row is None and spelling.startswith("--no-"):
        positive, known = flags(release).find("--" + spelling.removeprefix("--no-"))
        if positive is not None and positive.type == "switch":
            return positive, known or release is None, True
        return None, False, False
    return row, known or (row is not None and release is None), False


def _set(args: dict[str, Arg], row: FlagRow, taken: list[str], spelling: str, *, off: bool) -> None:
    arg = Arg(_value(row, taken, spelling, off=off), "given", spelling)
    for name in [row.name, *_other_names(row)]:
        args[name] = arg


def _other_names(row: FlagRow) -> list[str]:
    """The names of the same setting in other releases ("cuda_graph_max_bs" of "cuda_graph_max_bs_decode"), so
    that a rule finds it under either."""
    spelled = (spelling.lstrip("-").replace("-", "_") for spelling in row.spelled)
    return [name for name in spelled if name in all_names() and name != row.name]


def _value(row: FlagRow, taken: list[str], spelling: str, *, off: bool) -> Value:
    """The value in the flag's type. Raises CommandError where it has none of that type."""
    if row.type in _NO_VALUE:
        return row.type != "unflag" and not off
    base = row.type.rsplit("-", 1)[-1]
    if row.type.startswith("list-"):
        return [_one(base, word, spelling) for word in taken]
    if taken:
        return _one(base, taken[0], spelling)
    if row.type.startswith("optional-"):
        return True
    raise CommandError(f"{spelling} lacks its value", hint=f"write {spelling} VALUE")


def _one(base: str, word: str, spelling: str) -> str | int | float:
    if base == "str" or _PLACEHOLDER.fullmatch(word):
        return word
    try:
        return _whole(word) if base == "int" else float(word)
    except ValueError:
        raise CommandError(f"{spelling} wants a number, not {word[:40]!r}") from None


def _whole(word: str) -> int:
    """An integer as int() reads it, or with the suffixes of human_readable_int (utils/common.py, 0.5.10..):
    decimal k, M, G, T and binary Ki, Mi, Gi, Ti."""
    pattern = r"([-+]?\d[\d_]*)|(\d+(?:\.\d+)?)(Ki|Mi|Gi|Ti|k|M|G|T)"
    found = re.fullmatch(pattern, word) if len(word) <= 32 else None
    if found is None:
        raise ValueError(word)
    if found[1]:
        return int(found[1])
    power = "kMGT".index(found[3][0].replace("K", "k")) + 1
    return int(float(found[2]) * (1024 if found[3].endswith("i") else 1000) ** power)
