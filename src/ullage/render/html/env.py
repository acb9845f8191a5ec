"""The templates' environment: everything is escaped, and what is invisible is made visible."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from ullage.core.units import GIB, gib_text, tokens_text
from ullage.render.html import bars
from ullage.render.html.plain import visible
from ullage.render.names import lower_limit, pasted, short, unit, upper_limit, words
from ullage.render.words import (
    effect,
    headline,
    mark,
    number,
    sentence,
    shortened,
    summary,
)  # fmt: skip

if TYPE_CHECKING:
    from jinja2 import Environment


@cache
def environment() -> Environment:
    """Jinja's environment with autoescape on; an undefined name is an error."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=PackageLoader("ullage.render.html"), autoescape=True, undefined=StrictUndefined,
        finalize=_final, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    made.filters.update(
        gib=gib_text, tokens=tokens_text, short=short, words=words, unit=unit, number=number, mark=mark,
        effect=effect, shortened=shortened, sentence=sentence,
        above=lower_limit, below=upper_limit, gibs=lambda size: f"{size / GIB:.2f}",
        pasted=lambda change: "  ".join(pasted(name, value) for name, value in change.items()),
    )  # fmt: skip
    made.globals.update(bars=bars, headline=headline, summary=summary)
    return made


def _final(value: Any) -> Any:
    from markupsafe import Markup

    if value is None:
        return ""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


@cache
def asset(name: str) -> str:
    """A style sheet or script of the package."""
    return (files("ullage.render.html") / name).read_text(encoding="utf-8")
