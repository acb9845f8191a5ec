"""Reports of a campaign: the text of strangers stays text, and a page needs nothing from outside."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from rich.console import Console

from ullage.core.units import Band
from ullage.lab.campaign import export, file, report
from ullage.lab.campaign.experiment import Confounder, Experiment, Preflight, Told
from ullage.lab.campaign.report import Report
from ullage.render import campaign_html, campaign_markdown, campaign_text

EVIL = "<script>alert(1)</script>\"'& [bold]x[/bold] |`\x1b[31m"
TEXT = "launch: vllm serve m\napproaches:\n  - {name: a, reason: b, flags: {seed: 3}}\ngoals: [output_throughput, p99_ttft_ms]\n"


def experiment(name: str, values: tuple[float, ...], at: float, **more: Any) -> Experiment:
    repeats = tuple({"output_throughput": v, "p99_ttft_ms": 5000 / v, "median_itl_ms": 9.0} for v in values)
    return Experiment(name=name, role=more.pop("role", "approach"), stage=more.pop("stage", "done"), repeats=repeats,
                      measured_at=at, attempt=1, **more)  # fmt: skip


def built(tmp_path: Path, *more: Experiment) -> Report:
    path = tmp_path / "c.yaml"
    path.write_text(TEXT)
    told = Told("oom", "certain", EVIL, "init", (f"line 3: {EVIL}",), (EVIL,))
    preflight = Preflight("starts", predicted={"output_throughput": Band(95, 90, 99)})
    every = [
        experiment("baseline", (100, 101, 99.5), 0, role="baseline", preflight=preflight),
        experiment("faster", (120, 121, 119.5), 1, changes={"flags": {"x": EVIL}, "env": {"A": 1}}, reason=EVIL),
        experiment("mixed", (120, 121, 119.0), 2, confounded=(Confounder("max_num_seqs", None, 48, "dragged along"),),
                   split=({"name": "only", "reason": EVIL, "flags": {"max-num-seqs": 48}},)),
        experiment("slower", (80, 81, 79.5), 3),
        experiment("dead", (), 0, stage="crashed", why=EVIL, told=told, runs=("run-1",)),
        *more,
        experiment("baseline, again", (100.5, 101, 99), 5, role="drift"),
    ]  # fmt: skip
    numbered = [replace(each, number=i) for i, each in enumerate(every)]
    return report.build(file.load(path), numbered, {"launch": EVIL, "began": 0.0}, "c.db")


class Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "br") and not (self.get_starttag_text() or "").endswith("/>"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("line", "circle"):
            assert self.open.pop() == tag


def test_the_page_is_whole_and_safe(tmp_path: Path) -> None:
    page = campaign_html.report(built(tmp_path))
    seen = Page()
    seen.feed(page)
    assert seen.open == []
    names = {tag for tag, _ in seen.tags}
    assert "script" not in names and "link" not in names and "img" not in names
    assert all(
        not key.startswith("on") and key not in ("src", "href") for _, attrs in seen.tags for key in attrs
    )
    assert "&lt;script&gt;" in page and "\x1b" not in page
    assert "url(" not in page and "http" not in page.replace("http-equiv", "")
    assert page.count("<svg") == 3
    for words in ("faster", "+19.", "Confounded", "Ruled out", "max-num-seqs", "95 tok/s (90 to 99)"):
        assert words in page, words


def test_a_large_campaign_stays_below_two_megabytes(tmp_path: Path) -> None:
    many = [experiment(f"number {i} {'x' * 60}", (100.0 + i, 101.0 + i, 99.0 + i), i, reason="y" * 3000,
                       changes={"env": {"A": "z" * 3000}}) for i in range(300)]  # fmt: skip
    assert len(campaign_html.report(built(tmp_path, *many)).encode()) < 2 << 20


def test_the_text_says_all(tmp_path: Path) -> None:
    console = Console(width=140, no_color=True)
    with console.capture() as shown:
        campaign_text.report(built(tmp_path), console)
        campaign_text.status(built(tmp_path), console)
    text = shown.get()
    assert "\x1b" not in text
    for words in ("BEST", "faster", "better", "worse", "not set -> 48", "came along by default", "ullage why run-1",
                  "95 tok/s (90 to 99)", "[bold]x[/bold]"):  # fmt: skip
        assert words in text, words


def test_markdown_pings_nobody(tmp_path: Path) -> None:
    text = campaign_markdown.report(built(tmp_path))
    assert "<script>" not in re.sub(r"(?<!`)(`+)(?!`).*?(?<!`)\1(?!`)", "", text, flags=re.DOTALL)
    assert "**better**" in text and "```yaml" in text


def test_exports(tmp_path: Path) -> None:
    import csv
    import io
    import json

    found = built(tmp_path)
    rows = list(csv.DictReader(io.StringIO(export.table(found))))
    assert [row["verdict"] for row in rows if row["experiment"] == "faster"] == ["better"] * 3
    assert [row["output_throughput"] for row in rows if row["experiment"] == "baseline"] == [
        "100",
        "101",
        "99.5",
    ]
    assert [row["repeat"] for row in rows if row["experiment"] == "dead"] == [""]
    whole = json.loads(export.json(found))
    assert whole["schema"] == "ullage.campaign/1"
    assert whole["best"] == ["faster"]
    assert whole["status"] == "finished"


def test_a_formula_in_a_cell_is_text() -> None:
    assert export._safe("=HYPERLINK(1)") == "'=HYPERLINK(1)"
    assert export._safe("") == ""
    assert export._safe(-1.5) == -1.5
