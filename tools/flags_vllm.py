"""The flags of one vLLM release: ``EngineArgs.add_cli_args`` and the server's ``make_arg_parser``. From 0.8 on the
engine derives most of them from the type hints of its config classes (``get_kwargs``); the same is done here."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from flag_hints import Hints
from flag_source import Enum, Flag, Literals, Module, Source, Unknown, as_text, imported

_ENGINE = "vllm.engine.arg_utils"
_SERVERS = (
    "vllm.entrypoints.openai.cli_args", "vllm.entrypoints.launchers.cli_args", "vllm.entrypoints.common.cli_args",
)  # fmt: skip
_COMMANDS = ("vllm.entrypoints.cli.serve", "vllm.scripts")
_FUNCTIONS = (
    "add_cli_args",
    "make_arg_parser",
    "_customize_cli_kwargs",
    "_async_engine_args_parser",
    "subparser_init",
    "main",
)
_INSTEAD = re.compile(r"(?:[Uu]se|in favou?r of|[Pp]refer) [`'\"]*(--[a-z][\w-]*)")


@dataclass(frozen=True)
class Keywords:
    """What the engine would give ``add_argument`` for a field."""

    type: str = "str"
    default: Any = None
    choices: tuple[str, ...] | None = None


@dataclass
class Scope:
    """What a function that adds flags knows: config class by variable, and changes to single keywords."""

    classes: dict[str, tuple[ast.ClassDef, Module]]
    changed: dict[tuple[str, str], dict[str, ast.AST | None]]
    fields: dict[str, tuple[str, str]]

    def field(self, node: ast.expr) -> tuple[str, str] | None:
        """(variable, field) of ``variable["field"]``, or of a name that stands for it."""
        if isinstance(node, ast.Name):
            return self.fields.get(node.id)
        if (
            isinstance(node, ast.Subscript)
            and isinstance(node.value, ast.Name)
            and isinstance(node.slice, ast.Constant)
        ):
            known = node.value.id in self.classes or node.value.id == "frontend_kwargs"
            return (node.value.id, str(node.slice.value)) if known else None
        return None

    def place(self, target: ast.expr) -> tuple[str, str, str] | None:
        """(variable, field, keyword) of ``variable["field"]["keyword"]``."""
        if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
            inside = self.field(target.value)
            return (*inside, str(target.slice.value)) if inside is not None else None
        return None


class Release:
    """The engine's parser of one release, as far as its text tells it."""

    def __init__(self, source: Source) -> None:
        self.source = source
        found = source.module(_ENGINE)
        if found is None:
            raise FileNotFoundError(f"{source.root}/vllm/engine/arg_utils.py")
        self.engine = found
        text = ast.unparse(found.tree)
        self.open_literals = "metavar' if contains_type(type_hints, str)" in text
        self.optional_strings = "{bool, str, type(None)}" in text
        whole = re.search(
            r"contains_type\(type_hints, int\)(.*?)contains_type\(type_hints, float\)", text, re.DOTALL
        )
        sized = whole is not None and "human_readable_int" in whole[1]
        self.human = (
            set(re.findall(r"'(max_\w+|kv_\w+|safetensors_\w+)'", whole[1])) if whole and sized else set()
        )
        self.human |= {"max_model_len"} if self.human else set()
        self.fields = {
            node.target.id: (node, home)
            for cls in ("EngineArgs", "AsyncEngineArgs")
            for node, home in self._fields_of(cls)
            if isinstance(node.target, ast.Name)
        }

    def _fields_of(self, name: str) -> Iterator[tuple[ast.AnnAssign, Module]]:
        try:
            yield from self.source.fields(*self.source.class_of(ast.Name(name), self.engine))
        except Unknown:
            return

    def flags(self) -> list[Flag]:
        found: dict[str, Flag] = {}
        if not any(self.source.module(dotted) for dotted in _SERVERS):
            raise FileNotFoundError(f"{self.source.root}: no module of {', '.join(_SERVERS)}")
        for dotted in (*_SERVERS, *_COMMANDS, _ENGINE):
            module = self.source.module(dotted)
            if module is not None:
                for flag in self._of_module(module):
                    _add(found, flag)
        return list(found.values())

    def _of_module(self, module: Module) -> Iterator[Flag]:
        looped: dict[str, tuple[ast.ClassDef, Module]] = {}
        changed: dict[tuple[str, str], dict[str, ast.AST | None]] = {}
        for function in ast.walk(module.tree):
            if isinstance(function, ast.FunctionDef) and function.name in _FUNCTIONS:
                scope = Scope({}, changed, {})
                for node in sorted(
                    (n for n in ast.walk(function) if hasattr(n, "lineno")), key=lambda n: n.lineno
                ):
                    self._learn(module, node, scope)
                    if isinstance(node, ast.For):
                        yield from self._of_loop(module, node)
                    if isinstance(node, ast.Call) and _adds(node, module):
                        flag = self._of_call(module, node, scope)
                        if flag is not None:
                            yield flag
                        elif any(isinstance(a, ast.JoinedStr | ast.Starred) for a in node.args):
                            looped.update({name: cls for name, cls in scope.classes.items() if "front" in name})
        for variable, (cls, home) in looped.items():
            yield from self._looped(module, variable, cls, home, changed)

    def _of_loop(self, module: Module, loop: ast.For) -> Iterator[Flag]:
        """``for arg, type in [("--a", str), ..]: add_argument(arg, type=type, deprecated=True)``."""
        if not (isinstance(loop.target, ast.Tuple) and isinstance(loop.iter, ast.List)):
            return
        old = any(isinstance(n, ast.keyword) and n.arg == "deprecated" for n in ast.walk(loop))
        for item in loop.iter.elts:
            spelling = self._quiet(item.elts[0], module) if isinstance(item, ast.Tuple) else None
            if isinstance(spelling, str) and spelling.startswith("--"):
                yield Flag(spelling[2:].replace("-", "_"), (spelling,), old=(spelling,) if old else ())

    def _learn(self, module: Module, node: ast.AST, scope: Scope) -> None:
        """``x = get_kwargs(SomeConfig)``; ``x["field"]["choices"] = ..``; ``del x["field"]["nargs"]``."""
        if isinstance(node, ast.ImportFrom):
            module.imports.update(imported(node, module.dotted.rpartition(".")[0]))
        elif isinstance(node, ast.Assign | ast.AugAssign):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            call = node.value
            if (
                isinstance(call, ast.Call)
                and ast.unparse(call.func) == "get_kwargs"
                and isinstance(target, ast.Name)
            ):
                name = ast.unparse(call.args[0])
                scope.classes[target.id] = self.source.class_of(
                    ast.Name("FrontendArgs") if name == "cls" else call.args[0], module
                )
            if isinstance(call, ast.Subscript) and ast.unparse(call).startswith("get_kwargs("):
                assert isinstance(call.value, ast.Call) and isinstance(target, ast.Name)
                key = str(self._quiet(call.slice, module))
                scope.classes[target.id] = self.source.class_of(call.value.args[0], module)
                scope.fields[target.id] = (target.id, key)
            elif isinstance(target, ast.Name) and (inside := scope.field(call)) is not None:
                scope.fields[target.id] = inside
            place = scope.place(target)
            if place is not None:
                value = call if isinstance(node, ast.Assign) else None
                scope.changed.setdefault(place[:2], {})[place[2]] = value
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "remove" and len(node.args) == 1:
            assert isinstance(node.func, ast.Attribute)
            if (place := scope.place(node.func.value)) is not None:
                scope.changed.setdefault(place[:2], {})["removed"] = node.args[0]
        elif isinstance(node, ast.Delete):
            for target in node.targets:
                if (place := scope.place(target)) is not None:
                    scope.changed.setdefault(place[:2], {})[place[2]] = ast.Constant(None)

    def _looped(
        self, module: Module, variable: str, cls: ast.ClassDef, home: Module,
        changed: dict[tuple[str, str], dict[str, ast.AST | None]],
    ) -> Iterator[Flag]:  # fmt: skip
        for node, where in self.source.fields(cls, home):
            assert isinstance(node.target, ast.Name)
            name = node.target.id
            keywords = self._of_field(node, where)
            for key in ((variable, name), ("frontend_kwargs", name)):
                keywords = self._changed(module, keywords, changed.get(key, {}))
            yield Flag(
                name, ("--" + name.replace("_", "-"),), keywords.type, keywords.default, keywords.choices
            )

    def _of_call(self, module: Module, call: ast.Call, scope: Scope) -> Flag | None:
        spellings = tuple(
            a.value for a in call.args
            if isinstance(a, ast.Constant) and isinstance(a.value, str) and a.value.startswith("-")
        )  # fmt: skip
        if not any(each.startswith("--") for each in spellings):
            return None
        words = {word.arg: word.value for word in call.keywords if word.arg}
        dest = self._quiet(words.get("dest"), module)
        name = dest or next(s for s in spellings if s.startswith("--"))[2:].replace("-", "_")
        keywords = self._derived(call, scope, module)
        if keywords is None:
            keywords = Keywords(self._kind(words, name), self._default(words.get("default"), module, name))
        elif "default" in words:
            keywords = replace(keywords, default=self._default(words["default"], module, name))
        if "choices" in words:
            keywords = replace(keywords, choices=self._choices(words["choices"], module))
        text = (
            " ".join(
                n.value
                for n in ast.walk(words["help"])
                if isinstance(n, ast.Constant) and isinstance(n.value, str)
            )
            if "help" in words
            else ""
        )
        old = bool(self._quiet(words.get("deprecated"), module)) or text.lower().startswith(
            ("[deprecated", "deprecated")
        )
        instead = [each for each in _INSTEAD.findall(text) if each not in spellings] if old else []
        return Flag(
            name, spellings, keywords.type, keywords.default, keywords.choices,
            "", spellings if old else (), instead[0] if instead else "",
        )  # fmt: skip

    def _derived(self, call: ast.Call, scope: Scope, module: Module) -> Keywords | None:
        """What ``**config_kwargs["field"]`` stands for, a dict around it with keys of its own included."""
        for word in call.keywords:
            if word.arg is None:
                return self._spread(word.value, scope, module)
        return None

    def _spread(self, node: ast.expr, scope: Scope, module: Module) -> Keywords | None:
        if isinstance(node, ast.Dict):
            inner = [value for key, value in zip(node.keys, node.values, strict=True) if key is None]
            own = {
                k.value: v for k, v in zip(node.keys, node.values, strict=True) if isinstance(k, ast.Constant)
            }
            found = self._spread(inner[0], scope, module) if inner else None
            return self._changed(module, found, own) if found is not None else None
        place = scope.field(node)
        if place is None:
            return None
        cls, home = scope.classes.get(place[0], (ast.ClassDef("", [], [], [], []), module))
        for field, where in self.source.fields(cls, home):
            if isinstance(field.target, ast.Name) and field.target.id == place[1]:
                return self._changed(module, self._of_field(field, where), scope.changed.get(place, {}))
        return None

    def _changed(self, module: Module, keywords: Keywords, changes: dict[str, ast.AST | None]) -> Keywords:
        for key, value in changes.items():
            if key == "choices":
                keywords = replace(
                    keywords, choices=self._choices(value, module) if value is not None else None
                )
            elif key == "default" and value is not None:
                keywords = replace(keywords, default=self._quiet(value, module))
            elif key == "nargs":
                keywords = replace(keywords, type=keywords.type.removeprefix("list-"))
            elif key == "removed":
                gone = self._quiet(value, module)
                keywords = replace(
                    keywords, choices=tuple(c for c in keywords.choices or () if c != gone) or None
                )
            elif key == "type" and value is not None and not isinstance(value, ast.Lambda):
                listed = (
                    "list-" if keywords.type.startswith("list-") and "loads" not in ast.unparse(value) else ""
                )
                keywords = replace(keywords, type=listed + _parsed(ast.unparse(value)))
        return keywords

    def _of_field(self, node: ast.AnnAssign, home: Module) -> Keywords:
        """get_kwargs for one field."""
        assert isinstance(node.target, ast.Name)
        default = self._quiet(node.value, home)
        hints = Hints(self.source).of(node.annotation, home)
        kinds = {kind for kind, _ in hints}
        if "dataclass" in kinds:
            return Keywords("json")
        if "bool" in kinds:
            return Keywords(
                "optional-str" if self.optional_strings and kinds == {"bool", "str", "none"} else "switch",
                default,
            )
        if "literal" in kinds:
            values = next(extra for kind, extra in hints if kind == "literal")
            closed = not (self.open_literals and "str" in kinds)
            return Keywords(_type_of(values), default, as_text(values) if closed else None)
        for kind in ("tuple", "list", "set"):
            if kind in kinds:
                return self._sequence(next(extra for each, extra in hints if each == kind), home, default)
        if "int" in kinds:
            return Keywords("size" if node.target.id in self.human else "int", default)
        return Keywords("float" if "float" in kinds else "json" if "dict" in kinds else "str", default)

    def _sequence(self, element: ast.expr | None, home: Module, default: Any) -> Keywords:
        inner = Hints(self.source).of(element, home) if element is not None else []
        for kind, extra in inner:
            if kind == "literal":
                return Keywords("list-" + _type_of(extra), default, as_text(extra))
        kinds = {kind for kind, _ in inner}
        base = next(iter(kinds)) if kinds in ({"int"}, {"float"}) else "str"
        return Keywords(f"list-{base}", default)

    def _kind(self, words: dict[str, ast.expr], name: str) -> str:
        action = ast.unparse(words["action"]).strip("'\"") if "action" in words else ""
        for mark, kind in (
            ("store_true", "flag"),
            ("store_false", "unflag"),
            ("BooleanOptional", "switch"),
            ("StoreBoolean", "optional-bool"),
        ):
            if mark in action:
                return kind
        base = _parsed(ast.unparse(words["type"])) if "type" in words else "str"
        nargs = self._quiet(words.get("nargs"), self.engine)
        if nargs in ("+", "*") or isinstance(nargs, int):
            return f"list-{base}"
        return f"optional-{base}" if nargs == "?" else base

    def _default(self, node: ast.expr | None, module: Module, name: str) -> Any:
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("EngineArgs", "AsyncEngineArgs"):
            field = self.fields.get(node.attr)
            return self._quiet(field[0].value, field[1]) if field else None
        return self._quiet(node, module)

    def _choices(self, node: ast.AST, module: Module) -> tuple[str, ...] | None:
        if "ReasoningParserManager.reasoning_parsers" in ast.unparse(node):
            return self._registered("ReasoningParserManager")
        try:
            return as_text(self.source.value(node, module))
        except Unknown:
            return None

    def _registered(self, manager: str) -> tuple[str, ...] | None:
        """The names under which classes are registered: ``@Manager.register_module("name")``."""
        mark = re.compile(rf"@{manager}\.register_module\(\s*(?:name=)?([^)]*)\)")
        found: list[str] = []
        for folder in ("vllm/reasoning", "vllm/entrypoints/openai/reasoning_parsers"):
            for path in sorted((self.source.root / folder).glob("*.py")):
                for names in mark.findall(path.read_text(encoding="utf-8")):
                    found += re.findall(r"['\"]([\w.-]+)['\"]", names)
        return tuple(dict.fromkeys(found)) or None

    def _quiet(self, node: ast.AST | None, module: Module) -> Any:
        if node is None:
            return None
        try:
            value = self.source.value(node, module)
        except Unknown:
            return None
        if isinstance(value, Enum | Literals):
            return None
        return value[1] if isinstance(value, tuple) else value


