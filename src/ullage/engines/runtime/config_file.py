"""``--config file.yaml``: its settings as words in front of the command line's own, which therefore win.

Both engines do it so: SGLang since 0.5.3 (server_args_config_parser.py), vLLM in every release
(FlexibleArgumentParser._pull_args_from_config). How a value becomes words is the engine's own matter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ullage.core.errors import CommandError, InputError
from ullage.engines.runtime.yaml_text import load

#: the text of a file by its name as the command gives it; raises InputError where it cannot be read
Files = Callable[[str], str]
#: the settings of a file -> the words that the engine makes of them
Words = Callable[[Mapping[str, Any]], list[str]]


def expanded(words: Sequence[str], files: Files | None, words_of: Words) -> list[str]:
    """``words`` with the settings of their configuration file in front; as they are where there is none, or no
    way to read it. Raises CommandError and InputError as the engine refuses to start."""
    named = [i for i, word in enumerate(words) if word == "--config"]
    if not named or files is None:
        return list(words)
    if len(named) > 1:
        raise CommandError("--config is given twice", hint="both engines take one configuration file")
    at = named[0]
    if at + 1 >= len(words):
        raise CommandError("--config lacks its file", hint="write --config FILE.yaml")
    name = words[at + 1]
    return [*words_of(settings(name, files)), *words[:at], *words[at + 2 :]]


def settings(name: str, files: Files) -> dict[str, Any]:
    """What the file says: a mapping of names to values."""
    if not name.lower().endswith((".yaml", ".yml")):
        raise InputError("a configuration file must end in .yaml or .yml", where=name[:200])
    found = load(files(name), name[:200])
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise InputError("a configuration file must hold a mapping, NAME: VALUE", where=name[:200])
    return {str(key): value for key, value in found.items()}
