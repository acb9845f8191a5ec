"""Regular expressions that are compiled when first used: a plan that needs few of them starts sooner."""

from __future__ import annotations

import re
from typing import Any, cast


class _Lazy:
    def __init__(self, text: str, flags: int) -> None:
        self._text, self._flags = text, flags

    def __getattr__(self, name: str) -> Any:
        """A member of the compiled pattern; kept, so that the next look-up finds it at once."""
        found = getattr(re.compile(self._text, self._flags), name)
        setattr(self, name, found)
        return found


def lazy(text: str, flags: int = 0) -> re.Pattern[str]:
    """``re.compile(text, flags)``, at its first use. A text that is wrong is only found then: what people may
    write does not belong here."""
    return cast("re.Pattern[str]", _Lazy(text, flags))
