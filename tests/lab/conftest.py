from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.started import Launched, launched


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Launched]:
    """ullage with a store and a stub of its own."""
    with launched(tmp_path) as found:
        yield found
