"""Tracebacks of every shape, joined to one Line."""

from __future__ import annotations

import random

import pytest

from ullage.core.run import Line, Trace
from ullage.logs.lines import lines_of
from ullage.logs.trace import FIRST_FRAMES, LAST_FRAMES

BODY = [
    "Traceback (most recent call last):",
    '  File "a/scheduler.py", line 10, in run',
    "    self.step()",
    "    ^^^^^^^^^^^",
    '  File "a/model.py", line 20, in step',
    "    raise RuntimeError(x)",
    "  [Previous line repeated 3 more times]",
    "RuntimeError: first",
]
CHAIN = [
    *BODY, "", "The above exception was the direct cause of the following exception:", "",
    "Traceback (most recent call last):", '  File "b.py", line 1, in outer', "ValueError: second", "second line of it",
]  # fmt: skip
VLLM = "(Worker_TP{0} pid=10{0}) ERROR 01-01 00:00:00 [multiproc_executor.py:949] "


def traces(lines: list[Line]) -> list[Trace]:
    return [line.trace for line in lines if line.trace is not None]


def one(text: str) -> tuple[Line, Trace]:
    (line,) = [line for line in lines_of(text) if line.trace is not None]
    assert line.trace is not None
    return line, line.trace


def test_sglang_head_keeps_its_text_and_rank() -> None:
    head = "[2026-01-01 00:00:00 DP1 TP3] Scheduler hit an exception: "
    lines = lines_of(
        "[2026-01-01 00:00:00] a\n" + head + "\n".join(CHAIN) + "\n\n[2026-01-01 00:00:01] SIGQUIT received."
    )
    assert [line.source.line for line in lines] == [1, 2, 18]
    line, trace = lines[1], lines[1].trace
    assert trace is not None
    assert line.text == "Scheduler hit an exception: Traceback (most recent call last):"
    assert line.rank.label == "DP1 TP3"
    assert trace.text == "ValueError: second\nsecond line of it"
    assert trace.root.text == "RuntimeError: first"
    assert [(f.file, f.line, f.function) for f in trace.root.frames] == [
        ("a/scheduler.py", 10, "run"),
        ("a/model.py", 20, "step"),
    ]
    assert lines[2].text == "SIGQUIT received."


@pytest.mark.parametrize("prefix", ["", "(EngineCore pid=7) ", "[rank2]: ", VLLM.format(0), "(W pid=3, ip=10.0.0.1) ", "2026-01-01T00:00:00Z ", "llm-1  | [rank0]: "])  # fmt: skip
def test_any_prefix_on_every_line(prefix: str) -> None:
    line, trace = one("\n".join(prefix + text for text in CHAIN))
    assert trace.text == "ValueError: second\nsecond line of it"
    assert trace.root.text == "RuntimeError: first"
    assert line.text == "ValueError: second"
    assert line.source.line == 1


def test_vllm_record_takes_its_own_traceback() -> None:
    record = ["WorkerProc hit an exception.", *BODY, ""]
    lines = lines_of(
        "\n".join(VLLM.format(1) + text for text in record) + "\nINFO 01-01 00:00:09 [b.py:1] next"
    )
    assert [line.text for line in lines] == ["WorkerProc hit an exception.", "next"]
    assert traces(lines)[0].text == "RuntimeError: first"
    assert lines[0].rank.tp == 1


def test_interleaved_ranks_keep_their_own() -> None:
    """Lines of different processes in any order that keeps each one's own."""
    shuffle = random.Random(7)
    left = {
        rank: [
            VLLM.format(rank) + t.replace("first", f"of {rank}")
            for t in ["WorkerProc hit an exception.", *CHAIN]
        ]
        for rank in range(8)
    }
    order = [rank for rank, texts in left.items() for _ in texts]
    shuffle.shuffle(order)
    lines = lines_of("\n".join(left[rank].pop(0) for rank in order))
    assert len(lines) == 8
    assert {(line.rank.tp, line.trace.root.message) for line in lines if line.trace} == {
        (r, f"of {r}") for r in range(8)
    }
    assert [line.source.line for line in lines] == sorted(line.source.line for line in lines)


