"""argv -> Launch: what ``vllm serve`` and ``api_server`` make of a command line, release by release."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from packaging.version import Version

from ullage.core.launch import Arg, Launch, Value
from ullage.core.patterns import lazy
from ullage.core.problem import Problem
from ullage.core.tables import load
from ullage.core.versions import parse_release
from ullage.engines.runtime.command import Command, read
from ullage.engines.runtime.config_file import Files, expanded
from ullage.engines.runtime.flags import FlagRow, Flags, FlagTable, Use, is_flag
from ullage.engines.runtime.problems import Judge
from ullage.engines.vllm.built import release_of
from ullage.engines.vllm.printed import keywords
from ullage.engines.vllm.values import closed, merged, nested, value_of, wrong

_MODULES = ("vllm.entrypoints.openai.api_server", "vllm.entrypoints.api_server", "vllm.entrypoints.cli.main")
_FILES = lazy(r"(?:^|/)vllm/entrypoints/(?:openai/)?api_server\.py$")
_IMAGE = lazy(r"^(?:[\w.-]+(?::\d+)?/)*[\w.-]*vllm[\w.-]*(?:/[\w.-]*)?(?::[\w.+-]+)?(?:@sha256:\w+)?$")
_CONTAINERS = ("docker", "podman", "nerdctl", "apptainer", "singularity")
_OFFLINE = lazy(r"\b(?:Async)?(?:LLM|LLMEngine|EngineArgs|AsyncEngineArgs)\((?P<arguments>.*)", re.DOTALL)
#: releases in which ``-O3`` is a level of its own, not compilation_config
_LEVELS_SINCE = Version("0.12.0")
#: releases in which ``--disable-x`` switches ``--enable-x`` off, and the other way round (EnableDisableAction)
_OPPOSITES_SINCE = Version("0.33.0")
#: flags of SGLang that people carry over, and what vLLM calls them
_ELSEWHERE = {
    "--mem-fraction-static": "--gpu-memory-utilization", "--context-length": "--max-model-len",
    "--max-running-requests": "--max-num-seqs", "--chunked-prefill-size": "--max-num-batched-tokens",
    "--disable-cuda-graph": "--enforce-eager", "--tp-size": "--tensor-parallel-size",
    "--tp": "--tensor-parallel-size", "--dp-size": "--data-parallel-size", "--page-size": "--block-size",
    "--model-path": "--model", "--tokenizer-path": "--tokenizer", "--ep-size": "--enable-expert-parallel",
    "--disable-radix-cache": "--no-enable-prefix-caching", "--mem-fraction": "--gpu-memory-utilization",
    "--json-model-override-args": "--hf-overrides", "--cuda-graph-max-bs": "--max-cudagraph-capture-size",
}  # fmt: skip


def _table() -> FlagTable:
    table: FlagTable = load("ullage.engines.vllm", "flags.toml", FlagTable)
    return table


@cache
def flags(release: Version | None) -> Flags:
    """The flags of a release; None: the newest."""
    return Flags(_table().flag, release)


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


def parse(text: str, version: str | None, files: Files | None = None) -> Launch:
    """The launch behind a command as pasted, or behind ``LLM(model=..)``; its release is read from the image's
    tag or a ``pip install`` in front where none is given. ``files`` opens the file of ``--config``.

    Raises CommandError where the quoting is broken, InputError for a configuration file that the engine would
    refuse; of another program's command only the flags are read.
    """
    command = read(text, lambda words: owns_command(list(words)))
    version = release_of(version or _release(command))
    args, unknown = _python(command), list[str]()
    if not args:
        args, unknown = _read(_arguments(command, parse_release(version), files), parse_release(version))
    model = args["model"].value if "model" in args else None
    return Launch(
        engine="vllm", version=version, version_source="command" if version else None,
        model=model if isinstance(model, str) else None, args=args, env=command.env, command=text,
        unknown=tuple(unknown),
    )  # fmt: skip


def problems(launch: Launch | str, version: str | None = None, files: Files | None = None) -> list[Problem]:
    """What is wrong with the flags of a launch, or of a command as pasted, in the order of the command.

    Raises CommandError and InputError where the command cannot be read at all.
    """
    text = launch if isinstance(launch, str) else launch.command
    if text is None:
        return []
    command = read(text, lambda words: owns_command(list(words)))
    version = release_of(version or (None if isinstance(launch, str) else launch.version) or _release(command))
    if _python(command):
        return []
    release = parse_release(version)
    uses = list(_uses(_arguments(command, release, files), release))
    model = next((use for use in uses if not use.spelling), None)
    uses += [Use("", values=(remark,)) for remark in command.remarks]
    return list(Judge("vLLM", _table(), version, wrong, _ELSEWHERE).judge(u for u in uses if u is not model))


def _release(command: Command) -> str | None:
    image = _image(command.words)
    return (Command(image=image, pinned=command.pinned) if image else command).release("vllm")


def _image(words: Sequence[str]) -> str | None:
    at = _image_at(words)
    return words[at] if at is not None else None


def _arguments(command: Command, release: Version | None, files: Files | None) -> list[str]:
    """The server's own arguments, those of its configuration file in front; of another program what follows its
    first flag. A model in front of the flags wins over the file's."""
    words = list(command.words)
    start, at = _program_end(words), _image_at(words)
    if start is None and at is not None:
        # the image's entry point is the server, since 0.11.1 `vllm serve`
        start = at + 2 if words[at + 1 : at + 2] == ["serve"] else at + 1
    if start is None:
        start = next((i for i, word in enumerate(words) if word.startswith("--")), len(words))
    own = words[start:]
    model = own[:1] if own and not is_flag(own[0]) else []

    def configured(data: Mapping[str, Any]) -> list[str]:
        return list(_configured({k: v for k, v in data.items() if not (model and k == "model")}, release))

    return model + expanded(own[len(model) :], files, configured)


