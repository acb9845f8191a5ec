"""Every form of prefix: what is taken off, and what is learnt from it."""

from __future__ import annotations

import re

import pytest

from ullage.core.run import Rank
from ullage.logs.lines import lines_of
from ullage.logs.prefixes import table

HEAD = "[2026-02-01 10:00:00 TP3] "
#: row of prefixes.toml -> (line as logged, message, what its prefix says)
EXAMPLES: dict[str, tuple[str, str, dict[str, object]]] = {
    "cri": (
        f"2026-02-01T10:00:00.123456789Z stdout F {HEAD}Memory pool end. avail mem=1.00 GB",
        "Memory pool end. avail mem=1.00 GB",
        {"rank": Rank(tp=3)},
    ),
    "rfc3339": (f"2026-02-01T10:00:00.123Z {HEAD}x", "x", {"rank": Rank(tp=3)}),
    "journald": (f"2026-02-01T10:00:00+0000 box sglang[812]: {HEAD}x", "x", {"rank": Rank(tp=3)}),
    "kubectl": (f"[pod/llm-0/server] {HEAD}x", "x", {"rank": Rank(tp=3)}),
    "mpirun": (f"Thu Jan 23 11:55:50 2025[1,1]<stderr>:{HEAD}x", "x", {"rank": Rank(tp=3)}),
    "compose": (f"vllm-1  | {HEAD}x", "x", {"rank": Rank(tp=3)}),
    "syslog": (f"Feb  1 10:00:00 box docker/llm[99]: {HEAD}x", "x", {"rank": Rank(tp=3)}),
    "slurm": (f" 3: {HEAD}x", "x", {"rank": Rank(tp=3, process="rank3")}),
    "ray-or-vllm": (
        "(ServeReplica:llm:VLLM pid=77, ip=10.0.0.2) INFO 02-01 10:00:00 [core.py:1] x",
        "x",
        {"rank": Rank(process="ServeReplica:llm:VLLM", pid=77), "level": "INFO"},
    ),
    "rank": ("[rank3]: x y", "x y", {"rank": Rank(process="rank3")}),
    "torchrun": ("[default7]:x y", "x y", {"rank": Rank(process="rank7")}),
    "sglang": ("[2026-02-01 10:00:00.250 DP1 PP0 ATTN_CP0 MOE_DP9 TP5 EP5] x", "x", {"rank": Rank(dp=1, pp=0, tp=5, ep=5)}),
    "sglang-without-time": ("[TP3] x", "x", {"rank": Rank(tp=3), "time": None}),
    "vllm": (
        "(Worker_DP1_PP0_PCP2_TP3_DCP4_EP5 pid=7) ERROR 02-01 10:00:00 [v1/worker/gpu_worker.py:12] x",
        "x",
        {"rank": Rank(tp=3, pp=0, dp=1, ep=5, process="Worker_DP1_PP0_PCP2_TP3_DCP4_EP5", pid=7), "level": "ERROR", "where": "v1/worker/gpu_worker.py:12"},
    ),
    "vllm-without-time": ("INFO [kv_cache_utils.py:1] x", "x", {"level": "INFO", "where": "kv_cache_utils.py:1"}),
    "torch": (
        "[rank3]:[W1129 16:51:28.038804601 ProcessGroupNCCL.cpp:68] Warning: x",
        "Warning: x",
        {"rank": Rank(process="rank3"), "level": "WARNING", "where": "ProcessGroupNCCL.cpp:68"},
    ),
    "torch-without-time": ("[E ProcessGroupNCCL.cpp:616] x", "x", {"level": "ERROR", "where": "ProcessGroupNCCL.cpp:616"}),
    "torch-python": ("W1129 16:51:28.038000 4711 torch/run.py:792] x", "x", {"rank": Rank(pid=4711), "level": "WARNING"}),
    "nccl": ("node1:101:222 [2] NCCL INFO Using network Socket", "NCCL INFO Using network Socket", {"rank": Rank(process="cuda:2", pid=101)}),
    "relayed": (f"2026-02-01 10:00:00,123 - sglang - INFO - {HEAD}x", "x", {"rank": Rank(tp=3)}),
    "python-logging": ("2026-02-01 10:00:00,123 - sglang.srt - WARNING - x", "x", {"level": "WARNING"}),
    "time": ("2026-02-01 10:00:00 x y", "x y", {}),
    "uvicorn": ("INFO:     Application startup complete.", "Application startup complete.", {"level": "INFO"}),
}  # fmt: skip


