"""What each release means by acceptance, and where it is read from."""

from __future__ import annotations

from pathlib import Path

import pytest
from packaging.version import Version

from ullage.core.errors import InputError
from ullage.diagnose.read import read
from ullage.spec import prometheus
from ullage.spec.acceptance import Width, meaning, of_length, of_positions, to_length
from ullage.spec.observed import of_rate, of_run, of_scrape

FOUR = Width(3, 1, 4)


@pytest.mark.parametrize(
    ("engine", "release", "rate", "width", "length"),
    [
        # 0.56 with 4 draft tokens: 2.24 up to 0.5.10, 2.68 from 0.5.11 on
        ("sglang", "0.5.9", 0.56, FOUR, 2.24),
        ("sglang", "0.5.10.post1", 0.56, FOUR, 2.24),
        ("sglang", "0.5.11", 0.56, FOUR, 2.68),
        ("sglang", "0.5.23", 0.56, FOUR, 2.68),
        # a tree of depth 5 with 8 tokens: by steps + 1 = 6 before, by 8 since 0.5.5.post3
        ("sglang", "0.5.5", 0.5, Width(5, 4, 8), 3.0),
        ("sglang", "0.5.5.post2", 0.5, Width(5, 4, 8), 3.0),
        ("sglang", "0.5.5.post3", 0.5, Width(5, 4, 8), 4.0),
        ("vllm", "0.8.4", 0.426, FOUR, 2.278),
        ("vllm", "0.11.0", 0.426, FOUR, 2.278),
    ],
)
def test_a_rate_in_the_meaning_of_its_release(
    engine: str, release: str, rate: float, width: Width, length: float
) -> None:
    assert of_rate(rate, engine, Version(release), width, "x").length == pytest.approx(length)


def test_a_rate_of_one_answer_has_a_meaning_of_its_own() -> None:
    tree = Width(5, 4, 8)
    assert of_rate(0.4, "sglang", Version("0.5.5"), tree, "x", "request").length == pytest.approx(3.0)
    assert of_rate(0.4, "sglang", Version("0.5.6"), tree, "x", "request").length == pytest.approx(3.8)


def test_a_release_without_a_rate_says_so() -> None:
    with pytest.raises(InputError, match="no acceptance rate"):
        of_rate(0.5, "sglang", Version("0.5.3"), FOUR, "--accept-rate")


@pytest.mark.parametrize(("release", "length"), [("0.8.5", 2.28), ("0.9.0", 1.28), ("0.33.0", 1.28)])
def test_vllm_counts_the_bonus_from_0_9_0_on(release: str, length: float) -> None:
    row = meaning("vllm", "length", Version(release))
    assert row is not None
    assert to_length(1.28, row, FOUR) == pytest.approx(length)


@pytest.mark.parametrize("rates", [(), (0.5, 0.6), (1.2,), (-0.1,), (0.5,) * 65])
def test_rates_that_cannot_be_are_refused(rates: tuple[float, ...]) -> None:
    with pytest.raises(InputError):
        of_positions(rates, FOUR, "--accept")


@pytest.mark.parametrize("length", [0.9, 4.2])
def test_lengths_that_a_width_cannot_give_are_refused(length: float) -> None:
    with pytest.raises(InputError, match="gives 1 to 4"):
        of_length(length, FOUR, "--accept-length")


def test_a_length_is_carried_to_another_depth() -> None:
    found = of_length(2.687, FOUR, "card", (2.5, 2.8))
    assert found.at(FOUR) == 2.687
    assert found.at(FOUR.deeper(2)) == pytest.approx(2.28, abs=0.01)
    low, high = found.limits(FOUR.deeper(2))
    assert low < found.at(FOUR.deeper(2)) < high <= 3