def _configured(data: Mapping[str, Any], release: Version | None) -> Iterator[str]:
    """What FlexibleArgumentParser makes of a file: booleans are flags since 0.6.4 (False: nothing;
    since 0.28.0 "--no-.."), lists several words since 0.10.2, objects JSON since 0.16.0; else text."""
    import json

    def since(first: str) -> bool:
        return release is None or release >= Version(first)

    for key, value in data.items():
        row, _ = flags(release).find("--" + key.replace("_", "-"))
        valued = row is not None and row.type == "optional-bool"
        if isinstance(value, bool) and since("0.6.4") and not valued:
            off = since("0.28.0") and row is not None and row.type == "switch"
            yield from [f"--{key}"] if value else [f"--no-{key}"] if off else []
        elif isinstance(value, list) and since("0.10.2"):
            yield from [f"--{key}", *map(str, value)] if value else []
        elif isinstance(value, dict) and since("0.16.0"):
            yield from (f"--{key}", json.dumps(value))
        else:
            yield from (f"--{key}", str(value))


def _python(command: Command) -> dict[str, Arg]:
    """The arguments of ``LLM(model="..", ..)`` in a script or a report."""
    if _program_end(command.words) is not None or _image_at(command.words) is not None:
        return {}
    found = _OFFLINE.search(" ".join(command.words))
    values = keywords(found["arguments"]) if found else {}
    return {name: Arg(value, "given", f"{name}={value!r}") for name, value in values.items()}  # type: ignore[arg-type]


def _uses(argv: Sequence[str], release: Version | None) -> Iterator[Use]:
    """The flags of a command line with their values, as FlexibleArgumentParser takes them apart."""
    known, words, at = flags(release), list(argv), 0
    while at < len(words):
        word = words[at]
        at += 1
        if word == "--":
            continue
        if not is_flag(word):
            yield Use("", values=(word,))
            continue
        name, equals, inline = _spelled(word, release)
        row, here, off = _row(known, name, release)
        if row is None:
            past = at if equals else _past(words, at)
            yield Use(name, values=(inline,) if equals else tuple(words[at:past]), inline=bool(equals))
            at = past
            continue
        values, at = ([inline], at) if equals else _values(words, at, row, dotted="." in name)
        yield Use(name, row, here, off, tuple(values), bool(equals))


def _read(argv: Sequence[str], release: Version | None) -> tuple[dict[str, Arg], list[str]]:
    """Settings by name, and what this release does not know."""
    args: dict[str, Arg] = {}
    unknown: list[str] = []
    for use in _uses(argv, release):
        if not use.spelling:
            [word] = use.values
            if "model" not in args and not word.startswith("("):
                args["model"] = Arg(word, "given", word)
            else:
                unknown.append(word)
        elif use.row is None:
            unknown.append(use.spelling)
        else:
            unknown += [] if use.here else [use.spelling]
            _set(args, use.row, use.spelling, list(use.values), off=use.off, release=release)
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


def _row(known: Flags, name: str, release: Version | None) -> tuple[FlagRow | None, bool, bool]:
    """The row of a spelling, whether this release has it, and whether it switches off. Where the release is not
    known, a flag of any release is one."""
    head = name.partition(".")[0]
    row, here = known.find(head)
    if row is not None:
        return row, here or release is None, False
    for prefix, positive in (("--no-", "--"), ("--disable-", "--enable-"), ("--enable-", "--disable-")):
        if not head.startswith(prefix):
            continue
        row, here = known.find(positive + head.removeprefix(prefix))
        opposite = positive != "--" and release is not None and release < _OPPOSITES_SINCE
        if row is not None and row.type in ("switch", "optional-bool") and not opposite:
            return row, here or release is None, True
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
        taken = closed(following)  # JSON whose quotes the shell has eaten comes in pieces
        return [" ".join(following[:taken])], at + taken
    return following[:1], at + len(following[:1])


def _set(
    args: dict[str, Arg], row: FlagRow, name: str, values: list[str], *, off: bool, release: Version | None
) -> None:
    keys = name.split(".")[1:]
    source = " ".join([name, *values])
    if keys:
        before = args[row.setting].value if row.setting in args else None
        added = nested(keys, values[0] if values else "")
        args[row.setting] = Arg(merged(before if isinstance(before, dict) else {}, added), "given", source)
        return
    args[row.setting] = Arg(value_of(row, values, off=off), "given", source)


def defaults(release: Version | None) -> dict[str, Value]:
    """Setting -> argparse's default, for the settings that have one."""
    return {name: _listed(value) for name, value in flags(release).defaults().items()}


def _listed(value: object) -> Value:
    return list(value) if isinstance(value, list) else value  # type: ignore[return-value]
