"""A type hint taken apart without importing it, as vLLM's ``get_type_hints`` (engine/arg_utils.py) does."""

from __future__ import annotations

import ast
import re
from typing import Any

from flag_source import Module, Source, Unknown

_UNIONS = ("Optional", "Union")
_WRAPPERS = ("Annotated", "SkipValidation", "InitVar", "ClassVar", "Required", "SerializeAsAny")
_SEQUENCES = {
    "list": "list",
    "List": "list",
    "Sequence": "list",
    "tuple": "tuple",
    "Tuple": "tuple",
    "set": "set",
    "Set": "set",
}
_PLAIN = {
    "bool": "bool",
    "int": "int",
    "float": "float",
    "str": "str",
    "None": "none",
    "dict": "dict",
    "Dict": "dict",
    "list": "list",
    "tuple": "tuple",
    "set": "set",
}


class Hints:
    """A type hint taken apart, as ``get_type_hints`` of the engine does: (kind, what more is known)."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def of(self, node: ast.expr, module: Module, depth: int = 0) -> list[tuple[str, Any]]:
        if depth > 20:
            return [("other", None)]
        if isinstance(node, ast.Constant):
            if isinstance(node.value, str):
                return self.of(ast.parse(node.value, mode="eval").body, module, depth + 1)
            return [("none", None)]
        if isinstance(node, ast.BinOp):
            return self.of(node.left, module, depth + 1) + self.of(node.right, module, depth + 1)
        if isinstance(node, ast.Subscript):
            return self._generic(node, module, depth)
        name = ast.unparse(node).rpartition(".")[2]
        return [(_PLAIN[name], None)] if name in _PLAIN else self._named(node, module, depth)

    def _generic(self, node: ast.Subscript, module: Module, depth: int) -> list[tuple[str, Any]]:
        name = ast.unparse(node.value).rpartition(".")[2]
        inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if name in _UNIONS:
            found = [hint for each in inner for hint in self.of(each, module, depth + 1)]
            return found + ([("none", None)] if name == "Optional" else [])
        if name in _WRAPPERS:
            return self.of(inner[0], module, depth + 1)
        if name == "Literal":
            return [("literal", self.source.value(node, module))]
        if name in _SEQUENCES:
            return [(_SEQUENCES[name], inner[0])]
        return [("dict" if name in ("dict", "Dict", "Mapping") else "other", None)]

    def _named(self, node: ast.expr, module: Module, depth: int) -> list[tuple[str, Any]]:
        try:
            found, home = self.source.find(ast.unparse(node).rpartition(".")[2], module)
        except Unknown:
            return [("other", None)]
        if isinstance(found, ast.ClassDef):
            return [(_class_kind(found), None)]
        return self.of(found, home, depth + 1) if isinstance(found, ast.expr) else [("other", None)]


def _class_kind(cls: ast.ClassDef) -> str:
    marks = {ast.unparse(d).partition("(")[0].rpartition(".")[2] for d in cls.decorator_list}
    if marks & {"config", "dataclass"}:
        return "dataclass"
    if any("IntEnum" in ast.unparse(base) for base in cls.bases):
        return "int"
    return "dict" if any(re.match(r"[Dd]ict\b", ast.unparse(base)) for base in cls.bases) else "other"
