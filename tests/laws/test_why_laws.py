"""What must hold for any log: never an exception, never an answer that contradicts the whole log's."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ullage.core.report import Diagnosis
from ullage.diagnose.why import why
from ullage.render import json as render

FOUNDING = Path(__file__).parents[2] / "examples" / "founding"
CRASHED = FOUNDING / "fewer-channels.log"


def diagnose(tmp_path: Path, data: bytes) -> Diagnosis:
    path = tmp_path / "some.log"
    path.write_bytes(data)
    found = why([str(path)])
    json.loads(render.why(found))
    return found


def two_ranks() -> bytes:
    """The founding log with two of its eight ranks: short enough to cut at every byte."""
    kept, keep = [], True
    for line in CRASHED.read_text().splitlines(keepends=True):
        if line.startswith("["):
            keep = not any(f" TP{rank}]" in line for rank in range(2, 8))
        if keep:
            kept.append(line)
    return "".join(kept).encode()


def check_cut(found: Diagnosis, whole: Diagnosis) -> None:
    """A part of a log may know less than the whole, but must not know otherwise."""
    guess = found.outcome == "unknown" and found.certainty == "possible"
    assert found.cause in (None, "none", whole.cause) or guess
    assert found.engine in (None, whole.engine)
    for name, reading in found.observed.items():
        assert abs(reading.value.value - whole.observed[name].value.value) < 1e-9 or _cut_short(
            reading, whole, name
        )


def _cut_short(reading: object, whole: Diagnosis, name: str) -> bool:
    # a log that ends inside a number ("21.7") shows a shorter one
    return str(whole.observed[name].value).startswith(str(reading.value))  # type: ignore[attr-defined]


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_cut_at_every_byte(tmp_path: Path, part: int) -> None:
    data = two_ranks()
    whole = diagnose(tmp_path, data)
    assert whole.cause == "budget-below-weights"
    for end in range(part, len(data) + 1, 4):
        check_cut(diagnose(tmp_path, data[:end]), whole)


def test_begins_anywhere(tmp_path: Path) -> None:
    data = CRASHED.read_bytes()
    whole = diagnose(tmp_path, data)
    for begin in range(0, len(data), 397):
        found = diagnose(tmp_path, data[begin:])
        assert found.cause in (None, "none", whole.cause, "stuck-between-two-fractions"), begin


@pytest.mark.parametrize("seed", range(8))
def test_ranks_may_run_into_each_other(tmp_path: Path, seed: int) -> None:
    """Lines of different ranks in another order, each rank's own in order: the same answer."""
    chunks: dict[str, list[str]] = {}
    label = ""
    for line in CRASHED.read_text().splitlines(keepends=True):
        if line.startswith("["):
            label = line[21 : line.index("]")]
            chunks.setdefault(label, []).append(line)
        elif chunks and label:
            chunks[label][-1] += line
    chance = random.Random(seed)
    queues = [list(queue) for queue in chunks.values()]
    mixed: list[str] = []
    while queues:
        queue = chance.choice(queues)
        mixed.append(queue.pop(0))
        queues = [q for q in queues if q]
    found = diagnose(tmp_path, "".join(mixed).encode())
    assert (found.cause, found.phase) == ("budget-below-weights", "kv_pool")
    assert found.budget.pool_bytes is not None
    assert found.budget.pool_bytes.value < 0


@pytest.mark.parametrize(
    "dress",
    [
        lambda line: f"\x1b[36m{line}\x1b[0m",
        lambda line: f"{line}\r",
        lambda line: f"2026-02-25T14:30:06.123456789Z {line}",
        lambda line: f"2026-02-25T14:30:06.123456789Z stdout F {line}",
        lambda line: json.dumps({"log": line + "\n", "stream": "stdout", "time": "2026-02-25T14:30:06Z"}),
        lambda line: f"server-1  | {line}",
        lambda line: f"[pod/llm-0/server] {line}",
        lambda line: f"Feb 25 14:30:06 host1 server[214]: {line}",
    ],
    ids=["colour", "crlf", "kubectl", "cri", "json", "compose", "kubectl-prefix", "syslog"],
)
def test_wrappers_change_nothing(tmp_path: Path, dress: object) -> None:
    lines = CRASHED.read_text().splitlines()
    found = diagnose(tmp_path, "\n".join(dress(line) for line in lines).encode())  # type: ignore[operator]
    plain = diagnose(tmp_path, CRASHED.read_bytes())
    assert (found.cause, found.phase, found.outcome) == (plain.cause, plain.phase, plain.outcome)
    assert {k: v.value for k, v in found.observed.items()} == {k: v.value for k, v in plain.observed.items()}


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=3000))
def test_any_bytes(tmp_path: Path, data: bytes) -> None:
    diagnose(tmp_path, data)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    cuts=st.lists(
        st.tuples(st.integers(0, 19000), st.integers(0, 400), st.binary(max_size=30)), min_size=1, max_size=6
    )
)
def test_a_damaged_log(tmp_path: Path, cuts: list[tuple[int, int, bytes]]) -> None:
    data = CRASHED.read_bytes()
    for at, length, instead in cuts:
        data = data[:at] + instead + data[at + length :]
    diagnose(tmp_path, data)


def test_empty(tmp_path: Path) -> None:
    found = diagnose(tmp_path, b"")
    assert (found.outcome, found.engine) == ("unknown", None)
