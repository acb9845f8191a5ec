"""A launch command as people paste it, split into words: quotes, escapes, comments, continued lines, variables
in front, ``docker run``, ``bash -c``, several commands joined by ``&&``, Compose files and Kubernetes
manifests. Nothing is run or expanded."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct

from ullage.core.errors import CommandError
from ullage.core.patterns import lazy
from ullage.core.versions import parse_release
from ullage.engines.runtime.manifest import chosen as chosen_container
from ullage.engines.runtime.manifest import containers, is_manifest
from ullage.engines.runtime.prose import joined, without_prose

MAX_COMMAND = 256 << 10
_CALL = lazy(r"(?:LLM|LLMEngine|Engine|Args|Runtime)\(")
_BLANK = lazy(r"<[\w ./:(),+-]+>")
_FLAG = lazy(r"--?\w")
_CONTINUED = lazy(r"[\\^`][ \t]*\r?\n")
_TAG = lazy(r"(?<![\d.])0\.\d+\.\d+(?:\.\d+)?(?:\.?(?:post|rc|dev)\d+)*(?:\+[\w.]+)?")
_PINNED = lazy(r"(?:^|/)(sglang|vllm)(?:\[[\w,-]*\])?==(\S+)")
_POWERSHELL = lazy(r"\$env:(\w+)(?:=(.*))?", re.IGNORECASE | re.DOTALL)
_ASSIGNMENT = lazy(r"[A-Za-z_]\w*=")
_JOINTS = ("&&", "||", "|&", "|", ";", "&", "\n")
_REDIRECT = lazy(r"\d?(?:>>?|<)(?:&\d?|\|)?")
_TYPOGRAPHY = str.maketrans({"“": '"', "”": '"', "„": '"', "‘": "'", "’": "'", "\u00a0": " ", "\ufeff": " "})
_SHELLS = ("bash", "sh", "zsh", "dash")


class Command(Struct, frozen=True):
    """One command. ``words`` hold all of it after the variables in front; ``image`` is the container image that
    it runs in, where it names one; ``pinned`` are the releases that a ``pip install`` before it asked for;
    ``remarks`` what stands between its words and belongs to no flag ("with two cards")."""

    words: tuple[str, ...] = ()
    env: dict[str, str] = {}
    image: str | None = None
    pinned: dict[str, str] = {}
    remarks: tuple[str, ...] = ()

    def release(self, engine: str) -> str | None:
        """The release that the image's tag or an installation in front names."""
        tag = (self.image or "").rpartition("/")[2].partition(":")[2].partition("@")[0]
        found = _TAG.findall(tag)
        named = found[-1] if found else self.pinned.get(engine)
        release = parse_release(named)
        return str(release) if release is not None else None


class _Joint(str):
    """Not a word: what separates commands."""

    __slots__ = ()


def read(text: str, owns: Callable[[Sequence[str]], bool]) -> Command:
    """The command in ``text`` that ``owns`` knows, else the first one with flags. Raises CommandError where
    quotes are not closed or nothing is left."""
    if len(text) > MAX_COMMAND:
        raise CommandError("a launch command of more than 256 KiB", hint="paste the command alone")
    if "\0" in text:
        raise CommandError("a launch command with NUL bytes", hint="paste it as text")
    text = text.translate(_TYPOGRAPHY)
    call = _called(text, owns)
    if call is not None:
        return call
    broken: CommandError | None = None
    if is_manifest(text):
        try:
            return _opened(chosen_container(containers(text, split), owns), {}, owns)
        except CommandError as error:
            broken = error
    told = [found for command in _commands(list(_words(text))) for found in without_prose(command)]
    commands = [words for words, _ in told] or [text.split()] * bool(text.strip())
    if broken is not None and not any(owns(words) for words in commands):
        raise broken
    if not commands:
        raise CommandError("an empty launch command")
    chosen = next((w for w in commands if owns(w) or any(" " in x and owns(x.split()) for x in w)), None)
    if chosen is None:
        chosen = next((words for words in commands if any(w.startswith("--") for w in words)), commands[0])
    env: dict[str, str] = {}
    pinned: dict[str, str] = {}
    place = commands.index(chosen)
    for words in commands[:place]:
        env.update(_exported(words))
        pinned.update(found for word in words for found in _PINNED.findall(word))
    found = _opened(chosen, env, owns)
    remarks = tuple(told[place][1]) if told else ()
    return Command(found.words, found.env, found.image, {**pinned, **found.pinned}, remarks)


