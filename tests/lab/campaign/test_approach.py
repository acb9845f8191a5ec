"""Changes put on launches, and what they change beyond what they say."""

from __future__ import annotations

import pytest

from ullage.core.errors import CommandError
from ullage.lab.campaign import approach, preflight
from ullage.lab.campaign.file import Campaign, Change

VLLM = "HF_TOKEN=x vllm serve m -tp 2 --enforce-eager --max_num_seqs=3 --no-enable-prefix-caching"
DOCKER = "docker run --gpus all -p 8000:8000 -e A=1 vllm/vllm-openai:v0.9.1 --model x --port 8000"


@pytest.mark.parametrize(("launch", "change", "text"), [
    (VLLM, {"flags": {"max-num-seqs": 1}},
     "HF_TOKEN=x vllm serve m -tp 2 --enforce-eager --max-num-seqs 1 --no-enable-prefix-caching"),
    (VLLM, {"flags": {"tensor-parallel-size": 4}},
     "HF_TOKEN=x vllm serve m --tensor-parallel-size 4 --enforce-eager --max_num_seqs=3 --no-enable-prefix-caching"),
    (VLLM, {"flags": {"enable-prefix-caching": True, "enforce-eager": None}, "env": {"HF_TOKEN": None, "B": 2}},
     "B=2 vllm serve m -tp 2 --max_num_seqs=3 --enable-prefix-caching"),
    (VLLM, {"flags": {"speculative-config": '{"method": "ngram"}'}}, VLLM + """ --speculative-config '{"method": "ngram"}'"""),
    ("python -m sglang.launch_server --model-path m --tp 2 --disable-cuda-graph",
     {"flags": {"tensor-parallel-size": 4, "disable-cuda-graph": False, "cuda-graph-bs": [1, 2]}},
     "python -m sglang.launch_server --model-path m --tensor-parallel-size 4 --cuda-graph-bs 1 2"),
    (DOCKER, {"flags": {"port": 9}, "env": {"A": 2}, "image": "vllm/vllm-openai:v0.10.0"},
     "docker run -e A=2 --gpus all -p 8000:8000 vllm/vllm-openai:v0.10.0 --model x --port 9"),
    (DOCKER, {"env": {"A": None}}, DOCKER.replace("-e A=1 ", "")),
])  # fmt: skip
def test_changes(launch: str, change: dict[str, object], text: str) -> None:
    found = approach.changed(approach.read(launch), Change(**change))  # type: ignore[arg-type]
    assert found.text == text


@pytest.mark.parametrize(
    "launch", ["vllm serve m > log 2>&1", "cd x && vllm serve m", "vllm serve a; vllm serve b"]
)
def test_more_than_one_command_is_refused(launch: str) -> None:
    with pytest.raises(CommandError, match="more than one command"):
        approach.read(launch)


def test_an_image_needs_a_container() -> None:
    with pytest.raises(CommandError, match="names none"):
        approach.changed(approach.read(VLLM), Change(image="a/b:c"))


def looked(launch: str, change: Change, **more: str) -> preflight.Looked:
    campaign = Campaign(launch=launch, **more)  # type: ignore[arg-type]
    base = preflight.look(campaign, preflight.base_command(campaign))
    assert base.resolved is not None
    this = preflight.look(campaign, approach.changed(base.command, change))
    return preflight.against(campaign, "it", "why", change, base.resolved, this)


SGLANG = "python -m sglang.launch_server --model-path Qwen/Qwen3-8B --tp 2"
H100 = {"gpu": "2x H100", "engine_version": "0.5.9"}


def test_speculation_drags_max_running_requests_along() -> None:
    found = looked(
        SGLANG, Change(flags={"speculative-algorithm": "EAGLE3", "speculative-draft-model-path": "x/y"}), **H100
    )
    dragged = {c.setting: c.this for c in found.confounded}
    assert dragged["max_running_requests"] == 48
    assert all(c.because == "dragged along" for c in found.confounded)
    alone = found.split[0]
    assert alone["flags"]["max-running-requests"] == 48
    assert alone["plan"] == "starts"
    assert "max-running-requests" in preflight.pasteable(alone)


def test_held_as_in_the_baseline() -> None:
    found = looked(SGLANG, Change(flags={"cuda-graph-max-bs": 64}), **H100)
    assert [c.setting for c in found.confounded] == ["mem_fraction_static"]
    held = found.split[1]["flags"]
    assert held["cuda-graph-max-bs"] == 64
    assert held["mem-fraction-static"] == found.confounded[0].baseline
    assert looked(SGLANG, Change(flags=held), **H100).confounded == ()


def test_what_is_declared_is_not_confounded() -> None:
    also = Change(flags={"cuda-graph-max-bs": 64}, also=("mem-fraction-static",))
    assert looked(SGLANG, also, **H100).confounded == ()
    assert looked("vllm serve m --max-num-seqs 8", Change(flags={"seed": 3}, env={"A": 1})).confounded == ()


def test_a_launch_of_its_own_is_held_to_what_it_declares() -> None:
    base = "A=1 vllm serve m --max-model-len 1024 --seed 1"
    other = "A=2 vllm serve m --max-model-len 1024 --seed 3 --dtype float16 --port 9"
    found = looked(base, Change(launch=other, flags={"seed": 3}))
    assert {(c.setting, c.this, c.because) for c in found.confounded} == {
        ("dtype", "float16", "given"),
        ("A", "2", "given"),
    }


@pytest.mark.parametrize("flags", [{"max-num-seqs": 0}, {"gpu-memory-utilization": 3}])
def test_what_cannot_start_is_refused_with_its_reason(flags: dict[str, int]) -> None:
    found = looked("vllm serve m", Change(flags=dict(flags)))
    assert found.preflight.verdict == "fails"
    assert found.preflight.why


def test_speed_is_predicted_where_the_load_is_known() -> None:
    from ullage.lab.campaign.file import Benchmark

    launch = "vllm serve Qwen/Qwen3-8B --max-model-len 8192"

    def predicted(**args: int) -> dict[str, float]:
        campaign = Campaign(
            launch=launch, gpu="H100", engine_version="0.19.0", benchmark=Benchmark(args=dict(args))
        )
        found = preflight.look(campaign, preflight.base_command(campaign)).preflight.predicted
        return {name: band.value for name, band in found.items()}

    assert predicted() == {}
    few, many = predicted(**{"max-concurrency": 4}), predicted(**{"max-concurrency": 48})
    assert few["output_throughput"] < many["output_throughput"]
    assert few["median_tpot_ms"] < many["median_tpot_ms"]
    assert many["median_tpot_ms"] == pytest.approx(48 * 1000 / many["output_throughput"])
