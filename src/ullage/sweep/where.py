"""Conditions on rows: ``kv_tokens >= 100_000 and tp <= 4``, ``gpu == "8x H100"``, ``tp in (2, 4)``.

The text is read by Python's own parser; only comparisons, and/or/not, arithmetic, numbers, quoted words and
names of columns are taken, and nothing of it is ever run.
"""

from __future__ import annotations

import ast
import operator
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ullage.core.errors import InputError
from ullage.sweep.table import Table

LONGEST = 1000
#: levels of brackets and operators
DEEPEST = 50
_ARITHMETIC: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: np.add, ast.Sub: np.subtract, ast.Mult: np.multiply, ast.Div: np.true_divide,
    ast.FloorDiv: np.floor_divide, ast.Mod: np.mod,
}  # fmt: skip
_COMPARE: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}  # fmt: skip


class Where:
    """One condition. Raises InputError where its text is none."""

    def __init__(self, text: str) -> None:
        self.text = text
        if len(text) > LONGEST:
            raise self.wrong(f"is longer than {LONGEST} characters")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.tree = ast.parse(text.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise self.wrong("is no condition", 'such as "kv_tokens >= 100000 and num_gpus <= 4"') from error

    def wrong(self, what: str, hint: str | None = None) -> InputError:
        return InputError(what, where=f"--where {self.text[:60]}", hint=hint)

    def holds(self, table: Table) -> NDArray[Any]:
        """Where the condition is true, a mask of the rows. Raises InputError for an unknown column."""
        with np.errstate(all="ignore"):
            found = self._value(self.tree, table, 0)
        if isinstance(found, str) or np.asarray(found).dtype != bool:
            raise self.wrong("is a figure, not a condition", "compare it with something")
        return np.broadcast_to(found, (len(table),))

    def _value(self, node: ast.AST, table: Table, depth: int) -> Any:
        """A mask, numbers, or a word."""
        if depth > DEEPEST:
            raise self.wrong("has too many brackets")
        match node:
            case ast.Constant(value=bool() | int() | float() | str() as value):
                return value if not isinstance(value, int) or abs(value) < 1 << 62 else float("inf")
            case ast.Name() | ast.Attribute():
                return self._column(_dotted(node), table)
            case ast.BoolOp(op=op, values=values):
                parts = [np.asarray(self._truth(part, table, depth)) for part in values]
                join = np.logical_and if isinstance(op, ast.And) else np.logical_or
                return join.reduce(np.broadcast_arrays(*parts))
            case ast.UnaryOp(op=ast.Not(), operand=part):
                return np.logical_not(self._truth(part, table, depth))
            case ast.UnaryOp(op=ast.USub(), operand=part):
                return -self._number(part, table, depth)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
                a, b = self._number(left, table, depth), self._number(right, table, depth)
                return _ARITHMETIC[type(op)](a, b)
            case ast.Compare(left=left, ops=ops, comparators=others):
                return self._compared(left, ops, others, table, depth)
        raise self.wrong("holds something that is no part of a condition")

    def _truth(self, node: ast.AST, table: Table, depth: int) -> Any:
        found = self._value(node, table, depth + 1)
        if isinstance(found, str) or np.asarray(found).dtype != bool:
            raise self.wrong("joins a figure with and, or, not", "compare it with something first")
        return found

    def _number(self, node: ast.AST, table: Table, depth: int) -> Any:
        found = self._value(node, table, depth + 1)
        if isinstance(found, str | _Words):
            raise self.wrong("calculates with words")
        return np.asarray(found, dtype=float)

    def _compared(
        self, left: ast.expr, ops: Sequence[ast.cmpop], others: Sequence[ast.expr], table: Table, depth: int
    ) -> Any:
        found: Any = True
        for op, right in zip(ops, others, strict=True):
            a = self._value(left, table, depth + 1)
            if isinstance(op, ast.In | ast.NotIn) and isinstance(right, ast.Tuple | ast.List):
                within: Any = np.asarray(False)
                for item in right.elts:
                    within = within | self._one(ast.Eq, a, self._value(item, table, depth + 1))
                one = ~within if isinstance(op, ast.NotIn) else within
            elif type(op) in _COMPARE:
                one = self._one(type(op), a, self._value(right, table, depth + 1))
            else:
                raise self.wrong("compares in a way that is not known", "in (…), <, <=, ==, !=, >, >=")
            found, left = np.logical_and(found, one), right
        return found

    def _one(self, op: type[ast.AST], a: Any, b: Any) -> Any:
        if isinstance(b, _Words) and isinstance(a, str):
            a, b = b, a
        if isinstance(a, _Words):
            if not isinstance(b, str | bool) or op not in (ast.Eq, ast.NotEq):
                raise self.wrong(f"column {a.name} holds words", f'write {a.name} == "…"')
            equal = a.table.is_word(a.name, str(b))
            return equal if op is ast.Eq else ~equal
        if isinstance(a, str) or isinstance(b, str | _Words):
            raise self.wrong("compares a number with a word")
        return np.asarray(_COMPARE[op](a, b))

    def _column(self, name: str, table: Table) -> Any:
        if name not in table.columns:
            raise self.wrong(f"there is no column {name}", f"there are {', '.join(table.columns)}")
        return _Words(name, table) if name in table.words else table.columns[name]


class _Words:
    def __init__(self, name: str, table: Table) -> None:
        self.name = name
        self.table = table


def _dotted(node: ast.AST) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id if isinstance(node, ast.Name) else "?", *reversed(parts)])