def _called(text: str, owns: Callable[[Sequence[str]], bool]) -> Command | None:
    """The command behind a call in Python, by itself or in a script; None where there is none that ``owns``
    knows, or where a command stands beside it."""
    if _CALL.search(text) is None:
        return None
    from ullage.engines.runtime.python_call import words_of

    try:
        plain = [word for word in _words(text) if not isinstance(word, _Joint)]
    except CommandError:
        plain = []
    if any(word in ("serve", "-m") for word in plain):
        return None
    quoted = text.lstrip().startswith("'") or "' '" in text  # quoted word by word by a shell: no longer Python
    words = words_of(" ".join(plain) if quoted else text)
    if words is None or not owns(words):
        return None
    env = {name: value for word in plain for name, value in _assigned(word).items() if name.isupper()}
    return Command(tuple(words), env)


def split(text: str) -> list[str]:
    """The words of one command, joints left out."""
    return [word for word in _words(text) if not isinstance(word, _Joint)]


def belongs(text: str, owns: Callable[[Sequence[str]], bool]) -> bool:
    """True if ``text`` starts a server that ``owns`` knows, quotes closed or not. Never raises."""
    text = text[:MAX_COMMAND]
    try:
        if _called(text, owns) is not None:
            return True
    except CommandError:
        return False
    words = re.findall(r"[^\s\"',\[\]“”‘’]+", text)
    if owns(text.split()) or owns([word for word in words if word != "-"]):
        return True
    try:
        return is_manifest(text) and any(owns(words) for words in containers(text, split))
    except CommandError:
        return False


def _opened(words: list[str], env: dict[str, str], owns: Callable[[Sequence[str]], bool]) -> Command:
    """Variables off the front; a ``bash -c`` script opened; a container's variables and image found."""
    start = 0
    while start < len(words) and (
        _ASSIGNMENT.match(words[start]) or words[start] in ("env", "sudo", "exec", "time")
    ):
        env.update(_assigned(words[start]))
        start += 1
    rest = words[start:]
    for i, word in enumerate(rest[:-1]):
        if word.rsplit("/", 1)[-1] in _SHELLS and re.fullmatch(r"-\w*c", rest[i + 1]) and i + 2 < len(rest):
            inner = read(rest[i + 2], owns)
            outer = {**env, **_container_env(rest[:i])}
            return Command(inner.words, {**outer, **inner.env}, inner.image or _image(rest[:i]), inner.pinned)
    head = rest[: next((i for i in range(len(rest)) if _program(rest[i])), len(rest))]
    return Command(tuple(rest), {**env, **_container_env(head)}, _image(rest))


def _program(word: str) -> bool:
    return re.fullmatch(r"(?:\S*/)?(?:python[\d.]*|sglang|vllm|torchrun)", word) is not None


def _exported(words: Sequence[str]) -> dict[str, str]:
    """Variables that a command of their own sets for those after it: "export A=1", "A=1"."""
    found: dict[str, str] = {}
    shell = _POWERSHELL.fullmatch(words[0]) if words else None
    if shell:  # $env:NAME="value", with or without blanks around the sign
        value = shell[2] if shell[2] is not None else "".join(words[2:3]) if words[1:2] == ["="] else None
        return {shell[1]: value} if value is not None else {}
    rest = list(words[1:] if words and words[0] in ("export", "set", "declare") else words)
    if all(_ASSIGNMENT.match(word) for word in rest):
        for word in rest:
            found.update(_assigned(word))
    return found


def _assigned(word: str) -> dict[str, str]:
    name, joint, value = word.partition("=")
    return {name: value} if joint and _ASSIGNMENT.match(word) else {}


def _container_env(words: Sequence[str]) -> dict[str, str]:
    """Variables of "docker run -e A=1 --env B=2 --env=C=3"; also of "env A=1" in front of the program."""
    found: dict[str, str] = {}
    for i, word in enumerate(words):
        if word in ("-e", "--env") and i + 1 < len(words):
            found.update(_assigned(words[i + 1]))
        elif word.startswith("--env="):
            found.update(_assigned(word.removeprefix("--env=")))
        elif _ASSIGNMENT.match(word) and (i == 0 or not words[i - 1].startswith("-")):
            found.update(_assigned(word))
    return found


