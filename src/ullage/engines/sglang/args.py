"""argv -> Launch: what `sglang.launch_server` and `sglang serve` make of a command line, release by release."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from packaging.version import Version

from ullage.core.errors import CommandError
from ullage.core.launch import Arg, Launch, Value
from ullage.core.patterns import lazy
from ullage.core.problem import Problem
from ullage.core.tables import load
from ullage.core.versions import parse_release
from ullage.engines.runtime.command import Command, read
from ullage.engines.runtime.config_file import Files, expanded
from ullage.engines.runtime.flags import FlagRow, Flags, FlagTable, Scalar, Use, is_flag, values_after
from ullage.engines.runtime.problems import Judge

#: modules whose parser is ServerArgs' own
_MODULES = (
    "sglang.launch_server", "sglang.srt.server", "sglang.bench_one_batch", "sglang.bench_offline_throughput",
)  # fmt: skip
_WRAPPERS = lazy(r"dynamo\.sglang(?:\.\w+)*")
_PROGRAMS = ("sglang", "sgl")
_FILE = lazy(r"(?:^|/)sglang/(?:python/sglang/)?launch_server\.py$")
_PLACEHOLDER = lazy(r"[A-Z][A-Z_<>]*|\$\{?\w+\}?|<[^>]*>")
_NO_VALUE = ("flag", "unflag", "switch")
_IMAGE = lazy(r"(?:[\w.-]+(?::\d+)?/)*[\w.-]*sglang[\w.-]*(?::[\w.+-]+)?(?:@sha256:\w+)?")
#: flags of vLLM that people carry over, and what SGLang calls them
_ELSEWHERE = {
    "--gpu-memory-utilization": "--mem-fraction-static", "--max-model-len": "--context-length",
    "--max-num-seqs": "--max-running-requests", "--max-num-batched-tokens": "--chunked-prefill-size",
    "--enforce-eager": "--disable-cuda-graph", "--distributed-init-method": "--dist-init-addr",
    "--enable-auto-tool-choice": "--tool-call-parser", "--no-enable-prefix-caching": "--disable-radix-cache",
    "--block-size": "--page-size", "--cpu-offload-gb": "--cpu-offload-gb", "--tokenizer": "--tokenizer-path",
    "--hf-overrides": "--json-model-override-args", "--enable-expert-parallel": "--ep-size",
}  # fmt: skip


def _table() -> FlagTable:
    table: FlagTable = load("ullage.engines.sglang", "flags.toml", FlagTable)
    return table


@cache
def _rows() -> list[FlagRow]:
    return _table().flag


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
    """True if ``argv`` starts an SGLang server: its module or program, or a container of it with a model."""
    return _program_end(argv) is not None or (_image_at(argv) is not None and not {*_MODEL}.isdisjoint(argv))


_MODEL = ("--model-path", "--model")


def _named(version: str | None, image: str | None) -> str | None:
    """``version``, or the release nearest to an image that is named after a model instead."""
    if parse_release(version) is not None or not (version or image):
        return version
    from ullage.engines.sglang.releases import of_image

    return of_image(version or "") or of_image(image or "") or version


def _program_end(words: Sequence[str]) -> int | None:
    """Where the arguments begin: behind "-m sglang.launch_server", "sglang serve", or the path of the file."""
    for i, word in enumerate(words):
        if word in _MODULES or _WRAPPERS.fullmatch(word) or _FILE.search(word):
            return i + 1
        if word.rsplit("/", 1)[-1] in _PROGRAMS and "serve" in words[i + 1 : i + 2]:
            return i + 2
    return None


def _image_at(words: Sequence[str]) -> int | None:
    """Where the image of a ``docker run`` stands, if it is one of SGLang's."""
    if not {"docker", "podman", "nerdctl"} & {word.rsplit("/", 1)[-1] for word in words[:3]}:
        return None
    named = ("--name", "--hostname", "-v", "--volume", "--network", "-w", "-h")
    return next(
        (i for i, word in enumerate(words) if i > 1 and words[i - 1] not in named and _IMAGE.fullmatch(word)),
        None,
    )


def parse(text: str, version: str | None, files: Files | None = None) -> Launch:
    """The launch behind a command as pasted; its release is read from the image's tag or a ``pip install`` in
    front where none is given. ``files`` opens the file of ``--config``; without it, the file stays unread.

    Raises CommandError where the quoting is broken, or a flag's value is not of its type; InputError for a
    configuration file that the engine would refuse.
    """
    command = read(text, owns_command)
    version = _named(version or command.release("sglang"), command.image)
    args, unknown, loose = _read(_arguments(command, parse_release(version), files), parse_release(version))
    if loose and "model_path" not in args:
        args["model_path"] = Arg(loose[0], "given", loose[0])
        del loose[0]
    model = args["model_path"].value if "model_path" in args else None
    return Launch(
        engine="sglang", version=version, version_source="command" if version else None,
        model=model if isinstance(model, str) else None, args=args, env=command.env, command=text,
        unknown=(*unknown, *loose),
    )  # fmt: skip