VLLM = """\
(APIServer pid=1) INFO 10-11 10:00:01 [api_server.py:1839] vLLM API server version {version}
(APIServer pid=1) INFO:     Application startup complete.
(APIServer pid=1) INFO 10-11 10:05:01 [metrics.py:96] SpecDecoding metrics: Mean acceptance length: 2.26, Accepted throughput: 128.00 tokens/s, Drafted throughput: 300.00 tokens/s, Accepted: 1280 tokens, Drafted: 3000 tokens, Per-position acceptance rate: 0.640, 0.390, 0.230, Avg Draft acceptance rate: 42.6%
(APIServer pid=1) INFO 10-11 10:05:11 [metrics.py:96] SpecDecoding metrics: Mean acceptance length: 2.30, Accepted throughput: 128.00 tokens/s, Drafted throughput: 300.00 tokens/s, Accepted: 1280 tokens, Drafted: 3000 tokens, Per-position acceptance rate: 0.650, 0.396, 0.250, Avg Draft acceptance rate: 42.6%
"""


def test_a_vllm_log_gives_rates_per_position(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text(VLLM.format(version="0.11.0"))
    found = of_run(read([str(log)]).runs[-1], FOUR)
    assert found is not None
    assert found.length == pytest.approx(2.28)
    assert found.low < 2.28 < found.high
    assert found.positions == pytest.approx((0.645, 0.393, 0.240))
    assert "a.log:3" in found.source


def test_an_sglang_log_gives_its_accept_length(tmp_path: Path) -> None:
    log = tmp_path / "b.log"
    line = "[2026-02-01 10:05:0{n} TP0] Decode batch, #running-req: 1, #token: 1024, token usage: 0.01, accept len: {l}, accept rate: 0.68, cuda graph: True, gen throughput (token/s): 54.10, #queue-req: 0,\n"
    log.write_text(line.format(n=0, l="2.04") + line.format(n=1, l="2.12"))
    found = of_run(read([str(log)]).runs[-1], Width(2, 1, 3))
    assert found is not None and found.length == pytest.approx(2.08)


SCRAPE = """\
# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
vllm:spec_decode_num_drafts_total{{engine="0",model_name="m"}} {drafts}
vllm:spec_decode_num_draft_tokens_total{{engine="0",model_name="m"}} {tokens}
vllm:spec_decode_num_accepted_tokens_total{{engine="0",model_name="m"}} {accepted}
vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",model_name="m",position="0"}} {first}
vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",model_name="m",position="1"}} {second}
"""


def test_counters_give_rates_per_position() -> None:
    scrape = prometheus.read(SCRAPE.format(drafts=1000, tokens=2000, accepted=1038, first=645, second=393), "x")
    found = of_scrape(scrape, Width(2, 1, 3), None, "x")
    assert found.length == pytest.approx(2.038)
    assert found.positions == pytest.approx((0.645, 0.393))


def test_two_scrapes_give_what_came_between() -> None:
    before = prometheus.read(SCRAPE.format(drafts=1e3, tokens=2e3, accepted=2e3, first=1e3, second=1e3), "x")
    after = prometheus.read(SCRAPE.format(drafts=2e3, tokens=4e3, accepted=3038, first=1645, second=1393), "x")
    assert of_scrape(after.since(before), Width(2, 1, 3), None, "x").length == pytest.approx(2.038)
    with pytest.raises(InputError, match="counts less"):
        before.since(after)


def test_gauges_of_idle_ranks_do_not_count() -> None:
    text = 'sglang:spec_accept_length{tp_rank="0"} 2.1\nsglang:spec_accept_length{tp_rank="1"} 0.0\n'
    assert of_scrape(prometheus.read(text, "x"), Width(2, 1, 3), None, "x").length == pytest.approx(2.1)


def test_a_gauge_of_the_rate_is_read_by_release() -> None:
    scrape = prometheus.read("sglang:spec_accept_rate 0.56\n", "x")
    assert of_scrape(scrape, FOUR, Version("0.5.9"), "x").length == pytest.approx(2.24)
    assert of_scrape(scrape, FOUR, Version("0.5.11"), "x").length == pytest.approx(2.68)


@pytest.mark.parametrize("text", ["", "x\n" * 100, "\x00\xff{", "vllm:num_requests_running 1\n", "a{" * 5000])
def test_text_without_speculation_is_one_clear_error(text: str) -> None:
    with pytest.raises(InputError, match="no metric of speculation"):
        prometheus.read(text, "metrics.txt")
