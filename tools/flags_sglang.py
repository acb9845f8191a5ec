"""The flags of one SGLang release: ``ServerArgs.add_cli_args`` and, from 0.5.20 on, the annotated fields under
``arg_groups/fields`` from which it makes most of them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

from flag_source import Flag, Module, Source, Unknown, as_text, imported

_SERVER_ARGS = "sglang.srt.server_args"
_INSTEAD = re.compile(r"(?:[Uu]se|[Ss]et|alias (?:of|for)) [`']?(--[a-z][\w-]*)")
_NUMBERS = {"int": "int", "float": "float", "human_readable_int": "int"}
_NO_NARGS = object()


def read(source: Source) -> list[Flag]:
    """Every flag of the release's server, in the order of its source."""
    module = source.module(_SERVER_ARGS)
    if module is None:
        raise FileNotFoundError(f"{source.root}/sglang/srt/server_args.py")
    declared = dict(_declared(source, module))
    flags = {name: made for name, (made, _) in _annotated(source, declared).items()}
    fields = {name: _quiet(source, node.value, home) for name, (node, home) in declared.items()}
    for call, known in _calls(source, module):
        _add(flags, _of_call(source, module, call, known, fields), fields)
    return list(flags.values())


def _declared(source: Source, module: Module) -> Iterator[tuple[str, tuple[ast.AnnAssign, Module]]]:
    """The fields of ServerArgs and, where it is put together from parts, of every part."""
    homes = [module]
    folder = source.root / "sglang/srt/arg_groups/fields"
    for path in sorted(folder.glob("*.py")):
        part = source.module(f"sglang.srt.arg_groups.fields.{path.stem}") if path.stem != "__init__" else None
        homes += [part] if part is not None else []
    for home in homes:
        for node in ast.walk(home.tree):
            if isinstance(node, ast.ClassDef) and (home is not module or node.name == "ServerArgs"):
                for field in node.body:
                    if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                        yield field.target.id, (field, home)


def _quiet(source: Source, node: ast.AST | None, module: Module, known: dict[str, Any] | None = None) -> Any:
    """A value, or None where it cannot be told."""
    try:
        return source.value(node, module, known)
    except Unknown:
        return None


def _annotated(
    source: Source, declared: dict[str, tuple[ast.AnnAssign, Module]]
) -> dict[str, tuple[Flag, ast.AnnAssign]]:
    """The flags that ``A[type, Arg(..)]`` makes (arg_groups/arg_utils.py, add_cli_args_from_dataclass)."""
    found = {}
    for name, (node, home) in declared.items():
        annotation = node.annotation
        if not isinstance(annotation, ast.Subscript) or ast.unparse(annotation.value) not in ("A", "Annotated"):
            continue
        inner, *notes = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else [annotation.slice]
        keywords = _arg(notes)
        if keywords is not None and not _quiet(source, keywords.get("no_cli"), home):
            found[name] = (_of_field(source, name, node, home, inner, keywords), node)
    return found


def _arg(notes: list[ast.expr]) -> dict[str, ast.expr] | None:
    for note in notes:
        if isinstance(note, ast.Call) and ast.unparse(note.func) == "Arg":
            return {word.arg: word.value for word in note.keywords if word.arg}
        if isinstance(note, ast.Constant | ast.JoinedStr | ast.BinOp):
            return {}
    return None


def _of_field(
    source: Source, name: str, node: ast.AnnAssign, home: Module, inner: ast.expr, keywords: dict[str, ast.expr]
) -> Flag:
    spellings = [_quiet(source, keywords.get("cli_name"), home) or "--" + name.replace("_", "-")]
    spellings += _quiet(source, keywords.get("aliases"), home) or []
    default = _quiet(source, node.value, home)
    choices = _choices(source, keywords.get("choices"), home, {})
    base = re.sub(r"^Optional\[(.*)\]$", r"\1", ast.unparse(inner), flags=re.DOTALL).replace(" | None", "")
    extra = _literal_dict(keywords.get("action_kwargs"))
    nargs = _nargs(source, keywords.get("nargs") or extra.get("nargs"), home)
    parser = ast.unparse(keywords["type_parser"]) if "type_parser" in keywords else ""
    literal = re.match(r"(?:typing\.)?Literal\[", base)
    if "action" in keywords:
        words = {**extra, "action": keywords["action"]}
        kind, choices = _kind(words, nargs), choices or _choices(source, extra.get("choices"), home, {})
    elif literal:
        choices = choices or as_text(source.value(ast.parse(base, mode="eval").body, home))
        kind = "int" if choices and all(re.fullmatch(r"-?\d+", one) for one in choices) else "str"
    elif re.match(r"[Ll]ist\[", base) and not parser:
        element = re.match(r"[Ll]ist\[(\w+)", base)
        kind = "list-" + _NUMBERS.get(element[1] if element else "", "str")
    elif base == "bool" and not parser and nargs is _NO_NARGS:
        kind = "flag"
    else:
        kind = _sized(_NUMBERS.get(parser or base, "str"), nargs)
    old, new = _deprecation(source, keywords, home, tuple(spellings))
    return Flag(name, tuple(spellings), kind, default, choices, "", old, new)


def _literal_dict(node: ast.expr | None) -> dict[str, ast.expr]:
    if isinstance(node, ast.Call):
        return {word.arg: word.value for word in node.keywords if word.arg}
    if not isinstance(node, ast.Dict):
        return {}
    pairs = zip(node.keys, node.values, strict=True)
    return {key.value: value for key, value in pairs if isinstance(key, ast.Constant)}