def test_every_form_has_an_example() -> None:
    assert {row.name for row in table().prefix + table().level} == set(EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_prefix_is_taken_off(name: str) -> None:
    raw, text, said = EXAMPLES[name]
    (line,) = lines_of(raw)
    assert line.text == text
    for field, value in said.items():
        assert getattr(line, field) == value, field


@pytest.mark.parametrize("name", EXAMPLES)
def test_each_pattern_begins_with_one_of_its_first_characters(name: str) -> None:
    """A form whose ``first`` lacks the character would never be tried on such a line."""
    row = next(row for row in table().prefix + table().level if row.name == name)
    raw = EXAMPLES[name][0]
    assert any(re.match(row.pattern, raw[i:]) and raw[i] in row.first for i in range(len(raw)))


@pytest.mark.parametrize(
    ("raw", "rank"),
    [
        ("[2025-01-01 00:00:00 TP0] x", Rank(tp=0)),
        ("[2025-01-01 00:00:00 DP2 TP1] x", Rank(dp=2, tp=1)),
        ("[2025-01-01 00:00:00 DP2 TP1 PP3] x", Rank(dp=2, tp=1, pp=3)),
        ("[2025-01-01 00:00:00] x", Rank()),
        ("(VllmWorkerProcess pid=9) INFO 01-01 00:00:00 worker.py:267] x", Rank(process="VllmWorkerProcess", pid=9)),
        ("(VllmWorker rank=3 pid=9) INFO 01-01 00:00:00 [a.py:1] x", Rank(tp=3, process="VllmWorker rank=3", pid=9)),
        ("(VllmWorker PP0_TP1 pid=9) INFO 01-01 00:00:00 [a.py:1] x", Rank(pp=0, tp=1, process="VllmWorker PP0_TP1", pid=9)),
        ("\x1b[1;36m(EngineCore_DP0 pid=9)\x1b[0;0m INFO 01-01 00:00:00 [a.py:1] x", Rank(dp=0, process="EngineCore_DP0", pid=9)),
        ("[1;36m(EngineCore_DP0 pid=9)[0;0m INFO 01-01 00:00:00 [a.py:1] x", Rank(dp=0, process="EngineCore_DP0", pid=9)),
        ("(APIServer pid=9) INFO:     x", Rank(process="APIServer", pid=9)),
        ("INFO 01-01 00:00:00 worker.py:267] x", Rank()),
        ("my own prefix", None),
    ],
)  # fmt: skip
def test_ranks(raw: str, rank: Rank | None) -> None:
    (line,) = lines_of(raw)
    assert line.text == ("x" if rank is not None else raw)
    assert line.rank == (rank or Rank())


def test_text_in_front_of_a_vllm_head_is_tolerated() -> None:
    """VLLM_LOGGING_PREFIX puts any text there (0.6.4+)."""
    (line,) = lines_of("[prod-eu 7] INFO 01-01 00:00:00 [gpu_worker.py:1] Available KV cache memory: 1.0 GiB")
    assert line.text == "Available KV cache memory: 1.0 GiB"
    assert line.where == "gpu_worker.py:1"


@pytest.mark.parametrize(
    "raw",
    [
        '{"log":"[2026-02-01 10:00:00 TP3] x\\n","stream":"stderr","time":"2026-02-01T10:00:00.1Z"}',
        '{"message":"[2026-02-01 10:00:00 TP3] x"}',
        '{"severity":"INFO","msg":"[2026-02-01 10:00:00 TP3] x","ts":1.5}',
        '{"textPayload":"[2026-02-01 10:00:00 TP3] x","timestamp":"2026-02-01T10:00:00Z"}',
        '{"version":"1.1","host":"n","short_message":"[2026-02-01 10:00:00 TP3] x","level":6}',
        '{"log":"{\\"message\\":\\"[2026-02-01 10:00:00 TP3] x\\"}\\n"}',
        '2026-02-01T10:00:00Z {"log":"\\u001b[32m[2026-02-01 10:00:00 TP3]\\u001b[0m x\\r\\n"}',
        '{"log":{"message":"[2026-02-01 10:00:00 TP3] x"},"kubernetes":{"pod":"p"}}',
    ],
)
def test_json_lines_are_opened(raw: str) -> None:
    (line,) = lines_of(raw)
    assert (line.text, line.rank) == ("x", Rank(tp=3))


def test_json_that_is_no_wrapper_stays() -> None:
    for raw in ("{'a': 1}", '{"a": 1}', "{broken", "{}", '{"log": 7}', "{" * 4000 + "}" * 4000):
        assert [line.text for line in lines_of(raw)] == [raw]


def test_a_traceback_inside_one_json_record() -> None:
    raw = '{"level":"error","message":"boom","exc_info":"Traceback (most recent call last):\\n  File \\"a.py\\", line 1, in f\\nValueError: x"}'
    *_, last = lines_of(raw)
    assert last.trace is not None
    assert last.trace.text == "ValueError: x"


def test_cri_parts_are_joined() -> None:
    (line, other) = lines_of(
        "2026-02-01T10:00:00Z stdout P [2026-02-01 10:00:00 TP1] one \n2026-02-01T10:00:00Z stdout F two\n"
        "2026-02-01T10:00:00Z stdout F three"
    )
    assert (line.text, line.rank.tp, other.text) == ("one two", 1, "three")


def test_slurm_labels_need_proof() -> None:
    assert lines_of("3: not a label")[0].text == "3: not a label"
    assert [line.text for line in lines_of(f"0: {HEAD}a\n1: b")] == ["a", "b"]


def test_doubled_process_prefix() -> None:
    """Two processes wrote their prefix before either wrote its text."""
    (line,) = lines_of("(Worker_TP0 pid=1) (Worker_TP1 pid=2) INFO 01-01 00:00:00 [a.py:1] x")
    assert (line.text, line.rank.pid) == ("x", 2)


def test_times_are_on_one_scale() -> None:
    texts = [
        "[2025-12-31 23:59:50 TP0] a",
        "INFO 12-31 23:59:55 [a.py:1] b",
        "[W1231 23:59:58.500000000 a.cpp:1] c",
        "INFO 01-01 00:00:05 [a.py:1] d",
        "[2026-01-01 00:00:10] e",
        "no time",
    ]
    times = [line.time for line in lines_of("\n".join(texts))]
    first = times[0]
    assert first is not None
    assert [t - first if t is not None else None for t in times] == pytest.approx([0, 5, 8.5, 15, 20, None])


def test_ray_repetition_mark_is_taken_off() -> None:
    (line,) = lines_of("(W pid=1) OSError: x [repeated 7x across cluster] (Ray deduplicates logs by default.)")
    assert line.trace is not None
    assert line.trace.message == "x"
