"""Conditions: what they keep, and what they are not."""

from __future__ import annotations

import numpy as np
import pytest

from ullage.core.errors import InputError
from ullage.sweep.table import Table
from ullage.sweep.where import Where

TABLE = Table(
    {
        "tp": np.array([1, 2, 4, 8]), "kv_tokens": np.array([10.0, np.nan, 3e6, 7.0]),
        "verdict": np.array([0, 1, 2, 0]), "gpu": np.array([0, 0, 1, 1]), "eager": np.array([0, 1, 0, 1]),
    },
    {"verdict": ["starts", "unsure", "fails"], "gpu": ["8x H100", "H200"], "eager": ["True", "False"]},
)  # fmt: skip


@pytest.mark.parametrize(("text", "rows"), [
    ("tp >= 4", [2, 3]),
    ("1 < tp <= 4", [1, 2]),
    ("kv_tokens > 8", [0, 2]),
    ("kv_tokens / tp >= 10", [0, 2]),
    ("verdict == 'starts' and tp != 1", [3]),
    ("verdict != 'starts' or tp == 1", [0, 1, 2]),
    ("not verdict == \"starts\"", [1, 2]),
    ("gpu == 'H200'", [2, 3]),
    ("'H200' == gpu", [2, 3]),
    ("gpu in ('H200', 'none such')", [2, 3]),
    ("tp not in (1, 2)", [2, 3]),
    ("tp % 4 == 0 and -tp < -4", [3]),
    ("eager == True", [0, 2]),
    ("tp // 3 == 1", [2]),
    ("1 < 2", [0, 1, 2, 3]),
])  # fmt: skip
def test_keeps(text: str, rows: list[int]) -> None:
    assert np.flatnonzero(Where(text).holds(TABLE)).tolist() == rows


@pytest.mark.parametrize("text", [
    "", "tp", "tp + 1", "tp = 4", "nothing > 1", "tp > 'x'", "verdict > 'a'", "verdict == 3", "gpu + 1 > 2",
    "__import__('os').system('true')", "tp.__class__ == 1", "(lambda: 1)() == 1", "[x for x in (1,)] == 1",
    "tp if tp else tp", "tp and 1", "tp ** 9 > 1", "tp is 1", "f'{tp}' == 'x'", "tp > 1;", "tp > 1\ntp > 2", "tp[0] > 1",
    "(" * 300 + "tp > 1" + ")" * 300, "not " * 200 + "tp > 1", "tp > " + "9" * 2000, "\0", "print(1) == 1", "tp > 1j",
    "tp << 2 > 1",
])  # fmt: skip
def test_what_is_no_condition(text: str) -> None:
    with pytest.raises(InputError):
        Where(text).holds(TABLE)


def test_a_huge_number_is_just_large() -> None:
    assert not Where(f"tp > {'9' * 400}").holds(TABLE).any()
