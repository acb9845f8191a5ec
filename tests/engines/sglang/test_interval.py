"""The fractions that work, and the one to recommend, on figures of real and made-up starts."""

from __future__ import annotations

import pytest

from ullage.core.deployment import Deployment, Reading
from ullage.core.launch import Arg, Launch
from ullage.core.run import Failure, Ready, Run, Source
from ullage.core.units import GIB, Measured
from ullage.engines.sglang import memory
from ullage.engines.sglang.interval import recommended
from ullage.engines.sglang.known import known
from ullage.engines.sglang.room import by_rules, default_fraction, observed
from ullage.models import load as models

BEFORE, AFTER = {"free_before_weights_gib": "94.08"}, {"free_after_weights_gib": "21.78"}


def start(
    read: dict[str, str], fraction: float | None = 0.55, model: str | None = "moonshotai/Kimi-K2.5"
) -> Deployment:
    args = {
        "tp_size": Arg(8, "given"),
        "cuda_graph_max_bs": Arg(128, "given"),
        "chunked_prefill_size": Arg(8192, "given"),
    }
    if fraction is not None:
        args["mem_fraction_static"] = Arg(fraction, "given")
    launch = Launch("sglang", "0.5.9", "command", model, args)
    readings = {name: Reading(name, Measured.parse(value), "A.log:1") for name, value in read.items()}
    return Deployment(launch, models.find(model) if model else None, None, readings)


def test_what_must_fit_holds_tables_graphs_libraries_and_a_prefill_chunk() -> None:
    room = by_rules(known(start(BEFORE | AFTER)), 0.769)
    assert room is not None
    for words in ("request table", "activations of a prefill chunk", "CUDA graphs"):
        assert words in room.because
    assert 2.0 * GIB < room.least < room.likely(94.08 * GIB) < room.most
    assert room.likely(94.08 * GIB) > room.start.value + 5 * GIB


def test_the_founding_launch_is_told_a_prudent_fraction() -> None:
    found = memory.interval(None, start(BEFORE | AFTER))
    assert found.recommended is not None and 0.84 <= found.recommended <= 0.88
    assert found.high is not None and found.high > 0.94


def test_a_seen_need_beats_the_rules() -> None:
    read = BEFORE | AFTER | {"kv_gib": "10.49", "free_at_ready_gib": "6.96"}
    room = observed(Run("sglang"), known(start(read, 0.88)))
    assert room is not None
    assert room.start.value / GIB == pytest.approx(94.08 * 0.12 - 6.96, abs=0.01)
    assert "until it was up" in room.because


def test_a_start_that_worked_lies_inside_and_is_kept() -> None:
    read = BEFORE | AFTER | {"kv_gib": "10.49", "kv_tokens": "160291", "free_at_ready_gib": "6.96"}
    ready = Ready(source=Source("A.log", 9), text="The server is fired up and ready to roll!")
    found = memory.interval(Run("sglang", events=(ready,)), start(read, 0.88))
    assert found.low is not None and found.high is not None and found.low < 0.88 <= found.high
    assert found.recommended == pytest.approx(0.88)


def test_after_running_out_of_memory_less_is_recommended() -> None:
    read = BEFORE | AFTER | {"kv_gib": "15.19", "oom_alloc_gib": "3.00", "oom_free_gib": "1.00"}
    oom = Failure(
        source=Source("A.log", 9), kind="cuda-oom", at="serving", text="",
        message="CUDA out of memory. Tried to allocate 3.00 GiB",
    )  # fmt: skip
    found = memory.interval(Run("sglang", events=(oom,)), start(read, 0.93))
    assert found.high is not None and found.high <= 0.93 - 2.0 / 94.08 + 0.001
    assert found.recommended is not None and found.recommended <= 0.93 - 3.0 / 94.08 + 0.005


