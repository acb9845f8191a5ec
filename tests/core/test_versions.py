from __future__ import annotations

import pytest
from packaging.version import Version

from ullage.core.versions import Rules, Span, parse_release


@pytest.mark.parametrize(
    ("text", "release"),
    [
        ("0.5.9", "0.5.9"), ("v0.8.2", "0.8.2"), ("0.5.8.post1 (rocm/sgl-dev mi35x 20260218)", "0.5.8.post1"),
        ("0.20.2rc1.dev249+glmkimirebase20260514", "0.20.2rc1.dev249+glmkimirebase20260514"),
        ("0.4.4.post3-like", "0.4.4.post3"), ("0.1.dev1+g4d2a68d64.d20260816", None), ("", None), (None, None),
        ("main", None),
    ],
)  # fmt: skip
def test_releases_as_people_write_them(text: str | None, release: str | None) -> None:
    assert parse_release(text) == (Version(release) if release else None)


def test_span_is_half_open() -> None:
    span = Span("0.5.3", "0.5.10")
    assert [span.holds(Version(v)) for v in ("0.5.2", "0.5.3", "0.5.9", "0.5.10")] == [False, True, True, False]
    assert not span.holds(None)
    assert Span("≤0.4.0").holds(Version("0.3.9"))
    assert Span("0.5.3").holds(None)


def test_the_latest_form_that_holds_wins() -> None:
    rule: Rules[[], str] = Rules("example")

    @rule.since("≤0.4.0", source="a")
    def old() -> str:
        return "old"

    @rule.since("0.5.7", source="b")
    def new() -> str:
        return "new"

    assert [rule.at(Version(v))() for v in ("0.3.0", "0.5.6.post2", "0.5.7", "0.9")] == [
        "old",
        "old",
        "new",
        "new",
    ]
    assert rule.at(None)() == "new"
    assert rule.form(Version("0.5.6")).source == "a"
