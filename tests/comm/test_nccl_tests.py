"""nccl-tests output of every layout: made after the printing code of the releases named by the files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ullage.comm.measured import Measurement
from ullage.comm.nccl_tests import MOST_POINTS, read
from ullage.core.errors import InputError

HERE = Path(__file__).parent / "nccl_tests"


def of(name: str) -> tuple[Measurement, ...]:
    return read((HERE / name).read_text(), name)


def test_a_table_with_groups() -> None:
    (found,) = of("v2.13-group.txt")
    assert (found.kind, found.ranks, found.mode, found.nodes) == ("all_reduce", 8, "graph", 1)
    assert found.gpu == "NVIDIA RTX PRO 6000 Blackwell Server Edition"
    assert found.dtype == "bfloat16"
    assert [(p.bytes, p.us) for p in found.points][:2] == [(4096, 23.9), (8192, 24.2)]
    assert found.points[0].in_place_us == pytest.approx(24.62, abs=0.01)
    assert len(found.points) == 9


def test_the_oldest_table_has_an_error_column_and_no_root() -> None:
    (found,) = of("v2.0-error.txt")
    assert (found.ranks, found.gpu, found.dtype) == (4, "Tesla V100-SXM2-16GB", "float32")
    assert found.points[0].us == 17.1


def test_two_tables_of_two_hosts_with_figures_of_each_iteration() -> None:
    reduce, gather = of("v2.19-two-hosts.txt")
    assert (reduce.kind, gather.kind) == ("all_reduce", "all_gather")
    assert (reduce.ranks, reduce.nodes, reduce.nccl, reduce.mode) == (16, 2, "2.29.7", "nccl-tests")
    point = reduce.points[0]
    assert (point.us, point.low_us, point.high_us, point.wrong) == (31.2, 28.08, 43.68, None)


def test_tags_of_mpirun_and_a_column_of_timestamps() -> None:
    (found,) = of("v2.17-mpirun-timestamps.txt")
    assert (found.ranks, found.mode, found.points[-1].us) == (8, "nccl-tests", 863.2)


def test_rows_alone_tell_their_ranks_by_the_bandwidths() -> None:
    (found,) = of("rows-only.txt")
    assert (found.kind, found.ranks) == ("all_reduce", 8)


def test_json() -> None:
    (found,) = of("v3.json")
    assert (found.kind, found.ranks, found.nccl, found.gpu) == ("reduce_scatter", 4, "2.28.3", "NVIDIA B200")
    assert found.points[0].us == 12.1


@pytest.mark.parametrize("path", sorted(HERE.iterdir()), ids=lambda path: path.name)
def test_hosts_and_secrets_are_dropped(path: Path) -> None:
    kept = repr(read(path.read_text(), path.name))
    assert not any(word in kept for word in ("box-a", "host-b", "node-1", "box-c", "someone", "hf_"))


def test_processes_that_do_not_meet_are_refused() -> None:
    text = (HERE / "v2.13-group.txt").read_text()
    one = "\n".join(line for line in text.splitlines() if " Rank " not in line or "Rank  0" in line)
    with pytest.raises(InputError, match="one rank"):
        read(one.replace("nGpus 8", "nGpus 1").replace(" sum ", " none "))


def test_wrong_sums_are_kept() -> None:
    text = (HERE / "v2.13-group.txt").read_text().replace("      0 ", "     12 ", 1)
    assert read(text)[0].points[0].wrong == 12


@pytest.mark.parametrize(
    "text",
    ["", "hello", "# size count type\n", "{}", '{"results": 3}', '{"results": [1, {"size": "x"}]}', "{" * 50_000,
     '{"results": [' + "[" * 100_000, "4096 " * 13, "1e999 " * 13, '{"results": [], "config": []}'],
)  # fmt: skip
def test_what_is_no_table_is_one_clear_line(text: str) -> None:
    with pytest.raises(InputError) as caught:
        read(text, "file.txt")
    assert caught.value.line.startswith("file.txt: ")
    assert "\n" not in caught.value.line


def test_a_table_without_end_is_bounded() -> None:
    row = (HERE / "rows-only.txt").read_text().splitlines()[0]
    assert len(read("\n".join([row] * 20_000))[0].points) == MOST_POINTS


@given(st.integers(0, 4000), st.text(max_size=20))
def test_any_damage_is_read_or_refused(at: int, junk: str) -> None:
    text = (HERE / "v2.19-two-hosts.txt").read_text()
    try:
        found = read(text[:at] + junk + text[at:])
    except InputError:
        return
    assert all(point.us > 0 and point.bytes > 0 for one in found for point in one.points)


@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=5),
        lambda c: (
            st.lists(c)
            | st.dictionaries(
                st.sampled_from(
                    ["results", "config", "devices", "size", "out_of_place", "time", "args", "nccl_version"]
                ),
                c,
            )
        ),
        max_leaves=15,
    )
)
def test_any_json_is_read_or_refused(value: object) -> None:
    try:
        read(json.dumps({"results": [value], "config": value, "nccl_version": value, "args": value}))
    except InputError as error:
        assert error.line