def _image(words: Sequence[str]) -> str | None:
    """The image of a container command: the first word after "run" in the form name:tag of a known engine's."""
    if not {"docker", "podman", "nerdctl", "apptainer", "singularity"} & {
        w.rsplit("/", 1)[-1] for w in words[:3]
    }:
        return None
    known = re.compile(
        r"(?:\w+://)?(?:[\w.-]+(?::\d+)?/)*[\w.-]*(?:sglang|vllm|dynamo|sgl)[\w.-]*(?:/[\w.-]+)*(?::[\w.-]+)?(?:@\S+)?"
    )
    return next((w for w in words if not w.startswith("-") and known.fullmatch(w) and not _program(w)), None)


def _commands(words: list[str]) -> Iterator[list[str]]:
    """Words between joints; a new line that begins with a flag goes on with the command before it."""
    current: list[str] = []
    follows = list(words)
    for i in range(len(words) - 2, -1, -1):
        follows[i] = words[i] if words[i] != "\n" else follows[i + 1]
    for i, word in enumerate(words):
        if not isinstance(word, _Joint):
            current.append(word)
        elif word == "\n" and current and _FLAG.match(follows[i]):
            continue
        elif current:
            yield _redirected(current)
            current = []
    if current:
        yield _redirected(current)


def _redirected(words: list[str]) -> list[str]:
    """Without "> log 2>&1", and without a prompt in front."""
    kept: list[str] = []
    skip = False
    for word in joined(words):
        if skip:
            skip = False
        elif (found := _REDIRECT.match(word)) and not _BLANK.fullmatch(word):
            skip = found.end() == len(word) and not word.endswith(("&1", "&2"))
        else:
            kept.append(word)
    return kept[1:] if kept[:1] in (["$"], ["%"]) and len(kept) > 1 else kept


def _words(text: str) -> Iterator[str]:
    """Shell words and joints. Raises CommandError for a quote that is not closed."""
    at, end = 0, len(text)
    while at < end:
        char = text[at]
        if char in " \t\r":
            at += 1
        elif continued := _CONTINUED.match(text, at):
            at = continued.end()
        elif char == "#":
            newline = text.find("\n", at)
            at = end if newline < 0 else newline
        elif joint := next((j for j in _JOINTS if text.startswith(j, at)), None):
            yield _Joint(joint)
            at += len(joint)
        else:
            word, at = _word(text, at)
            yield word


def _word(text: str, at: int) -> tuple[str, int]:
    parts: list[str] = []
    start, end = at, len(text)
    while at < end and text[at] not in " \t\r\n;|":
        char = text[at]
        if char == "&" and not (at > start and text[at - 1] in "<>"):
            break
        if char in "'\"":
            part, at = _quoted(text, at)
            parts.append(part)
        elif char in "\\^`" and _CONTINUED.match(text, at):
            break
        elif char == "\\":
            parts.append(text[at + 1 : at + 2])
            at += 2
        else:
            parts.append(char)
            at += 1
    if at == start:  # a continuation inside a word
        at += 1
    return _dashed("".join(parts)), at


def _quoted(text: str, at: int) -> tuple[str, int]:
    """What stands between the quotes that open at ``at``, and the place behind them."""
    quote = text[at]
    if quote == "'":
        close = text.find("'", at + 1)
        if close < 0:
            raise _unclosed(text, at)
        return text[at + 1 : close], close + 1
    found = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL).match(text, at)
    if found is None:
        raise _unclosed(text, at)
    return re.sub(r'\\(["\\$`]|\n)', lambda m: "" if m[1] == "\n" else m[1], found[1]), found.end()


def _unclosed(text: str, at: int) -> CommandError:
    shown = " ".join(text[at : at + 40].split())
    return CommandError(
        f"a quote is not closed: {shown}", where="launch command", hint=f"add the missing {text[at]}"
    )


def _dashed(word: str) -> str:
    """A flag whose two hyphens a word processor has joined."""
    return "--" + word[1:] if word[:1] in "–—" and word[1:2].isalpha() else word
