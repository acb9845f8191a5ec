"""HTML and Markdown of every case: made without error, and nothing private in them."""

from __future__ import annotations

import re
import tomllib
from html.parser import HTMLParser
from pathlib import Path

import pytest

import ullage
from ullage.core.private import masked
from ullage.core.report import Diagnosis
from ullage.render import html, markdown

CASES = sorted((Path(__file__).parents[1] / "cases").glob("*/*.log"))
FOUNDING = Path(__file__).parents[2] / "examples" / "founding"
#: read apart from core/private: what a stranger must not learn from a log
PRIVATE = (
    re.compile(r"(?<![\w.])(?!127\.|0\.0\.0\.0)\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}(?![\w.])"),
    re.compile(r"/(?:home|Users)/[\w.-]+"), re.compile(r"hf_[A-Za-z0-9]{20,}"),
    re.compile(r"(?:master_addr|dist_init_addr|MASTER_ADDR)['\"]?[=:] ?['\"]?(?!None|localhost|127)[a-zA-Z][\w.-]+"),
    re.compile(r"\b[\w-]+\.(?:internal|lan|local|corp)\b"), re.compile(r"\b[\w.]+@[\w-]+\.(?:com|org|net)\b"),
)  # fmt: skip


class Parts(HTMLParser):
    """Tags that load or run something, and whether every tag is closed."""

    VOID = ("meta", "br", "rect", "input", "link", "img")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.outside: list[str] = []
        self.handlers: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)
        self.outside += [f"{tag} {k}={v}" for k, v in attrs if k in ("src", "href", "action")]
        self.handlers += [k for k, _ in attrs if k.startswith("on") or k == "style"]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.outside += [f"{tag} {k}={v}" for k, v in attrs if k in ("src", "href", "action")]

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


def command(log: Path) -> str | None:
    case = tomllib.loads(log.with_suffix(".toml").read_text()) if log.with_suffix(".toml").exists() else {}
    return case.get("launch", {}).get("command") or None


def checked(page: str) -> Parts:
    parts = Parts()
    parts.feed(page)
    assert parts.open == []
    assert parts.outside == []
    assert parts.handlers == []
    return parts


@pytest.mark.parametrize("log", CASES, ids=lambda path: path.stem)
def test_every_case_is_a_page_and_a_text_without_private_details(log: Path) -> None:
    found: Diagnosis = masked(ullage.why(log), [str(log)])
    page, text = html.why(found), markdown.why(found)
    checked(page)
    assert len(page) < 2_000_000
    assert text.startswith("### ")
    said = set()
    raw = log.read_text(errors="replace")
    for pattern in PRIVATE:
        said |= {item for item in pattern.findall(raw) if len(item) > 4}
    assert [item for item in said if item in page or item in text] == []
    assert str(log.parent) not in page
    assert str(log.parent) not in text


def test_the_founding_pages_hold_the_answer() -> None:
    found = ullage.diff(FOUNDING / "baseline.log", FOUNDING / "fewer-channels.log")
    for shown in (html.why(found), markdown.why(found)):
        for said in (
            "76.85 %",
            "21.78 - 94.08 x (1 - 0.55) = -20.56 GiB",
            "--mem-fraction-static 0.88",
            "above 0.769",
            "72.30",
        ):
            assert said in shown
    assert 'role="img"' in html.why(found)
    for shown in (html.diff(found), markdown.diff(found)):
        assert "21.71" in shown
        assert "decides" in shown


def test_a_plan_is_a_page_and_a_text() -> None:
    found = ullage.plan(
        "vllm serve Qwen/Qwen3-8B --api-key sk-abcdefabcdefabcdef", gpu="1x H100", engine_version="0.11.0"
    )
    for shown in (html.plan(found), markdown.plan(found)):
        assert "It will start with" in shown
        assert "sk-abcdef" not in shown
    checked(html.plan(found))


HOSTILE = '</title><script>alert(1)</script> \u202e drow \x1b[31mred\x1b[0m "onload=x" `rm` @someone #1 [x](http://e.vil) | a |'


def test_hostile_text_is_text() -> None:
    from ullage.core.finding import Evidence

    found = Diagnosis(
        "vllm", HOSTILE, "log", "crashed", "args", "unknown", "possible", HOSTILE, HOSTILE, files=("x.log",),
        evidence=(Evidence("x.log", 1, HOSTILE, HOSTILE, "root"),), notes=(HOSTILE,),
    )  # fmt: skip
    page = html.why(found)
    checked(page)
    assert "<script>alert" not in page
    assert "\u202e" not in page
    assert "\x1b" not in page
    text = markdown.why(found)
    assert "\u202e" not in text
    outside = re.sub(r"`[^`]*`|```text\n.*?\n```", "", text, flags=re.DOTALL)
    assert "<script" not in outside
    assert "@someone" not in outside
    assert "[x](" not in outside
