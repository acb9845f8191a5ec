"""YAML of strangers: bounded in size, depth and what its aliases unfold to, plain data only."""

from __future__ import annotations

import re
from typing import Any

from ullage.core.errors import InputError
from ullage.core.patterns import lazy

MAX_YAML = 128 << 10
MAX_DEPTH = 40
MAX_NODES = 20_000
_INLINE = lazy(rf"(?:[-?][ \t]+){{{MAX_DEPTH}}}")


def load(text: str, where: str) -> Any:
    """The first document in ``text``. Raises InputError for anything but modest, valid YAML."""
    if len(text) > MAX_YAML:
        raise InputError(
            f"YAML of more than {MAX_YAML >> 10} KiB", where=where, hint="give the one document alone"
        )
    if _INLINE.search(text) or _flow_depth(text) > MAX_DEPTH:
        raise InputError("YAML nested too deep", where=where)
    import yaml  # type: ignore[import-untyped]

    try:
        loader = yaml.SafeLoader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return None
            _bounded(node, where)
            return loader.construct_document(node)
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        raise InputError(f"not YAML: {_said(error)}", where=where) from None
    except (RecursionError, ValueError, TypeError, OverflowError):
        raise InputError("not YAML that can be read", where=where) from None


def _said(error: Exception) -> str:
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    return f"{problem} in line {mark.line + 1}" if mark is not None and problem else "its form is broken"


def _flow_depth(text: str) -> int:
    """The deepest nesting of brackets, those in strings counted too."""
    depth = deepest = 0
    for char in re.findall(r"[\[\]{}]", text):
        depth = depth + 1 if char in "[{" else max(0, depth - 1)
        deepest = max(deepest, depth)
    return deepest


def _bounded(node: Any, where: str) -> None:
    """Refuse a document whose aliases unfold to more than MAX_NODES, or to themselves."""
    sizes: dict[int, int] = {}
    open_nodes: set[int] = set()

    def size(each: Any, depth: int) -> int:
        if id(each) in open_nodes or depth > 4 * MAX_DEPTH:
            raise InputError("YAML that holds itself, or nested too deep", where=where)
        if id(each) not in sizes:
            open_nodes.add(id(each))
            value = each.value if isinstance(each.value, list) else []
            parts = [part for item in value for part in (item if isinstance(item, tuple) else (item,))]
            sizes[id(each)] = 1 + sum(size(part, depth + 1) for part in parts)
            open_nodes.discard(id(each))
        if sizes[id(each)] > MAX_NODES:
            raise InputError(f"YAML that unfolds to more than {MAX_NODES} values", where=where)
        return sizes[id(each)]

    size(node, 0)
