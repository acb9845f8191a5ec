from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ullage.core.ledger import Entry, Ledger

SIZES = st.integers(min_value=-(1 << 40), max_value=1 << 40)


@given(st.integers(min_value=0, max_value=1 << 40), st.lists(SIZES, max_size=12))
def test_entries_and_left_make_the_total(total: int, sizes: list[int]) -> None:
    entries = tuple(Entry.exact("weights", f"e{i}", size, "test") for i, size in enumerate(sizes))
    ledger = Ledger("TP0", total, entries)
    assert ledger.used_bytes + ledger.left_bytes == total
    assert ledger.of("weights") == ledger.used_bytes
    assert ledger.of("kv_pool") == 0
