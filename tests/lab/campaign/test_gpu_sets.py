"""GPUs: disjoint sets side by side, and free again before the next experiment."""

from __future__ import annotations

import threading

from ullage.core.machine import Device, Process
from ullage.core.units import GIB
from ullage.lab.campaign import gpu_sets
from ullage.lab.campaign.gpu_sets import Pool


def never() -> int:
    return 0


def test_sets_are_disjoint_and_given_back() -> None:
    pool = Pool([0, 1, 2, 3], 3)
    with pool.taken(2, never) as a, pool.taken(1, never) as b:
        assert a == (0, (0, 1)) and b == (1, (2,))
        with pool.taken(2, lambda: 1) as none:
            assert none is None  # one is left, and somebody stops
    with pool.taken(4, never) as whole:
        assert whole == (0, (0, 1, 2, 3))
    assert pool.can(4) and not pool.can(5)


def test_one_waits_for_another() -> None:
    pool = Pool([7], 2)
    order: list[str] = []

    def later() -> None:
        with pool.taken(1, never):
            order.append("later")

    with pool.taken(1, never):
        thread = threading.Thread(target=later)
        thread.start()
        thread.join(0.3)
        order.append("first")
    thread.join(5)
    assert order == ["first", "later"]


def test_without_gpus_only_the_number_counts() -> None:
    pool = Pool(None, 2)
    assert pool.can(64)
    with pool.taken(8, never) as a, pool.taken(8, never) as b:
        assert a == (0, None) and b == (1, None)


def device(index: int, used_gib: float) -> Device:
    return Device(index, "H100", used_bytes=round(used_gib * GIB), processes=(Process(77, "python", None),))


def test_free_again() -> None:
    """As recorded from NVML: bytes in use on each GPU, before and after."""
    before = gpu_sets.used([device(0, 0.5), device(1, 0.5)])
    readings = [
        [device(0, 20), device(1, 70)],
        [device(0, 0.6), device(1, 70)],
        [device(0, 0.6), device(1, 0.5)],
    ]
    asked = iter(readings)
    assert gpu_sets.wait_free(lambda: tuple(next(asked)), before, None, 30) == []
    left = gpu_sets.wait_free(lambda: (device(0, 0.6), device(1, 70)), before, None, 0)
    assert left == ["GPU 1 still holds 69.50 GiB more than before: python (pid 77)"]
    assert gpu_sets.wait_free(lambda: (device(0, 0.6), device(1, 70)), before, [0], 0) == []
