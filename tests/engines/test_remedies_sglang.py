"""What SGLang's causes propose: rows with steps and optional parts, and fractions checked by the formula."""

from __future__ import annotations

from pathlib import Path

import pytest

from ullage.core.deployment import Budget, Deployment
from ullage.core.finding import Case
from ullage.core.launch import Arg, Launch
from ullage.core.report import Diagnosis
from ullage.core.run import Run
from ullage.diagnose.why import Asked, why
from ullage.engines.runtime.rows import ChangeRow, _changes, _filled

MADE = Path(__file__).parents[1] / "cases_made"
COMMAND = "python3 -m sglang.launch_server --model-path example/model --tp 2 --mem-fraction-static 0.88"


def case(version: str | None, **args: float) -> Case:
    launch = Launch("sglang", version, "command", None, {k: Arg(v, "given") for k, v in args.items()})
    return Case(Run("sglang"), Deployment(launch), Budget(), "crashed", None)


def test_a_part_in_brackets_needs_its_groups() -> None:
    text = "Install the tool[[ ({tool})]] here."
    assert _filled(text, {"tool": "ninja"}) == "Install the tool (ninja) here."
    assert _filled(text, {}) == "Install the tool here."


def test_a_step_is_taken_from_the_value_in_force() -> None:
    row = ChangeRow("why", step={"mem_fraction_static": -0.05, "gpu_memory_utilization": -0.05})
    (change,) = _changes([row], case("0.5.9", mem_fraction_static=0.88), {})
    assert change.change == {"--mem-fraction-static": 0.83}
    assert list(_changes([row], case("0.5.9"), {})) == []


def test_a_row_holds_for_its_releases() -> None:
    rows = [ChangeRow("old", until="0.5.14"), ChangeRow("new", since="0.5.14")]
    for version, why_ in (("0.5.9", "old"), ("0.5.14", "new"), (None, "new")):
        assert [change.why for change in _changes(rows, case(version), {})] == [why_]


def diagnose(name: str) -> Diagnosis:
    return why([str(MADE / f"{name}.log")], asked=Asked(COMMAND, "2x NVIDIA H100 80GB HBM3", "0.4.5"))


@pytest.mark.parametrize(
    "name",
    [
        "graph-capture-oom-sglang",
        "attention-workspace-oom",
        "dp-attention-prefill-oom",
        "vision-encoder-activation-oom",
        "draft-kv-sglang",
        "nccl-buffer-oom",
    ],
)
def test_a_shortage_beside_the_pool_gets_a_lower_fraction_that_is_checked(name: str) -> None:
    found = diagnose(name)
    lower = [change for change in found.fixes if "--mem-fraction-static" in change.change]
    assert lower, found.cause
    for change in lower:
        assert float(change.change["--mem-fraction-static"]) < 0.88
        assert change.predicted is not None and change.predicted.verdict == "starts"


def test_the_lower_fraction_covers_what_was_lacking() -> None:
    """9.80 GiB asked for, 6.20 GiB free of 78.50: 3.60 GiB are lacking, 0.046 of the card."""
    found = diagnose("vision-encoder-activation-oom")
    (change,) = [c for c in found.fixes if "--mem-fraction-static" in c.change]
    assert float(change.change["--mem-fraction-static"]) <= 0.88 - 0.046


def test_a_cap_is_predicted_with_the_bytes_that_it_takes() -> None:
    (change,) = [c for c in diagnose("draft-kv-sglang").fixes if "--max-total-tokens" in c.change]
    predicted = change.predicted
    assert predicted is not None and predicted.kv_bytes is not None
    assert predicted.kv_tokens == change.change["--max-total-tokens"]
    assert predicted.kv_bytes < 30 * 2**30


def test_more_ranks_do_not_keep_the_free_memory_of_fewer() -> None:
    """The weights per GPU change with tp_size: a reading of them must not decide what more GPUs bring."""
    from ullage.engines.runtime.changes import UNDOES

    for name in ("tp_size", "pp_size", "ep_size", "quantization"):
        assert "free_after_weights_gib" in UNDOES[name]
