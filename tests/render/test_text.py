"""What a stranger reads: the founding case's main statements, and how single things are worded."""

from __future__ import annotations

import io
import re
from functools import cache
from pathlib import Path

import pytest
from msgspec.structs import replace
from rich.console import Console

from ullage.core.deployment import Inferred
from ullage.core.finding import How
from ullage.core.ledger import Entry, Ledger
from ullage.core.report import Diagnosis
from ullage.core.units import GIB
from ullage.diagnose.why import Asked, why
from ullage.render import text
from ullage.render.memory import alike
from ullage.render.names import pasted, rank_order, unit, words
from ullage.render.words import number, sentence

ROOT = Path(__file__).parents[2]
FOUNDING = ROOT / "examples" / "founding"
CASES = [*sorted((ROOT / "tests" / "cases" / "sglang").glob("*.log")), *sorted(FOUNDING.glob("*.log"))]


@cache
def diagnosis(path: Path) -> Diagnosis:
    return why([str(path)], asked=Asked())


def printed(found: Diagnosis) -> str:
    out = io.StringIO()
    text.why(found, Console(file=out, width=120, highlight=False, soft_wrap=False))
    return out.getvalue()


def report(name: str, baseline: str | None = None) -> str:
    """The report as one line of words."""
    against = (str(FOUNDING / baseline),) if baseline else ()
    return " ".join(printed(why([str(FOUNDING / name)], baseline=against)).split())


@pytest.fixture(scope="module")
def alone() -> str:
    return report("fewer-channels.log")


@pytest.fixture(scope="module")
def compared() -> str:
    return report("fewer-channels.log", "baseline.log")


@pytest.mark.parametrize(
    "statement",
    [
        "The weights alone hold 76.85 % of the GPU memory that was free before them",
        "21.78 - 94.08 x (1 - 0.55) = -20.56 GiB",
        "= 42.34 GiB at 0.55, more than the 21.78 GiB that are free",
        "Lowering the fraction makes it worse: 21.78 - 94.08 x (1 - 0.5) = -25.26 GiB",
        "reserved at 0.55 42.34 GiB 94.08 x (1 - 0.55): kept out of weights and pool",
        "NCCL buffers: all that was taken before the weights is 0.31 GiB; the budget is short of 20.56 GiB",
        "--mem-fraction-static must be above 0.769",
    ],
)
def test_the_founding_case_says(alone: str, statement: str) -> None:
    assert statement in alone


def test_the_weights_are_observed_with_both_lines(alone: str) -> None:
    assert re.search(r"weights 72\.30 GiB observed \S*fewer-channels\.log:35, \S*fewer-channels\.log:44", alone)


def test_alone_it_proposes_a_prudent_fraction(alone: str) -> None:
    offered = [float(f) for f in re.findall(r"- --mem-fraction-static (\d\.\d+) → starts", alone)]
    assert offered and 0.84 <= offered[0] <= 0.88
    assert all(0.78 <= f <= 0.88 for f in offered)


def test_the_baseline_is_what_is_proposed_and_bounds_it(compared: str) -> None:
    assert "--mem-fraction-static 0.88 → starts, pool 10.49 GiB, 160,291 tokens" in compared
    assert "which beats an estimate: beside its pool it took 4.33 GiB until it was up" in compared
    assert re.search(
        r"decides mem_fraction_static 0\.880 \(inferred, 0\.8799.{0,30}0\.55.{0,30}-31\.05 GiB", compared
    )
    assert compared.count("+0.07 GiB") == 1, "what NCCL takes is counted once"