def test_a_cascade_is_not_swallowed() -> None:
    text = "\n".join([
        "[2026-01-01 00:00:00 TP0] Scheduler hit an exception: " + BODY[0], *BODY[1:],
        "[2026-01-01 00:00:01 TP1] Scheduler hit an exception: " + BODY[0], BODY[1], "OSError: other",
        "(EngineCore pid=5) EngineDeadError: EngineCore encountered an issue.",
        "[2026-01-01 00:00:02] Received sigquit from a child process.",
    ])  # fmt: skip
    lines = lines_of(text)
    assert [t.text for t in traces(lines)] == [
        "RuntimeError: first",
        "OSError: other",
        "EngineDeadError: EngineCore encountered an issue.",
    ]
    assert lines[-1].text.startswith("Received sigquit")


def test_a_traceback_torn_by_another_rank() -> None:
    """A pipe takes 4 KiB at once: TP1's traceback stands in the middle of TP0's."""
    lines = lines_of("\n".join([
        "[2026-01-01 00:00:00 TP0] Scheduler hit an exception: " + BODY[0], BODY[1],
        "[2026-01-01 00:00:00 TP1] Scheduler hit an exception: " + BODY[0], BODY[4], "OSError: of 1",
        BODY[4], "RuntimeError: of 0", "[2026-01-01 00:00:01] end",
    ]))  # fmt: skip
    assert [(line.rank.tp, line.trace.text) for line in lines if line.trace] == [
        (0, "RuntimeError: of 0"),
        (1, "OSError: of 1"),
    ]


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        ("RuntimeError: x y", "RuntimeError", "x y"),
        ("torch.OutOfMemoryError: CUDA out of memory.", "torch.OutOfMemoryError", "CUDA out of memory."),
        ("sglang.srt.X.FooError: a: b", "sglang.srt.X.FooError", "a: b"),
        ("EOFError", "EOFError", ""),
        ("AssertionError", "AssertionError", ""),
        ("SystemExit: 1", "SystemExit", "1"),
        ("Exception: Capture cuda graph failed: y", "Exception", "Capture cuda graph failed: y"),
        ("ray.exceptions.RayTaskError(ValueError): z", "ray.exceptions.RayTaskError(ValueError)", "z"),
        ("triton.runtime.errors.OutOfResources: out of resource", "triton.runtime.errors.OutOfResources", "out of resource"),
        ("(Worker_TP1 pid=4) ERROR 01-01 00:00:00 [core.py:700] ValueError: q", "ValueError", "q"),
    ],
)  # fmt: skip
def test_an_exception_line_alone(text: str, name: str, message: str) -> None:
    _, trace = one(text)
    assert (trace.exception, trace.message, trace.frames) == (name, message, ())


@pytest.mark.parametrize(
    "text",
    [
        "Error: no such option", "ncclSystemError: System call", "a.py:3: UserWarning: careful", "INFO: fine",
        "Failed core proc(s): {}", "Load weight end. type=RuntimeError", "Exceptional: no", "ValueError happened here",
    ],
)  # fmt: skip
def test_what_is_no_exception_line(text: str) -> None:
    assert traces(lines_of(text)) == []


def test_neighbouring_lone_exceptions_stay_apart() -> None:
    assert [t.text for t in traces(lines_of("RuntimeError: a\nValueError: b"))] == [
        "RuntimeError: a",
        "ValueError: b",
    ]


def test_a_shortened_chain() -> None:
    """People cut frames out: two exception lines under one head are a chain."""
    _, trace = one(
        "[2026-01-01 00:00:00 TP0] Scheduler hit an exception: Traceback (most recent call last):\nRuntimeError: a\nException: Capture cuda graph failed: a\nPossible solutions:\n1. x"
    )
    assert trace.text == "Exception: Capture cuda graph failed: a\nPossible solutions:\n1. x"
    assert trace.root.text == "RuntimeError: a"


