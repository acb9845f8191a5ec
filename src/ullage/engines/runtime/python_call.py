"""A launch that is a Python call: ``LLM(model="..", max_model_len=4096)``, ``sgl.Engine(model_path="..")``.

Its keyword arguments are the server's flags. Read by ast.literal_eval alone; what a report left without quotes
is text.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator

_CALL = re.compile(
    r"(?<![\w.])(?:(?P<owner>\w+)\.)?(?P<name>LLM|AsyncLLM|LLMEngine|AsyncLLMEngine|EngineArgs|AsyncEngineArgs|Engine"
    r"|ServerArgs|Runtime)\("
)
#: calls of SGLang; the others are vLLM's
_SGLANG = ("Engine", "ServerArgs", "Runtime")
#: settings that are on unless they are said to be off, and so have a flag that says no
_OFF = ("enable_prefix_caching", "enable_chunked_prefill", "async_scheduling", "use_tqdm_on_load")
_MOST = 64 << 10


def words_of(text: str) -> list[str] | None:
    """The words of the server's command that does what the call in ``text`` does; None where there is none."""
    found = _CALL.search(text[:_MOST])
    if found is None:
        return None
    name = found["name"]
    inner = _inside(text, found.end())
    sglang = name in _SGLANG
    if name == "Engine" and found["owner"] not in ("sgl", "sglang", "engine", None):
        return None
    values = list(_arguments(inner))
    if not values:
        return None
    words = ["python", "-m", "sglang.launch_server"] if sglang else ["vllm", "serve"]
    model = next((value for key, value in values if key in ("", "model", "model_path")), None)
    if model is not None:
        words += ["--model-path", str(model)] if sglang else [str(model)]
    for key, value in values:
        if key not in ("", "model", "model_path"):
            words += _flag(key, value)
    return words


def _flag(key: str, value: object) -> list[str]:
    flag = "--" + key.replace("_", "-")
    if value is None or (value is False and key not in _OFF):
        return []
    if isinstance(value, bool):
        return [flag if value else f"--no-{flag[2:]}"]
    if isinstance(value, dict | list | tuple):
        return [flag, json.dumps(value, default=str)]
    return [flag, str(value)]


def _inside(text: str, start: int) -> str:
    """What stands between the parentheses that open before ``start``, quotes respected; all of it where
    they are not closed."""
    depth, quote, at = 1, "", start
    end = min(len(text), start + _MOST)
    while at < end:
        char = text[at]
        if quote:
            at += char == "\\"
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
            if not depth:
                return text[start:at]
        at += 1
    return text[start:end]


def _arguments(inner: str) -> Iterator[tuple[str, object]]:
    """(name, value) of each argument; the name of a positional one is ""."""
    for part in _parts(inner):
        key, joint, value = part.partition("=")
        if joint and re.fullmatch(r"\s*\w+\s*", key):
            yield key.strip(), _value(value)
        elif part.strip() and not part.strip().startswith(("*", "#")):
            yield "", _value(part)


def _parts(inner: str) -> Iterator[str]:
    """``inner`` cut at its outermost commas, comments left out."""
    depth, quote, start, at = 0, "", 0, 0
    inner = re.sub(r"(?m)(?<=[\s,])#[^\n'\"]*$", "", inner)
    for at, char in enumerate(inner):
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
        elif char == "," and depth == 0:
            yield inner[start:at]
            start = at + 1
    yield inner[start:]


def _value(text: str) -> object:
    text = text.strip()
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text.strip("'\"")