def problems(launch: Launch | str, version: str | None = None, files: Files | None = None) -> list[Problem]:
    """What is wrong with the flags of a launch, or of a command as pasted, in the order of the command.

    Raises CommandError and InputError where the command cannot be read at all.
    """
    text = launch if isinstance(launch, str) else launch.command
    if text is None:
        return []
    command = read(text, owns_command)
    version = version or (None if isinstance(launch, str) else launch.version) or command.release("sglang")
    release = parse_release(version)
    uses = list(_uses(_arguments(command, release, files), release))
    if any("sglang.bench_" in word for word in command.words):
        uses = [
            use for use in uses if use.row is not None
        ]  # the benchmark's own flags stand beside the server's
    model = next((use for use in uses if not use.spelling), None)
    if any(use.row is not None and use.row.name == "model_path" for use in uses):
        model = None
    uses += [Use("", values=(remark,)) for remark in command.remarks]
    judge = Judge("SGLang", _table(), version, _wrong, _ELSEWHERE)
    return list(judge.judge(use for use in uses if use is not model))


def _arguments(command: Command, release: Version | None, files: Files | None) -> list[str]:
    """The server's own words, those of its configuration file in front."""
    words = list(command.words)
    start, image = _program_end(words), _image_at(words)
    if start is None:
        first = image + 1 if image is not None else 0
        start = next((i for i in range(first, len(words)) if words[i].startswith("--")), len(words))
    return expanded(words[start:], files, lambda data: list(_configured(data, release)))


def _configured(data: dict[str, Any] | Any, release: Version | None) -> Iterator[str]:
    """The words that ConfigArgumentMerger makes of a file (0.5.3..0.5.23, server_args_config_parser.py): until
    0.5.7 a true boolean is a flag and a false one nothing; from 0.5.8 on only for flags without a value, others
    get "true" or "false"; objects are JSON from 0.5.14 on."""
    import json

    known = flags(release)
    for key, value in data.items():
        row, _ = known.find("--" + key.replace("_", "-"))
        flag = row is not None and row.type in _NO_VALUE
        if isinstance(value, bool):
            if flag or (release is not None and release < Version("0.5.8")):
                yield from [f"--{key}"] if value else []
            else:
                yield from (f"--{key}", str(value).lower())
        elif isinstance(value, list):
            yield from [f"--{key}", *map(str, value)] if value else []
        elif isinstance(value, dict) and (release is None or release >= Version("0.5.14")):
            yield from (f"--{key}", json.dumps(value))
        else:
            yield from (f"--{key}", str(value))


def _uses(argv: Sequence[str], release: Version | None) -> Iterator[Use]:
    """The flags of a command line with their values, as argparse takes them apart."""
    at = 0
    while at < len(argv):
        word = argv[at]
        at += 1
        if not is_flag(word) or " " in word.partition("=")[0]:
            yield Use("", values=(word,))
            continue
        spelling, inline, value = word.partition("=")
        row, known, off = _find(spelling, release)
        taken = [value] if inline else []
        if not inline and (row is None or row.type not in _NO_VALUE):
            taken = values_after(argv, at - 1, many=row is not None and row.type.startswith("list-"))
            at += len(taken)
        yield Use(spelling, row, known, off, tuple(taken), bool(inline))


def _read(argv: Sequence[str], release: Version | None) -> tuple[dict[str, Arg], list[str], list[str]]:
    """Settings, flags that the release does not know, and words that belong to no flag."""
    args: dict[str, Arg] = {}
    unknown: list[str] = []
    loose: list[str] = []
    for use in _uses(argv, release):
        if not use.spelling:
            loose += use.values
        elif use.row is None or not use.here:
            unknown.append(use.spelling)
        else:
            _set(args, use.row, list(use.values), use.spelling, off=use.off)
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


def _wrong(row: FlagRow, word: str) -> str | None:
    """What is wrong with a value by the flag's type, None where nothing is."""
    base = row.type.rsplit("-", 1)[-1]
    try:
        _one(base, word, "")
    except CommandError:
        return "wants a whole number" if base == "int" else "wants a number"
    return None


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