def test_the_baseline_is_not_told_to_change_its_fraction() -> None:
    assert "0.88 is in force, and prudent" in report("baseline.log")


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_no_report_shows_a_gap(path: Path) -> None:
    """No unfilled word, internal name or empty section in any report."""
    found = diagnosis(path)
    said = printed(found)
    ours = [
        found.summary,
        found.explanation,
        *(r.because for r in found.refuted),
        *(c.why for c in found.fixes),
    ]
    for part in ours:
        assert not re.search(r"(?<!\w)(?:None|\?)(?!\w)|\{\w*\}|\[\[", part.replace("'?'", "")), part
    for name in ("least_mem_fraction_static", "_gib ", "-0.00"):
        assert name not in said, name
    titles = re.findall(r"^[A-Z][A-Z ]+$", said, re.MULTILINE)
    assert not [t for t in titles if re.search(rf"^{t}\s*\n\s*(?:\n|\Z)", said, re.MULTILINE)], titles


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_every_fault_has_a_remedy(path: Path) -> None:
    found = diagnosis(path)
    if found.cause not in (None, "none"):
        assert found.fixes, found.cause
        assert found.evidence, found.cause
        lines = [(e.file, e.line) for e in found.evidence]
        assert len(lines) == len(set(lines)), "a line proves once"


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("--disable-cuda-graph", True, "--disable-cuda-graph"),
        ("--enable-x", False, "without --enable-x"),
        ("--tp-size", 2, "--tp-size 2"),
        ("NCCL_DEBUG", "INFO", "NCCL_DEBUG=INFO"),
        ("LD_PRELOAD", "", "unset LD_PRELOAD"),
        ("NVCC_PREPEND_FLAGS", "-ccbin g++-11", "NVCC_PREPEND_FLAGS='-ccbin g++-11'"),
    ],
)
def test_a_change_is_shown_as_it_is_typed(name: str, value: object, shown: str) -> None:
    assert pasted(name, value) == shown


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("smaller tables", "Smaller tables."),
        ("mem_fraction_static is too large", "mem_fraction_static is too large."),
        ("Done.", "Done."),
    ],
)
def test_reasons_are_sentences(given: str, shown: str) -> None:
    assert sentence(given) == shown


def test_figures_have_words_and_units() -> None:
    assert words("free_after_weights_gib") == "free after the weights"
    assert words("mem_fraction_static") == "mem_fraction_static"
    assert unit("weights_gib") == " GiB"
    assert unit("mem_fraction_static") == ""


@pytest.mark.parametrize(
    ("item", "shown"),
    [
        (Inferred("weights_gib", 72.3, 72.29, 72.31, ""), "72.30 GiB (72.29 to 72.31)"),
        (Inferred("mem_fraction_static", 0.88, 0.8799, 0.8801, ""), "0.8800 (0.8799 to 0.8801)"),
        (Inferred("tp_size", 8, 8, 4096, ""), "at least 8"),
        (Inferred("kv_element_bytes", 2, 2, 2, ""), "2 bytes"),
    ],
)
def test_a_figure_is_shown_as_exactly_as_it_is_known(item: Inferred, shown: str) -> None:
    assert number(item) == shown


@pytest.mark.parametrize(
    ("certainty", "said"), [("certain", ""), ("likely", "Probably: "), ("possible", "Possibly: ")]
)
def test_doubt_is_said(certainty: How, said: str) -> None:
    found = replace(diagnosis(FOUNDING / "fewer-channels.log"), certainty=certainty)
    assert f"\n  {said}The weights alone hold" in printed(found)


def test_ranks_are_sorted_by_their_numbers() -> None:
    assert sorted(["TP10", "TP2", "DP0 TP1"], key=rank_order) == ["DP0 TP1", "TP2", "TP10"]


def ledger(rank: str, weights: float) -> Ledger:
    return Ledger(rank, 80 * GIB, (Entry.exact("weights", "weights", round(weights * GIB), "x"),))


def test_alike_ranks_are_one_line() -> None:
    same = [ledger("TP0", 20), ledger("TP1", 20), ledger("TP2", 20)]
    assert [label for label, _ in alike(same)] == ["TP0 … TP2"]
    apart = [ledger("TP0", 20), ledger("TP1", 30), ledger("TP2", 20)]
    assert [label for label, _ in alike(apart)] == ["TP0, TP2", "TP1"]
