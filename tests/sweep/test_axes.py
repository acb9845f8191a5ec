"""What ``--over`` takes."""

from __future__ import annotations

import pytest

from ullage.core.errors import InputError
from ullage.sweep.axes import MOST_VALUES, axis


@pytest.mark.parametrize(("text", "values"), [
    ("tp=1,2,4", (1, 2, 4)),
    ("mem-fraction-static=0.5:0.6:0.05", (0.5, 0.55, 0.6)),
    ("x=0.5:0.59:0.03", (0.5, 0.53, 0.56, 0.59)),
    ("x=1:10:x2", (1, 2, 4, 8)),
    ("x=3:5", (3, 4, 5)),
    ("x=8k,32K,1M", (8000, 32768, 1 << 20)),
    ("x=1:3,10,2", (1, 2, 3, 10)),
    ("gpu=8x H100,94.08", ("8x H100", 94.08)),
    ("enforce-eager=true,false", (True, False)),
    ("kv-cache-dtype=auto,fp8_e4m3", ("auto", "fp8_e4m3")),
    ("engine-version=0.5.9,0.5.12.post1", ("0.5.9", "0.5.12.post1")),
])  # fmt: skip
def test_values(text: str, values: tuple[object, ...]) -> None:
    assert axis(text).values == values


def test_a_range_has_the_numbers_as_typed() -> None:
    assert all(len(repr(value)) <= 4 for value in axis("f=0.5:0.95:0.01").values)


def test_kinds() -> None:
    assert axis("x=1,0.5").numeric and not axis("x=1,0.5").whole
    assert axis("x=1,2").whole
    assert not axis("x=1,true").numeric
    assert axis("--Max-Num-Seqs=1").name == "Max_Num_Seqs"


@pytest.mark.parametrize("text", [
    "", "=1", "x", "x=", "x=1,,2", "x=1:0", "x=1:2:0", "x=1:2:-1", "x=0:8:x2", "x=1:8:x1", "a b=1", "x" * 200 + "=1",
    f"x=0:{MOST_VALUES + 5}", "x=0:1:1e-9", "x=1:100000000000000:x1.0000001",
])  # fmt: skip
def test_what_is_no_axis(text: str) -> None:
    with pytest.raises(InputError):
        axis(text)
