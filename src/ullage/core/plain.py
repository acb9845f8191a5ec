"""Text of strangers made visible: what changes how the rest reads is shown as its number."""

from __future__ import annotations

from ullage.core.patterns import lazy

#: control characters but tab and newline; marks that turn the direction of writing; invisible ones
_HIDDEN = lazy(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufeff\ufff9-\ufffb]"
)


def visible(text: str) -> str:
    """``text`` with each such character as ‹U+202E›."""
    return _HIDDEN.sub(lambda found: f"‹U+{ord(found[0]):04X}›", text)
