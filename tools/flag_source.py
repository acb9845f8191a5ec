"""The modules of one unpacked release of an engine, read by their syntax trees: constants, classes, type hints.

Nothing of the release is imported or run. What cannot be told from the text raises :class:`Unknown`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


class Unknown(Exception):
    """A value that only running the code would tell."""


@dataclass(frozen=True)
class Flag:
    """One flag of one release, as its parser takes it. ``type`` is a word of flags.toml; ``old`` are the
    deprecated spellings; ``new`` is what the release itself names as their replacement."""

    name: str
    spellings: tuple[str, ...]
    type: str = "str"
    default: Any = None
    choices: tuple[str, ...] | None = None
    of: str = ""
    old: tuple[str, ...] = ()
    new: str = ""


@dataclass(frozen=True)
class Enum:
    """An enumeration: its members' names and values."""

    members: tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Literals:
    """``Literal[...]`` as a value."""

    values: tuple[Any, ...]


@dataclass
class Module:
    """One module: what each of its top-level names stands for."""

    dotted: str
    tree: ast.Module
    names: dict[str, ast.AST] = field(default_factory=dict)
    imports: dict[str, tuple[str, str]] = field(default_factory=dict)
    grown: dict[str, list[ast.expr]] = field(default_factory=dict)


class Source:
    """A release under ``root`` (the folder that holds the package)."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._modules: dict[str, Module | None] = {}

    def module(self, dotted: str) -> Module | None:
        if dotted not in self._modules:
            self._modules[dotted] = None
            base = self.root / Path(*dotted.split("."))
            for path in (base.with_suffix(".py"), base / "__init__.py"):
                if path.is_file():
                    self._modules[dotted] = self._read(dotted, path)
                    break
        return self._modules[dotted]

    def _read(self, dotted: str, path: Path) -> Module:
        module = Module(dotted, ast.parse(path.read_text(encoding="utf-8")))
        package = dotted if path.name == "__init__.py" else dotted.rpartition(".")[0]
        for statement in _statements(module.tree.body):
            _define(module, statement, package)
        return module

    def find(self, name: str, module: Module, depth: int = 0) -> tuple[ast.AST, Module]:
        """The definition of a name and the module it stands in, imports followed."""
        if name in module.names:
            return module.names[name], module
        if name in module.imports and depth < 8:
            dotted, original = module.imports[name]
            target = self.module(dotted)
            if target is not None:
                return self.find(original, target, depth + 1)
        raise Unknown(name)

    def class_of(self, expression: ast.expr, module: Module) -> tuple[ast.ClassDef, Module]:
        name = ast.unparse(expression).strip("'\"")
        found, home = self.find(name.rpartition(".")[2] if name not in module.names else name, module)
        if not isinstance(found, ast.ClassDef):
            raise Unknown(name)
        return found, home

    def fields(self, cls: ast.ClassDef, module: Module) -> Iterator[tuple[ast.AnnAssign, Module]]:
        """The annotated fields of a class, those of its bases first, as a dataclass has them."""
        found: dict[str, tuple[ast.AnnAssign, Module]] = {}
        for base in cls.bases:
            try:
                parent, home = self.class_of(base, module)
            except Unknown:
                continue
            for each, where in self.fields(parent, home):
                assert isinstance(each.target, ast.Name)
                found[each.target.id] = (each, where)
        for statement in cls.body:
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                found[statement.target.id] = (statement, module)
        yield from found.values()

    def value(
        self, node: ast.AST | None, module: Module, known: Mapping[str, Any] | None = None, depth: int = 0
    ) -> Any:
        """What an expression stands for. Raises Unknown."""
        return Evaluation(self, module, dict(known or {}), depth)(node)


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that run on import; of a TYPE_CHECKING fork the other side, which comes last, wins."""
    for statement in body:
        if isinstance(statement, ast.If):
            yield from _statements(statement.body)
            yield from _statements(statement.orelse)
        elif isinstance(statement, ast.Try):
            yield from _statements(statement.body)
        else:
            yield statement


def _define(module: Module, statement: ast.stmt, package: str) -> None:
    if isinstance(statement, ast.ClassDef | ast.FunctionDef):
        module.names[statement.name] = statement
    elif isinstance(statement, ast.Assign):
        for target in statement.targets:
            if isinstance(target, ast.Name):
                module.names[target.id] = statement.value
    elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name) and statement.value:
        module.names[statement.target.id] = statement.value
    elif isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name):
        module.grown.setdefault(statement.target.id, []).append(statement.value)
    elif isinstance(statement, ast.ImportFrom):
        module.imports.update(imported(statement, package))


