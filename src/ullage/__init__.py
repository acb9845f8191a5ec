"""ullage: what fits before a launch, why it crashed, which change is worth trying next.

>>> import ullage
>>> ullage.plan("vllm serve Qwen/Qwen3-8B", gpu="1x H100", engine_version="0.11.0").verdict
'starts'
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ullage.api import as_json, diff, plan, why
    from ullage.core.errors import UllageError

__version__ = "0.1.0"
__all__ = ["UllageError", "__version__", "as_json", "diff", "plan", "why"]


def __getattr__(name: str) -> Any:
    """The functions above, imported when they are first asked for: a bare ``import ullage`` costs nothing."""
    if name == "UllageError":
        return import_module("ullage.core.errors").UllageError
    if name in __all__:
        return getattr(import_module("ullage.api"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