def test_the_scheduler_s_own_shortage_is_no_bound() -> None:
    """ "Out of memory even after retracting" is about tokens of the pool, not GPU memory."""
    words = "Out of memory even after retracting all other requests in the decode batch."
    failure = Failure(source=Source("A.log", 9), kind="", at="serving", text="", message=words)
    bounded = memory.interval(Run("sglang", events=(failure,)), start(BEFORE | AFTER, 0.88))
    assert bounded.high == memory.interval(Run("sglang"), start(BEFORE | AFTER, 0.88)).high


def test_memory_that_another_process_gave_back_gives_no_interval() -> None:
    read = {"free_before_weights_gib": "61.06", "free_after_weights_gib": "65.42"}
    deployment = start(read, 0.6)
    assert memory.interval(None, deployment).low is None
    assert "least_mem_fraction_static" not in memory.infer(Run("sglang"), deployment)
    assert any("gave memory back" in text for text in memory.contradictions(Run("sglang"), deployment))
    assert not [e for item in memory.budget(deployment).ledgers for e in item.entries if e.bytes < 0]


def test_the_engine_s_default_for_a_card_of_this_size() -> None:
    found = default_fraction(known(start(BEFORE | AFTER)))
    assert found is not None and 0.84 < found < 0.87


@pytest.mark.parametrize(
    ("low", "high", "wanted", "value"),
    [
        (0.769, 0.96, 0.857, 0.86),
        (0.92, 0.96, 0.85, 0.944),
        (0.97, 0.96, 0.9, None),
        (0.5, 0.9, 0.95, 0.9),
    ],
)
def test_recommended_lies_inside(low: float, high: float, wanted: float, value: float | None) -> None:
    assert recommended(low, high, wanted) == value


def test_stages_that_are_not_printed_count_nothing_twice() -> None:
    """A log that prints the pool's size but not what is free after it: the drop holds the pool."""
    read = {
        "free_before_weights_gib": "23.08", "free_after_weights_gib": "16.00",
        "k_gib": "5.69", "v_gib": "5.69", "free_at_ready_gib": "2.82",
    }  # fmt: skip
    (ledger,) = memory.budget(start(read, 0.8, None)).ledgers
    assert ledger.left_bytes / GIB == pytest.approx(2.82, abs=0.02)


def test_a_drop_without_pool_sizes_is_called_the_pool() -> None:
    read = {
        "free_before_weights_gib": "43.85",
        "free_after_weights_gib": "14.34",
        "free_after_kv_pool_gib": "3.97",
    }
    (ledger,) = memory.budget(start(read, 0.88, None)).ledgers
    assert ("KV pool and request table", "kv_pool") in [(e.name, e.stage) for e in ledger.entries]


def test_the_reserve_is_named() -> None:
    reserve = memory.budget(start(BEFORE | AFTER)).reserve
    assert reserve is not None and reserve.bytes / GIB == pytest.approx(42.34, abs=0.01)


def test_a_cap_on_tokens_caps_the_pool_without_a_known_model() -> None:
    read = BEFORE | AFTER | {"kv_gib": "10.42", "kv_tokens": "159221"}
    capped = start(read, 0.88, None).with_args(max_total_tokens=Arg(50_000, "given"))
    found = memory.budget(capped)
    assert found.kv_tokens is not None and found.kv_tokens.value == 50_000


def test_a_refusal_above_the_weights_share_bounds_nothing() -> None:
    """The figures of one rank leave a pool at 0.95, the engine found none: another term or rank decides."""
    words = "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static."
    refused = Failure(source=Source("A.log", 9), kind="", at="kv_pool", text="", message=words)
    run = Run("sglang", events=(refused,))
    assert memory.interval(run, start(BEFORE | AFTER, 0.95)).low is None
    assert memory.interval(run, start(BEFORE | AFTER, 0.55)).low is not None


def test_a_workspace_that_the_log_shows_must_fit_too() -> None:
    plain = by_rules(known(start(BEFORE | AFTER, 0.88)), 0.769)
    shown = by_rules(known(start(BEFORE | AFTER | {"workspace_gib": "10.00"}, 0.88)), 0.769)
    assert plain is not None and shown is not None
    assert shown.least - plain.least == pytest.approx(10 * GIB, rel=0.01)
