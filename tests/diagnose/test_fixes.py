"""Changes made ready to show: once each, known to the release, planned where the pool depends on them."""

from __future__ import annotations

from ullage.core.deployment import Deployment, Reading
from ullage.core.finding import Change
from ullage.core.launch import Arg, Launch
from ullage.core.units import Measured
from ullage.diagnose.fixes import ready
from ullage.engines import get


def deployment(version: str | None = "0.5.9") -> Deployment:
    launch = Launch("sglang", version, "command", None, {"mem_fraction_static": Arg(0.88, "given")})
    read = {"free_before_weights_gib": "94.08", "free_after_weights_gib": "21.78"}
    readings = {name: Reading(name, Measured.parse(value), "A.log:1") for name, value in read.items()}
    return Deployment(launch, readings=readings)


def made(*changes: Change, version: str | None = "0.5.9") -> tuple[Change, ...]:
    engine, asked = get("sglang"), deployment(version)
    return ready(engine, asked, engine.budget(asked), changes)


def test_a_change_is_shown_once() -> None:
    twice = Change({"--tp-size": 2}, "one"), Change({"--tp-size": 2}, "other")
    assert [change.why for change in made(*twice)] == ["one"]


def test_the_fraction_is_planned() -> None:
    (change,) = made(Change({"--mem-fraction-static": 0.85}, "lower"))
    assert change.predicted is not None and change.predicted.kv_bytes is not None
    (worse,) = made(Change({"--mem-fraction-static": 0.5}, "too low"))
    assert worse.predicted is not None and worse.predicted.verdict == "fails"


def test_what_the_pool_does_not_depend_on_is_not_planned() -> None:
    changes = made(Change({"--disable-custom-all-reduce": True}, "x"), Change({"NCCL_DEBUG": "INFO"}, "y"))
    assert [change.predicted for change in changes] == [None, None]


def test_a_flag_that_the_release_lacks_is_left_out() -> None:
    old, new = Change({"--cuda-graph-max-bs": 8}, "old"), Change({"--cuda-graph-max-bs-decode": 8}, "new")
    assert [change.why for change in made(old, new)] == ["old"]
    assert [change.why for change in made(old, new, version="0.5.23")] == ["new"]
    assert [change.why for change in made(new)] == ["new"], "the only one stays"


def test_what_is_in_force_is_not_proposed() -> None:
    changes = made(Change({"--mem-fraction-static": 0.88}, "same"), Change({"--tp-size": 2}, "other"))
    assert [change.why for change in changes] == ["other"]


def test_flags_of_the_container_stay() -> None:
    assert len(made(Change({"--ipc": "host"}, "x"), Change({}, "words"))) == 2
