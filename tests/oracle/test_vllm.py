"""ullage's arithmetic against answers recorded from vLLM's own code (tests/oracle/record_vllm.py)."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from ullage.core.model import Model
from ullage.core.units import GIB
from ullage.engines.vllm import defaults
from ullage.engines.vllm.kv_plan import KvPlan, plan
from ullage.engines.vllm.kv_specs import Cache, Kind, Spec, stages
from ullage.models.load import from_config

HERE = Path(__file__).parent / "vllm"
NEEDED = re.compile(r"\(([\d.]+) GiB KV cache is needed.*memory \((-?[\d.]+) GiB\)(?:.*length is (\d+))?")
ALLOWED = tomllib.loads((HERE / "allow.toml").read_text()).get("difference", [])


def rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (HERE / name).read_text().splitlines()]


def unfolded(runs: list[list[Any]]) -> list[Any]:
    return [item for count, item in runs for _ in range(count)]


def allowed(release: str, model: str, ask: dict[str, Any]) -> bool:
    return any(
        row["model"] == model
        and release in row["releases"]
        and all(ask.get(key) == value for key, value in row.get("where", {}).items())
        for row in ALLOWED
    )


def agreement(plan: KvPlan, answer: dict[str, Any]) -> None:
    """Raises AssertionError where ``plan`` says anything else than the recorded answer."""
    error = answer.get("error")
    if error is None:
        assert plan.fits, plan
        assert plan.blocks == answer["blocks"]
        assert plan.tokens == answer["tokens"]
        assert plan.concurrency == pytest.approx(answer["concurrency"], abs=0.0051)
        assert plan.length == answer["fitted_length"]
        return
    assert not plan.fits, plan
    found = NEEDED.search(" ".join(error.split()))
    if found:
        assert round(plan.needed / GIB, 2) == float(found[1])
        assert round(plan.available / GIB, 2) == float(found[2])
        if found[3]:
            assert plan.fitted == int(found[3])


def engine_model(name: str) -> Model:
    configs = json.loads((HERE / "configs.json").read_text())
    return from_config(configs[name], id=name, source="config.json")


def engine_cache(row: dict[str, Any], answer: dict[str, Any]) -> Cache:
    return Cache(
        tp=row["tp"], pp=row["pp"], dcp=row["dcp"], block_size=row["block"], dtype=row["kv"],
        max_num_batched_tokens=answer["batch"], in_flight=answer["flight"], hybrid=row["hybrid"],
        mamba_mode=row["mamba_mode"], ssm_dtype=row["ssm"], num_gpu_blocks_override=answer["override"],
    )  # fmt: skip


ENGINE = rows("engine.jsonl")


@pytest.mark.parametrize(
    "row", ENGINE, ids=lambda r: f"{r['model']}-tp{r['tp']}pp{r['pp']}dcp{r['dcp']}-{r['kv']}-{r['block']}"
)
def test_real_models(row: dict[str, Any]) -> None:
    """Specs layer by layer, then every answer of the planner."""
    release, model = Version(row["vllm"]), engine_model(row["model"])
    cache = engine_cache(row, row["answers"][0])
    ours = stages(model, cache, release)
    recorded = [unfolded(runs) for runs in row["specs"]]
    assert [[spec.page_bytes for spec in stage] for stage in ours] == [
        [s["page"] for s in stage] for stage in recorded
    ]
    assert {s.block_size for stage in ours for s in stage} == {row["resolved_block"]}
    for answer in row["answers"]:
        length = row["derived_length"] if answer["length"] == -1 else answer["length"]
        made = plan(
            ours, answer["budget"], length, engine_cache(row, answer), release, auto_fit=answer["length"] == -1
        )
        agreement(made, answer)


def plain_spec(row: dict[str, Any]) -> Spec:
    if row["kind"] == "mamba":
        return Spec("mamba", row["block"], row["padded"])
    if row["kind"] in ("latent", "window"):
        raw = row["block"] // row.get("ratio", 1) * row["size"] * (4 if row.get("state") else 1)
        kind: Kind = "full" if row["kind"] == "latent" else "sliding"
        return Spec(kind, row["block"], -(-raw // 576) * 576, row.get("window", 0), (raw,), mla=True)
    heads, size = row["heads"], row.get("size", 128)
    page = row["block"] * heads * size * 2 * 2
    return Spec(row["kind"], row["block"], page, row.get("window", 0), (heads, size))


PLANNER = rows("planner.jsonl")
PLAIN = {name: [plain_spec(row) for row in unfolded(runs)] for name, runs in PLANNER[0]["models"].items()}


@pytest.mark.parametrize("row", PLANNER[1:], ids=lambda r: str(r["release"]))
def test_other_releases(row: dict[str, Any]) -> None:
    """Grouping, fit check, blocks, printed tokens and concurrency of each release's own planner."""
    release, wrong = Version(row["release"]), []
    for answer in row["answers"]:
        cache = Cache(
            max_num_batched_tokens=answer["batch"],
            in_flight=answer.get("flight", 1),
            hybrid=answer.get("hybrid", True),
        )
        made = plan([PLAIN[answer["model"]]], [answer["budget"]], answer["length"], cache, release,
                    auto_fit=answer.get("original") == -1 and release >= Version("0.14.0"))  # fmt: skip
        try:
            agreement(made, answer)
        except AssertionError as error:
            if not allowed(row["release"], answer["model"], answer):
                wrong.append((answer, str(error).splitlines()[0]))
    assert not wrong, f"{len(wrong)} of {len(row['answers'])}: {wrong[:3]}"


DEFAULTS = rows("defaults.jsonl")


@pytest.mark.parametrize("row", DEFAULTS, ids=lambda r: str(r["release"]))
def test_defaults(row: dict[str, Any]) -> None:
    """max_num_batched_tokens and max_num_seqs by GPU, and CUDA-graph sizes, as the release's own code has them."""
    release = Version(row["release"])
    for name, total, capability, tokens, seqs in row["batch"]:
        device = defaults.Device(name, total, (capability[0], capability[1]))
        assert defaults.BATCH.at(release)(device) == (tokens, seqs), name
    for family, seqs, spec, limit, index in row["graphs"]:
        sizes = defaults.graph_sizes(release, seqs, limit, spec, family)
        assert sizes == row["lists"][index], (family, seqs, spec, limit)
