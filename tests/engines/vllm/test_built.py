"""Builds that carry a date instead of a release."""

from __future__ import annotations

import pytest

from ullage.core.versions import parse_release
from ullage.engines.vllm.args import parse
from ullage.engines.vllm.built import patched, release_of


@pytest.mark.parametrize(
    ("text", "release"),
    [
        ("0.1.dev1+g4d2a68d64.d20260816", "0.28.0"),
        ("0.1.dev16960+ga937d4b28.d20260524", "0.22.0"),
        ("main of 2026-04", "0.19.1"),
        ("fork tag of 2026-07-11", "0.25.0"),
        ("nightly 20991231", "0.33.0"),
        ("0.20.2rc1.dev249+x", "0.20.2rc1.dev249"),
    ],
)
def test_release_of_a_day(text: str, release: str) -> None:
    found = parse_release(release_of(text))
    assert found is not None
    assert found.public == release
    assert text in (release_of(text) or "")


@pytest.mark.parametrize("text", [None, "", "main", "0.1.dev1+g4d2a68d64", "2026-99-99", "built 2021-03-04"])
def test_what_tells_no_day(text: str | None) -> None:
    assert release_of(text) == text


def test_a_launch_of_a_dated_build_has_its_rules() -> None:
    launch = parse("vllm serve Qwen/Qwen3-8B", "0.1.dev1+g4d2a68d64.d20260816")
    assert launch.release is not None
    assert launch.release.public == "0.28.0"


@pytest.mark.parametrize(
    ("version", "told"),
    [
        ("0.26.1rc0+glm53.flash.nvfp4", True), ("0.20.2rc1.dev249+gabcdef0", False), ("0.26.0+cu129", False),
        ("0.15.2rc1.dev93+g11a4c9d30.cu128", False), ("0.26.0", False), (None, False),
    ],
)  # fmt: skip
def test_patched_builds(version: str | None, told: bool) -> None:
    assert patched(version) is told
