"""A change put on a launch: flags replaced, added and taken out; variables; the container's image."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from ullage.core.errors import CommandError
from ullage.engines.base import Engine
from ullage.engines.runtime import command as commands
from ullage.lab.campaign.file import Change, FlagValue, Scalar
from ullage.planning.plan import engine_of

_FLAG = re.compile(r"--?[A-Za-z]")
_SHELL_WORDS = frozenset({"export", "env", "exec", "sudo", "time", "set", "declare", "$", "%"})
_CONTAINERS = ("docker", "podman", "nerdctl")


class Command(Struct, frozen=True):
    """A launch ready to run: its words, the variables that it sets (None: taken out of what it inherits), and
    a shell command to run before it."""

    words: tuple[str, ...]
    env: dict[str, str | None] = {}
    build: str | None = None

    @property
    def text(self) -> str:
        """The launch as people paste it, variables in front."""
        front = [f"{name}={shlex.quote(value)}" for name, value in self.env.items() if value is not None]
        return " ".join([*front, shlex.join(self.words)])

    @property
    def contained(self) -> bool:
        return self.words[0].rpartition("/")[2] in _CONTAINERS


class Group(Struct, frozen=True):
    """A flag with its values, or the words before the first flag; ``names`` are the settings that it gives."""

    words: tuple[str, ...]
    names: frozenset[str] = frozenset()


def read(text: str) -> Command:
    """The one command in ``text``. Raises CommandError where it is more than that: what is run must be what is
    shown."""
    engine = engine_of(text)
    found = commands.read(text, engine.owns_command)
    rest = Counter(commands.split(text)) - Counter(found.words)
    extra = [word for word in rest.elements() if word not in _SHELL_WORDS and not _assigns(word)]
    if extra:
        raise CommandError(
            f"more than one command, or words of a shell: {' '.join(extra)[:60]}", where="launch",
            hint="give the server's command alone; build: runs a command before it",
        )  # fmt: skip
    inside = {word for word in found.words if _assigns(word)} | {
        word.removeprefix("--env=") for word in found.words if word.startswith("--env=")
    }
    env = {name: value for name, value in found.env.items() if f"{name}={value}" not in inside}
    return Command(found.words, dict(env))


def _assigns(word: str) -> bool:
    return re.match(r"[A-Za-z_]\w*=", word) is not None


def changed(command: Command, change: Change) -> Command:
    """``command`` with the change on it; where the change has a launch of its own, that one instead."""
    base = read(change.launch) if change.launch else command
    engine = engine_of(base.text)
    words = with_flags(engine, base.words, change.flags)
    env = {**base.env, **{name: _text(value) for name, value in change.env.items()}}
    found = Command(words, env, change.build or base.build)
    if change.image:
        found = _with_image(engine, found, change.image)
    return _in_container(found, change.env) if found.contained else found


def _text(value: Scalar) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return str(int(value)) if isinstance(value, bool) else str(value)


def with_flags(engine: Engine, words: Sequence[str], flags: dict[str, FlagValue]) -> tuple[str, ...]:
    """``words`` with ``flags``: one that is there is replaced where it stands, however it is spelled there."""
    start = _program_at(engine, words)
    head, groups = tuple(words[:start]), _groups(engine, words)
    prefix = (*head, *groups[0].words)
    for flag, value in flags.items():
        new = _spelled(engine, prefix, flag, value)
        names = _names(engine, prefix, (*_spelled(engine, prefix, flag, True),)) | _names(engine, prefix, new)
        groups = _put(groups, Group(new, frozenset(names)), frozenset(names), _stem(flag))
    return (*head, *(word for group in groups for word in group.words))


def _put(groups: list[Group], new: Group, names: frozenset[str], stem: str) -> list[Group]:
    alike = [
        i
        for i, g in enumerate(groups)
        if i and (g.names & names or _stem(g.words[0].partition("=")[0]) == stem)
    ]
    if not alike:
        return [*groups, new] if new.words else groups
    kept = [g for i, g in enumerate(groups) if i not in alike[1:]]
    kept[alike[0]] = new
    return [g for i, g in enumerate(kept) if g.words or not i]


def _stem(flag: str) -> str:
    return flag.lstrip("-").replace("_", "-").lower()


def _program_at(engine: Engine, words: Sequence[str]) -> int:
    """Where the engine's own words begin: behind a container's image."""
    image = commands.read(shlex.join(words), engine.owns_command).image
    return words.index(image) + 1 if image in words else 0


def _groups(engine: Engine, words: Sequence[str]) -> list[Group]:
    """The engine's own words before the first flag, then each flag with its values."""
    start = _program_at(engine, words)
    found: list[list[str]] = [[]]
    for word in words[start:]:
        starts = _FLAG.match(word) is not None and not (word == "-m" and len(found) == 1)
        if starts:
            found.append([word])
        else:
            found[-1].append(word)
    program = (*words[:start], *found[0])
    rest = [Group(tuple(group), frozenset(_names(engine, program, group))) for group in found[1:]]
    return [Group(tuple(found[0])), *rest]