def imported(statement: ast.ImportFrom, package: str) -> dict[str, tuple[str, str]]:
    """Name -> (module, its name there)."""
    origin = statement.module or ""
    if statement.level:
        parts = package.split(".")
        base = ".".join(parts[: len(parts) - statement.level + 1])
        origin = f"{base}.{origin}" if origin else base
    return {alias.asname or alias.name: (origin, alias.name) for alias in statement.names}


class Evaluation:
    """Expressions of constants: literals, names of any module, enumerations, the few calls that lists are
    built with."""

    def __init__(self, source: Source, module: Module, known: dict[str, Any], depth: int) -> None:
        self.source, self.module, self.known, self.depth = source, module, known, depth
        if depth > 25:
            raise Unknown("too deep")

    def __call__(self, node: ast.AST | None) -> Any:
        method = getattr(self, f"_{type(node).__name__.lower()}", None)
        if method is None:
            raise Unknown(ast.unparse(node) if isinstance(node, ast.AST) else "nothing")
        return method(node)

    def _there(self, node: ast.AST, module: Module) -> Any:
        return self.source.value(node, module, None, self.depth + 1)

    def _constant(self, node: ast.Constant) -> Any:
        return node.value

    def _list(self, node: ast.List | ast.Tuple | ast.Set) -> list[Any]:
        found: list[Any] = []
        for item in node.elts:
            found += list(self(item.value)) if isinstance(item, ast.Starred) else [self(item)]
        return found

    _tuple = _set = _list

    def _dict(self, node: ast.Dict) -> dict[Any, Any]:
        """Keys alone matter where a value is code."""
        found: dict[Any, Any] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            if key is None:
                found.update(self(value))
                continue
            try:
                found[self(key)] = self(value)
            except Unknown:
                found[self(key)] = None
        return found

    def _name(self, node: ast.Name) -> Any:
        if node.id in self.known:
            return self.known[node.id]
        found, home = self.source.find(node.id, self.module)
        if isinstance(found, ast.ClassDef):
            return self._class(found, home)
        value = self._there(found, home)
        for more in home.grown.get(node.id, []):
            value = _joined(value, self._there(more, home))
        return value

    def _class(self, cls: ast.ClassDef, home: Module) -> Enum:
        if not any("Enum" in ast.unparse(base) for base in cls.bases):
            raise Unknown(cls.name)
        members = []
        for statement in cls.body:
            if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                name = statement.targets[0].id
                if ast.unparse(statement.value).split("(")[0] in ("auto", "enum.auto"):
                    members.append((name, name.lower()))
                elif not name.startswith("_"):
                    members.append((name, self._there(statement.value, home)))
        return Enum(tuple(members))

    def _attribute(self, node: ast.Attribute) -> Any:
        if isinstance(node.value, ast.Name) and node.value.id not in self.known:
            cls, home = self.source.class_of(node.value, self.module)
            return self._member(cls, home, node.attr)
        owner = self(node.value)
        if isinstance(owner, tuple) and len(owner) == 2 and node.attr in ("name", "value"):
            return owner[node.attr == "value"]
        raise Unknown(ast.unparse(node))

    def _member(self, cls: ast.ClassDef, home: Module, name: str) -> Any:
        for statement in cls.body:
            targets = (
                statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
            )
            if any(isinstance(t, ast.Name) and t.id == name for t in targets):
                value = getattr(statement, "value", None)
                found = self._there(value, home)
                return (name, found) if any("Enum" in ast.unparse(b) for b in cls.bases) else found
        for base in cls.bases:
            try:
                parent, where = self.source.class_of(base, home)
            except Unknown:
                continue
            return self._member(parent, where, name)
        raise Unknown(f"{cls.name}.{name}")

    def _binop(self, node: ast.BinOp) -> Any:
        left, right = self(node.left), self(node.right)
        if isinstance(node.op, ast.Add | ast.BitOr):
            return _joined(left, right)
        numbers = isinstance(left, int | float) and isinstance(right, int | float)
        if numbers and isinstance(node.op, ast.Mult):
            return left * right
        if isinstance(left, int) and isinstance(right, int) and 0 <= right < 64:
            if isinstance(node.op, ast.LShift):
                return left << right
            if isinstance(node.op, ast.Pow):
                return left**right
        raise Unknown(ast.unparse(node))

    def _unaryop(self, node: ast.UnaryOp) -> Any:
        value = self(node.operand)
        if isinstance(node.op, ast.USub) and isinstance(value, int | float):
            return -value
        if isinstance(node.op, ast.Not) and isinstance(value, bool):
            return not value
        raise Unknown(ast.unparse(node))

    def _subscript(self, node: ast.Subscript) -> Any:
        name = ast.unparse(node.value).rpartition(".")[2]
        if name == "Literal":
            inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            values = [self(item) for item in inner]
            return Literals(
                tuple(v for one in values for v in (one.values if isinstance(one, Literals) else [one]))
            )
        owner, key = self(node.value), self(node.slice)
        try:
            return owner[key]
        except (TypeError, KeyError, IndexError):
            raise Unknown(ast.unparse(node)) from None

    def _listcomp(self, node: ast.ListComp | ast.GeneratorExp | ast.SetComp) -> list[Any]:
        [loop] = node.generators
        if loop.ifs or not isinstance(loop.target, ast.Name):
            raise Unknown(ast.unparse(node))
        items = _items(self(loop.iter))
        return [
            self.source.value(node.elt, self.module, {**self.known, loop.target.id: item}, self.depth + 1)
            for item in items
        ]

    _generatorexp = _setcomp = _listcomp

    def _call(self, node: ast.Call) -> Any:
        name = ast.unparse(node.func)
        short = name.rpartition(".")[2]
        if short in ("list", "tuple", "set", "sorted", "frozenset", "get_args", "dict"):
            return _items(self(node.args[0])) if node.args else []
        if short in ("keys", "lower", "upper") and isinstance(node.func, ast.Attribute):
            owner = self(node.func.value)
            return _items(owner) if short == "keys" else getattr(str(owner), short)()
        if short in ("field", "Field"):
            return self._field(node)
        if short == "get_field" and len(node.args) >= 2:
            cls, home = self.source.class_of(node.args[0], self.module)
            return self._member(cls, home, self(node.args[1]))
        found, home = self.source.find(name, self.module)
        if isinstance(found, ast.FunctionDef):
            return self._returned(found, home)
        raise Unknown(name)

    def _field(self, node: ast.Call) -> Any:
        for keyword in node.keywords:
            if keyword.arg == "default":
                return self(keyword.value)
            if keyword.arg == "default_factory":
                if isinstance(keyword.value, ast.Lambda):
                    return self(keyword.value.body)
                if ast.unparse(keyword.value) in ("list", "dict", "set"):
                    return []
                raise Unknown(ast.unparse(node))
        if node.args:
            return self(node.args[0])
        raise Unknown(ast.unparse(node))

    def _returned(self, function: ast.FunctionDef, home: Module) -> Any:
        """What a small function returns at its end: imports, assignments, one last return."""
        local = Module(home.dotted, home.tree, dict(home.names), dict(home.imports), home.grown)
        for statement in function.body:
            _define(local, statement, home.dotted.rpartition(".")[0])
        last = function.body[-1]
        if not isinstance(last, ast.Return):
            raise Unknown(function.name)
        return self._there(last.value, local) if last.value else None


def _items(value: Any) -> list[Any]:
    if isinstance(value, Literals):
        return list(value.values)
    if isinstance(value, Enum):
        return list(value.members)
    if isinstance(value, list | tuple | dict | set):
        return list(value)
    raise Unknown(repr(value))


def _joined(left: Any, right: Any) -> Any:
    if isinstance(left, Literals) and isinstance(right, Literals):
        return Literals(left.values + right.values)
    if isinstance(left, dict) and isinstance(right, dict):
        return {**left, **right}
    if isinstance(left, list) and isinstance(right, list | dict):
        return [*left, *right]
    if isinstance(left, str) and isinstance(right, str):
        return left + right
    if isinstance(left, int | float) and isinstance(right, int | float):
        return left + right
    raise Unknown("+")


def as_text(values: Any) -> tuple[str, ...] | None:
    """Choices as words of a command line; the value of an enumeration's member."""
    words = [item[1] if isinstance(item, tuple) else item for item in _items(values)]
    return tuple(dict.fromkeys(str(word) for word in words if word is not None)) or None
