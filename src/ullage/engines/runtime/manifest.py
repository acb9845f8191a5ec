"""Compose files and Kubernetes manifests, whole or in part: the container that starts a server, as the command
that ``docker run`` would need for it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ullage.core.errors import CommandError, InputError
from ullage.core.patterns import lazy
from ullage.engines.runtime.yaml_text import load

_KEYS = lazy(
    r"^[ \t]*(?:- +)?[\"']?"
    r"(?:command|args|entrypoint|image|services|containers|apiVersion|environment|env)[\"']?[ \t]*:",
    re.MULTILINE,
)
_SEPARATOR = lazy(r"^---.*$", re.MULTILINE)
_WORTH = lazy(r"sglang|vllm|--model", re.IGNORECASE)
_REFERENCE = lazy(r"\$\((\w+)\)")
MAX_CONTAINERS = 200

#: splits a string of the manifest as a shell does
Split = Callable[[str], list[str]]


def is_manifest(text: str) -> bool:
    """True if ``text`` looks like YAML with a container in it rather than a command."""
    found = _KEYS.search(text)
    before = text[: found.start()] if found else ""
    return (
        found is not None
        and re.search(r"^\s*(?:docker|podman|python|vllm|sglang)\b", before, re.MULTILINE) is None
    )


def containers(text: str, split: Split) -> list[list[str]]:
    """The commands of every container in ``text``, each in the form of ``docker run``. Raises CommandError."""
    found: list[list[str]] = []
    try:
        for document in _documents(text):
            for container in _containers(load(document, "manifest")):
                words = _command(container, split)
                found += [words] if words else []
                if len(found) > MAX_CONTAINERS:
                    raise CommandError("a manifest of too many containers", hint="give the one that fails")
    except InputError as error:
        raise CommandError(error.what, where=error.where, hint=error.hint) from None
    return found


def _documents(text: str) -> Iterator[str]:
    """Those documents that may hold a server; a fragment is moved to the left edge first."""
    parts = _SEPARATOR.split(text)
    for part in [part for part in parts if _WORTH.search(part)] or parts:
        lines = [line.expandtabs(2) for line in part.splitlines() if not line.lstrip().startswith("#")]
        indents = [len(line) - len(line.lstrip()) for line in lines if line.strip()]
        edge = min(indents, default=0)
        yield "\n".join(line[edge:] for line in lines)


def _containers(data: Any, depth: int = 0) -> Iterator[dict[str, Any]]:
    """Mappings that say what to run."""
    if depth > 40:
        return
    if isinstance(data, dict):
        keys = {str(key) for key in data}
        if keys & {"command", "args", "entrypoint"} or ("image" in keys and isinstance(data["image"], str)):
            yield {str(key): value for key, value in data.items()}
        for value in data.values():
            yield from _containers(value, depth + 1)
    elif isinstance(data, list):
        for value in data:
            yield from _containers(value, depth + 1)


def _command(container: dict[str, Any], split: Split) -> list[str]:
    """ "docker run -e A=1 IMAGE words", or "env A=1 words" where no image is named."""
    variables = dict(_variables(container.get("environment", container.get("env"))))
    parts = [_words(container.get(key), split) for key in ("entrypoint", "command", "args")]
    words = [_REFERENCE.sub(lambda m: variables.get(m[1], m[0]), word) for part in parts for word in part]
    image = container.get("image")
    if isinstance(image, str) and image:
        head = ["docker", "run"]
        for name, value in variables.items():
            head += ["-e", f"{name}={value}"]
        return [*head, image, *words]
    return ["env", *(f"{name}={value}" for name, value in variables.items()), *words] if words else []


def _words(value: Any, split: Split) -> list[str]:
    """The words of a command: a list's items each one word, a string split as a shell would."""
    if isinstance(value, str):
        return split(value.replace("$$", "$"))
    if isinstance(value, list):
        items = [_text(item) for item in value if not isinstance(item, dict | list)]
        return [word for item in items for word in _item(item, split)]
    return []


def _item(item: str, split: Split) -> list[str]:
    """One item of a list; "--tp 8" in one item is two words to its writer; the engine refuses it."""
    flagged = re.fullmatch(r"(--?[\w.-]+)\s+(\S.*)", item)
    if flagged and "\n" not in item:
        return split(item)
    return [item.strip()] if item.strip() else []


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


def _variables(value: Any) -> Iterator[tuple[str, str]]:
    """Compose: {A: 1} or ["A=1"]; Kubernetes: [{name: A, value: "1"}]."""
    if isinstance(value, dict):
        yield from ((str(name), _text(item)) for name, item in value.items())
    for item in value if isinstance(value, list) else ():
        if isinstance(item, dict) and isinstance(item.get("name"), str) and "value" in item:
            yield item["name"], _text(item["value"])
        elif isinstance(item, str) and "=" in item:
            name, _, text = item.partition("=")
            yield name, text


def chosen(found: Sequence[list[str]], owns: Callable[[Sequence[str]], bool]) -> list[str]:
    """The container that starts the engine's server, else the first one with flags. Raises CommandError."""
    served = next((w for w in found if owns(w) or any(" " in x and owns(x.split()) for x in w)), None)
    words = served or next((words for words in found if any(word.startswith("--") for word in words)), None)
    if words is None:
        raise CommandError("no container with a command for a server", where="manifest")
    return words