def _names(engine: Engine, program: Sequence[str], words: Sequence[str]) -> set[str]:
    """The settings that ``words`` give behind ``program``."""
    if not words:
        return set()
    try:
        launch = engine.parse(shlex.join([*program, *words]), None)
        plain = engine.parse(shlex.join(program), None)
    except CommandError:
        return set()
    return {name for name, arg in launch.args.items() if arg.origin == "given" and plain.args.get(name) != arg}


def _spelled(engine: Engine, prefix: Sequence[str], flag: str, value: FlagValue) -> tuple[str, ...]:
    """The words of a flag; none for null, and for false where the engine has no word for it."""
    name = flag if flag.startswith("-") else f"--{flag}"
    if value is None:
        return ()
    if value is True:
        return (name,)
    if value is False:
        off = f"--no-{name.lstrip('-')}"
        return (off,) if _names(engine, prefix, (off,)) & _names(engine, prefix, (name,)) else ()
    if isinstance(value, list):
        return (name, *map(str, value))
    return (name, str(value))


def _with_image(engine: Engine, command: Command, image: str) -> Command:
    old = commands.read(command.text, engine.owns_command).image
    if old is None:
        raise CommandError(
            "an image, and the launch names none", where="image", hint="docker run ... IMAGE ..."
        )
    return replace(command, words=tuple(image if word == old else word for word in command.words))


def _in_container(command: Command, env: dict[str, Scalar]) -> Command:
    """The variables handed into the container: those outside are not seen inside."""
    words = list(command.words)
    for name, value in env.items():
        words = _without_variable(words, name)
        if value is not None:
            at = words.index("run") + 1
            words[at:at] = ["-e", f"{name}={_text(value)}"]
    return replace(command, words=tuple(words), env={k: v for k, v in command.env.items() if k not in env})


def _without_variable(words: list[str], name: str) -> list[str]:
    kept: list[str] = []
    for word in words:
        if word.startswith(f"{name}=") and kept and kept[-1] in ("-e", "--env"):
            kept.pop()
        elif not word.startswith(f"--env={name}="):
            kept.append(word)
    return kept


def declared(change: Change, command: Command) -> frozenset[str]:
    """The settings that a change says it touches: those of its flags, and what it says may follow."""
    engine = engine_of(command.text)
    prefix = (*command.words[: _program_at(engine, command.words)], *_groups(engine, command.words)[0].words)
    found = set(change.also) | {_stem(name).replace("-", "_") for name in change.also}
    for flag, value in change.flags.items():
        samples: list[FlagValue] = [True] if isinstance(value, bool) else [True, 1 if value is None else value]
        for sample in samples:
            found |= _names(engine, prefix, _spelled(engine, prefix, flag, sample))
        found.add(_stem(flag).replace("-", "_"))
    return frozenset(found)
