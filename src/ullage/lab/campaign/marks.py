"""YAML to plain data, with the line of every key: so that an error can name the place."""

from __future__ import annotations

import re
from collections.abc import Callable
from difflib import get_close_matches
from typing import Any, TypeVar

import msgspec
import yaml  # type: ignore[import-untyped]

from ullage.core.errors import InputError
from ullage.engines.runtime import yaml_text

T = TypeVar("T")
Path = tuple[str | int, ...]
_STEP = re.compile(r"\.([A-Za-z_]\w*)|\[(\d+|\.\.\.)\]|\[(?:\"|')([^\]]*)(?:\"|')\]")
_AT = re.compile(r"(?P<what>.*?)(?: - at (?:`key` in )?`(?P<path>\$[^`]*)`)?", re.DOTALL)
_TYPES = re.compile(
    r"`((?:object|array|str|int|float|bool|null)(?: \| (?:object|array|str|int|float|bool|null))*)`"
)
_WORDS = {
    "object": "a mapping", "array": "a list", "str": "text", "int": "a whole number", "float": "a number",
    "bool": "true or false", "null": "nothing",
}  # fmt: skip
_LINE = re.compile(r" in line (\d+)$")
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<key>[^`]*)`")
_MISSING = re.compile(r"Object missing required field `(?P<key>[^`]*)`")


class Marked(msgspec.Struct, frozen=True):
    """The data of one document; ``lines`` has the line (from 1) of each path of keys and indices."""

    where: str
    data: Any
    lines: dict[Path, int]

    def line(self, path: Path) -> int:
        """The line of ``path``, or of the nearest thing around it that has one."""
        for end in range(len(path), -1, -1):
            if path[:end] in self.lines:
                return self.lines[path[:end]]
        return 1

    def error(self, what: str, path: Path = (), hint: str | None = None) -> InputError:
        """An error that names file, line and key."""
        key = spelled(path)
        return InputError(f"{key}: {what}" if key else what, where=f"{self.where}:{self.line(path)}", hint=hint)


def spelled(path: Path) -> str:
    """``path`` as people write it: "approaches[1].flags.tp"."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return text.removeprefix(".")[:200]


def read(text: str, where: str) -> Marked:
    """The document in ``text``. Raises InputError for anything but modest, valid YAML that is a mapping: tags
    that make objects, aliases that unfold beyond measure, keys given twice."""
    try:
        data = yaml_text.load(text, where)
    except InputError as error:
        line = _LINE.search(error.what)
        if line is None:
            raise
        raise InputError(error.what[: line.start()], where=f"{where}:{line[1]}", hint=error.hint) from None
    if not isinstance(data, dict):
        raise InputError("must hold a mapping, NAME: VALUE", where=f"{where}:1",
                         hint="ullage campaign init -- LAUNCH COMMAND writes one")  # fmt: skip
    lines: dict[Path, int] = {(): 1}
    _walk(yaml.compose(text, Loader=yaml.SafeLoader), (), lines, where)
    return Marked(where, data, lines)


def _walk(node: Any, path: Path, lines: dict[Path, int], where: str) -> None:
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            name, line = str(key.value), key.start_mark.line + 1
            if name in seen:
                raise InputError(f"{spelled((*path, name))}: is given twice", where=f"{where}:{line}")
            seen.add(name)
            lines.setdefault((*path, name), line)
            _walk(value, (*path, name), lines, where)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            lines.setdefault((*path, index), value.start_mark.line + 1)
            _walk(value, (*path, index), lines, where)
    elif any(char == "\0" or "\ud800" <= char <= "\udfff" for char in node.value):
        line = node.start_mark.line + 1
        raise InputError(f"{spelled(path)}: holds a character that no command can", where=f"{where}:{line}",
                         hint="no NUL, no half of a surrogate pair")  # fmt: skip


def convert(marked: Marked, kind: type[T]) -> T:
    """The data as ``kind``; raises InputError that names line, key and what was expected."""
    try:
        return msgspec.convert(marked.data, type=kind, strict=True)
    except msgspec.ValidationError as error:
        raise _placed(marked, str(error), kind) from None


def _placed(marked: Marked, text: str, kind: type) -> InputError:
    found = _AT.fullmatch(text)
    what, path = (found["what"], _steps(found["path"] or "$", marked, kind, text)) if found else (text, ())
    if unknown := _UNKNOWN.fullmatch(what):
        key = unknown["key"]
        known = _fields(kind, path)
        near = get_close_matches(key, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known here: {', '.join(known)}" if known else None
        return marked.error("is no key of a campaign file", (*path, key), hint)
    if missing := _MISSING.fullmatch(what):
        return marked.error("is missing", (*path, missing["key"]), _words(kind, path, missing["key"]))
    if what.startswith("Invalid enum value") and (choices := _choices(kind, path)):
        return marked.error(f"{what[8:120]} is none of: {', '.join(choices)}".removeprefix("enum "), path)
    return marked.error(_of_yaml(what[:1].lower() + what[1:200]), path)


def _of_yaml(what: str) -> str:
    """The types of JSON that msgspec names, as who writes YAML calls them."""
    return _TYPES.sub(lambda found: " or ".join(_WORDS[word] for word in found[1].split(" | ")), what)


def _steps(text: str, marked: Marked, kind: type, whole: str) -> Path:
    """The path that msgspec names; the key behind "[...]", any key of a mapping, is looked for."""
    steps: list[str | int] = []
    for name, index, quoted in _STEP.findall(text):
        step = _culprit(marked.data, tuple(steps), kind, whole) if index == "..." else None
        if index == "..." and step is None:
            break
        steps.append(step if step is not None else int(index) if index else name or quoted)
    return tuple(steps)


def _culprit(data: Any, path: Path, kind: type, whole: str) -> str | None:
    """The key of the mapping at ``path`` that alone gives the error ``whole``."""
    inner = data
    for step in path:
        inner = inner[step]
    for key in inner if isinstance(inner, dict) else ():
        try:
            msgspec.convert(_with(data, path, {key: inner[key]}), type=kind, strict=True)
        except msgspec.ValidationError as error:
            if str(error) == whole:
                return str(key)
    return None


def _with(data: Any, path: Path, value: Any) -> Any:
    """``data`` with ``value`` at ``path``."""
    if not path:
        return value
    if isinstance(data, list):
        return [_with(each, path[1:], value) if i == path[0] else each for i, each in enumerate(data)]
    return {key: _with(each, path[1:], value) if key == path[0] else each for key, each in data.items()}


def _choices(kind: Any, path: Path) -> list[str]:
    """The words that may stand at ``path``."""
    from typing import get_args, get_type_hints

    found = _struct_at(kind, path[:-1])
    hint = get_type_hints(found).get(str(path[-1])) if found is not None and path else None
    return [str(choice) for choice in _literals(hint, get_args)]


def _literals(hint: Any, args: Callable[[Any], tuple[Any, ...]]) -> list[str]:
    return [each for arg in args(hint) for each in ([arg] if isinstance(arg, str) else _literals(arg, args))]


def _fields(kind: Any, path: Path) -> list[str]:
    found = _struct_at(kind, path)
    return [field.encode_name for field in msgspec.structs.fields(found)] if found else []


def _words(kind: Any, path: Path, key: str) -> str | None:
    found = _struct_at(kind, path)
    words: dict[str, str] = getattr(found, "WORDS", {}) if found else {}
    return words.get(key)


def _struct_at(kind: Any, path: Path) -> Any:
    """The struct type that stands at ``path`` in ``kind``; None where none does."""
    from typing import get_args, get_origin, get_type_hints

    def structs(each: Any) -> list[Any]:
        if isinstance(each, type) and issubclass(each, msgspec.Struct):
            return [each]
        return [found for arg in get_args(each) for found in structs(arg)]

    current = kind
    for step in path:
        if isinstance(step, int):
            continue
        if get_origin(current) is dict:  # a key of a mapping
            current = get_args(current)[1]
            continue
        inner = structs(current)
        if not inner:
            return None
        current = get_type_hints(inner[0]).get(step)
    inner = structs(current)
    return inner[0] if inner else None