def _calls(source: Source, module: Module) -> Iterator[tuple[ast.Call, dict[str, Any]]]:
    """Each ``add_argument`` of the server's parser, with the local lists that it may use."""
    for function in ast.walk(module.tree):
        if isinstance(function, ast.FunctionDef) and function.name in (
            "add_cli_args",
            "add_deprecated_cli_args",
        ):
            known: dict[str, Any] = {}
            for node in sorted(
                (n for n in ast.walk(function) if hasattr(n, "lineno")), key=lambda n: (n.lineno, n.col_offset)
            ):
                _learn(source, module, node, known)
                if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument":
                    yield node, known


def _learn(source: Source, module: Module, node: ast.AST, known: dict[str, Any]) -> None:
    if isinstance(node, ast.ImportFrom):
        module.imports.update(imported(node, module.dotted.rpartition(".")[0]))
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        value = _quiet(source, node.value, module, known)
        if value is not None:
            known[node.targets[0].id] = value


def _of_call(
    source: Source, module: Module, call: ast.Call, known: dict[str, Any], fields: dict[str, Any]
) -> Flag | None:
    spellings = tuple(
        a.value for a in call.args if isinstance(a, ast.Constant) and str(a.value).startswith("-")
    )
    if not spellings:
        return None
    words = {word.arg: word.value for word in call.keywords if word.arg}
    kind = _kind(words, _nargs(source, words.get("nargs"), module))
    default = words.get("default")
    value = _default(source, module, default, fields)
    old, new = _deprecation(source, words, module, spellings)
    name = _destination(spellings, _quiet(source, words.get("dest"), module), fields)
    choices = _choices(source, words.get("choices"), module, known)
    return Flag(name, spellings, kind, value, choices, "", old, new)


def _default(source: Source, module: Module, node: ast.expr | None, fields: dict[str, Any]) -> Any:
    if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("ServerArgs", "cls"):
        return fields.get(node.attr)
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "_declared_default":
        return fields.get(_quiet(source, node.args[0], module))
    return _quiet(source, node, module) if node is not None else None


def _destination(spellings: tuple[str, ...], dest: str | None, fields: dict[str, Any]) -> str:
    """The field that a flag feeds: its dest, or the spelling of it that is a field (``--tp-size``)."""
    names = [each.lstrip("-").replace("-", "_") for each in spellings if each.startswith("--")]
    if dest in fields or not names:
        return dest or spellings[0].lstrip("-")
    return next((name for name in names if name in fields), dest or names[0])


def _kind(words: dict[str, ast.expr], nargs: Any) -> str:
    """The word of flags.toml for argparse's action, type and nargs."""
    action = ast.unparse(words["action"]).strip("'\"") if "action" in words else ""
    if action == "store_false":
        return "unflag"
    if action in ("store_true", "count") or "StoreTrue" in action:
        return "flag"
    if "BooleanOptional" in action:
        return "switch"
    valueless = action == "store_const" or "StoreConst" in action or action.endswith("DeprecatedAction")
    if valueless and nargs in (_NO_NARGS, 0):
        return "flag"
    base = _NUMBERS.get(ast.unparse(words["type"]) if "type" in words else "", "str")
    return _sized(base, nargs)


def _sized(base: str, nargs: Any) -> str:
    if nargs in ("+", "*") or (isinstance(nargs, int) and nargs > 1):
        return f"list-{base}"
    return f"optional-{base}" if nargs == "?" else base


def _nargs(source: Source, node: ast.AST | None, module: Module) -> Any:
    return _NO_NARGS if node is None else _quiet(source, node, module)


def _choices(
    source: Source, node: ast.expr | None, module: Module, known: dict[str, Any]
) -> tuple[str, ...] | None:
    if node is None:
        return None
    try:
        return as_text(source.value(node, module, known))
    except Unknown:
        return None


def _deprecation(
    source: Source, words: dict[str, ast.expr], module: Module, spellings: tuple[str, ...]
) -> tuple[tuple[str, ...], str]:
    """The spellings that the release calls deprecated, and what it says to use instead."""
    action = ast.unparse(words["action"]) if "action" in words else ""
    text = " ".join(_words_of(words.get("help")))
    said = re.match(r"\W*(?:Note: \S+ is )?deprecated", text, re.IGNORECASE)
    if "Deprecated" not in action and not said:
        return (), ""
    new = _quiet(source, words.get("new_flag"), module) or ""
    found = re.match(r"--[a-z][\w-]*(?![{\w-])", str(new)) or None
    if found is None and not new:
        instead = [name for name in _INSTEAD.findall(text) if name not in spellings]
        return spellings, instead[0] if instead else ""
    return spellings, found[0] if found and "{" not in new else str(new)


def _words_of(node: ast.AST | None) -> Iterator[str]:
    for part in ast.walk(node) if node is not None else ():
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield part.value


def _add(flags: dict[str, Flag], flag: Flag | None, fields: dict[str, Any]) -> None:
    """Join another spelling of a setting to it; one with another form of value stays a row of its own."""
    if flag is None:
        return
    first = flags.get(flag.name)
    if first is None:
        flags[flag.name] = flag
        return
    if first.type == flag.type and not (flag.old and not first.old and flag.choices):
        flags[flag.name] = Flag(
            first.name, tuple(dict.fromkeys(first.spellings + flag.spellings)), first.type, first.default,
            first.choices or flag.choices, first.of, first.old + flag.old, first.new or "",
        )  # fmt: skip
        return
    own = flag.spellings[0].lstrip("-").replace("-", "_")
    if own != flag.name and own not in flags:
        flags[own] = Flag(own, flag.spellings, flag.type, None, flag.choices, flag.name, flag.old, flag.new)