def test_messages_of_many_lines() -> None:
    nccl = [
        "torch.distributed.DistBackendError: NCCL error in: x",
        "ncclSystemError: System call failed.",
        "Last error:",
        "Error while creating shared memory segment",
    ]
    _, trace = one("\n".join([*BODY[:-1], *nccl]))
    assert trace.message.split("\n")[1:] == nccl[1:]
    pydantic = [
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig",
        "  Value error, unknown [type=value_error]",
        "    For further information",
    ]
    assert one("\n".join([*BODY[:-1], *pydantic]))[1].message.count("\n") == 2
    triton = [
        "triton.compiler.errors.CompilationError: at 322:24:",
        "    if K == 2:",
        "    ^",
        "AssertionError('initial value for `x`')",
    ]
    assert one("\n".join([*BODY[:-1], *triton]))[1].message.endswith("AssertionError('initial value for `x`')")


def test_statements_after_an_exception_are_not_its_message() -> None:
    lines = lines_of(
        "\n".join(
            [
                *BODY,
                "Load weight end. avail mem=1.00 GB",
                "Loading safetensors checkpoint shards:   0% Completed | 0/4 [00:00<?, ?it/s]",
            ]
        )
    )
    assert [line.text[:9] for line in lines] == ["RuntimeEr", "Load weig", "Loading s"]


@pytest.mark.parametrize("cut", range(1, len(CHAIN)))
def test_cut_at_any_line(cut: int) -> None:
    for text in ("\n".join(CHAIN[cut:]), "\n".join(CHAIN[:cut])):
        found = traces(lines_of(text))
        assert all(t.exception in ("", "RuntimeError", "ValueError") for t in found)
        assert found or cut >= len(CHAIN) - 1 or cut == 1


def test_frames_are_capped() -> None:
    frames = [f'  File "a.py", line {i}, in f{i}' for i in range(1000)]
    _, trace = one("\n".join([BODY[0], *frames, "RecursionError: deep"]))
    assert len(trace.frames) == FIRST_FRAMES + LAST_FRAMES
    assert (trace.frames[0].function, trace.frames[-1].function) == ("f0", "f999")


def test_exception_groups() -> None:
    _, trace = one(
        "  + Exception Group Traceback (most recent call last):\n"
        '  |   File "a.py", line 1, in f\n'
        "  | ExceptionGroup: unhandled errors in a TaskGroup (2 sub-exceptions)\n"
        "  +-+---------------- 1 ----------------\n"
        "    | Traceback (most recent call last):\n"
        '    |   File "b.py", line 2, in g\n'
        "    | ValueError: inner\n"
        "    +---------------- 2 ----------------\n"
        "    | Traceback (most recent call last):\n"
        '    |   File "c.py", line 3, in h\n'
        "    | OSError: second\n"
        "    +------------------------------------\n"
    )
    assert trace.exception == "ExceptionGroup"
    assert trace.root.text == "ValueError: inner"


def test_ray_prints_the_outer_exception_first() -> None:
    _, trace = one(
        'Traceback (most recent call last):\n  File "ray/worker.py", line 9, in get\n'
        "ray.exceptions.RayTaskError(ValueError): ray::W.run() (pid=7)\n"
        '  File "vllm/x.py", line 3, in run\nValueError: Free memory on device'
    )
    assert trace.exception == "ray.exceptions.RayTaskError(ValueError)"
    assert trace.root.text == "ValueError: Free memory on device"


def test_a_thread_dump_is_no_traceback() -> None:
    lines = lines_of(
        'Thread 0x7f (most recent call first):\n  File "/usr/lib/threading.py", line 359 in wait\nEOFError'
    )
    assert [t.text for t in traces(lines)] == ["EOFError"]
