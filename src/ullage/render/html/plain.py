"""Text of strangers made visible: what would change how the rest of a page reads is shown as its number."""

from __future__ import annotations

from ullage.core.plain import visible

__all__ = ["visible"]