def _adds(call: ast.Call, module: Module) -> bool:
    """True for an ``add_argument`` of the server; the command line's own module has other commands too."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr != "add_argument":
        return False
    return module.dotted not in _COMMANDS or "serve" in ast.unparse(call.func.value)


def _type_of(values: Literals) -> str:
    return "int" if all(isinstance(v, int) for v in values.values) else "str"


def _parsed(function: str) -> str:
    """The word of flags.toml for argparse's ``type``."""
    if function.startswith("lambda"):
        return "str"
    if re.search(r"loads|Config|kvs|dict", function):
        return "json"
    if "human_readable" in function:
        return "size"
    return next((kind for kind in ("int", "float") if re.search(rf"\b(?:\w+_)?{kind}\b", function)), "str")


def _add(flags: dict[str, Flag], flag: Flag) -> None:
    first = flags.get(flag.name)
    if first is None:
        flags[flag.name] = flag
    elif first.type == flag.type:
        spellings = tuple(dict.fromkeys(first.spellings + flag.spellings))
        flags[flag.name] = replace(first, spellings=spellings, old=first.old + flag.old)
    elif (own := flag.spellings[0].lstrip("-").replace("-", "_")) not in flags:
        flags[own] = replace(flag, name=own, of=flag.name, default=None)


def read(source: Source) -> list[Flag]:
    """Every flag of the release's server."""
    return Release(source).flags()
