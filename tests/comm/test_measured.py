"""Measurements replace the model where they speak, and what is out of line is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from ullage.comm import store
from ullage.comm.collectives import Collective
from ullage.comm.links import links_of
from ullage.comm.measured import Measurement, Point, best, current, outliers
from ullage.core.errors import InputError
from ullage.core.units import KIB
from ullage.hardware import gpus

PRO = "NVIDIA RTX PRO 6000 Blackwell Server Edition"
VERIFY = Collective("all_reduce", 122, 42 * KIB, 8, "")
LINKS = links_of(gpus.find("8x RTX PRO 6000"), 8)


def measured(us: float, **changes: object) -> Measurement:
    points = tuple(Point(b * KIB, us * b / 42 if b > 42 else us) for b in (14, 42, 448))
    return Measurement("all_reduce", 8, "nccl", "graph", points, gpu=PRO, **changes)  # type: ignore[arg-type]


def test_between_sizes_and_beyond() -> None:
    one = measured(30.0)
    at = one.at(20 * KIB)
    assert at is not None
    assert at.value == pytest.approx(30.0)
    assert one.at(8 * KIB) is not None
    assert one.at(KIB) is None
    assert one.at(1 << 30) is None


def test_the_fastest_that_speaks_and_the_one_with_the_launchs_own_variables() -> None:
    found = [measured(246.0), measured(31.0, environment={"NCCL_P2P_LEVEL": "SYS"})]
    fastest, own = best(found, VERIFY), current(found, VERIFY, {})
    assert fastest is not None
    assert own is not None
    assert (fastest[1].value, own[1].value) == (pytest.approx(31.0), pytest.approx(246.0))
    assert current(found, VERIFY, {"NCCL_P2P_LEVEL": "SYS", "HOME": "x"}) == best(found, VERIFY)


def test_gloo_and_other_gpus_do_not_speak() -> None:
    gloo = Measurement("all_reduce", 8, "gloo", "eager", (Point(42 * KIB, 900.0),))
    assert best([gloo], VERIFY) is None
    assert best([measured(30.0)], VERIFY, gpu="NVIDIA H100 80GB HBM3") is None
    assert best([measured(30.0)], VERIFY, gpu=PRO) is not None


def test_the_founding_outlier() -> None:
    """246 µs against what like hosts take, with where to look and what to try."""
    one = Measurement("all_reduce", 8, "nccl", "graph", (Point(42 * KIB, 246.0),), gpu=PRO)
    (found,) = outliers([one], LINKS)
    assert found.text.startswith("246 µs here against 25-34 µs on like hosts")
    assert "`via SHM` in the NCCL log, try NCCL_P2P_LEVEL=SYS" in found.text
    at = found.measurement.at(42 * KIB)
    assert at is not None
    assert round(at.value) == 246


def test_healthy_hosts_are_in_line() -> None:
    assert outliers([measured(30.0)], LINKS) == []


def test_an_outlier_in_spite_of_p2p_level_is_told_otherwise() -> None:
    (found,) = outliers([measured(246.0, environment={"NCCL_P2P_LEVEL": "SYS"})], LINKS)
    assert "ACS" in found.text


def test_kept_and_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ULLAGE_HOME", str(tmp_path))
    one = measured(30.0, environment={"NCCL_PROTO": "LL", "HF_TOKEN": "hf_abcdefghijklmnopqrstuvwxyz"})
    first, second = (store.keep((one,), "bench a/b") for _ in range(2))
    assert (first.name, second.name) == ("bench-a-b.json", "bench-a-b-2.json")
    assert "hf_" not in first.read_text()
    assert first.stat().st_mode & 0o077 == 0
    (tmp_path / "comm" / "junk.json").write_text("{")
    assert [m.environment for m in store.kept()] == [{"NCCL_PROTO": "LL"}] * 2
    assert store.read(str(first)) == store.kept()[:1]


@pytest.mark.parametrize(
    "text",
    ['{"schema": "ullage.comm/1", "measurements": 3}', '{"schema": "ullage.comm/1"}',
     '{"schema": "ullage.comm/1", "measurements": [{"kind": "all_reduce", "ranks": 8, "backend": "nccl", "mode": "graph", "points": [{"bytes": 0, "us": -1}]}]}',
     '{"schema": "ullage.comm/1", "measurements": ' + "[" * 10_000],
)  # fmt: skip
def test_a_broken_file_is_one_clear_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "m.json"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        store.read(str(path))
    assert "\n" not in caught.value.line


def test_a_file_too_large_or_missing(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        store.read(str(tmp_path / "none"))
    with (tmp_path / "big").open("wb") as stream:
        stream.truncate(store.MOST_BYTES + 1)
    with pytest.raises(InputError, match="larger"):
        store.read(str(tmp_path / "big"))
