"""vLLM commands as people paste them."""

from __future__ import annotations

import pytest

from ullage.core.errors import CommandError
from ullage.core.launch import Launch
from ullage.engines.vllm import ENGINE
from ullage.engines.vllm.args import flags
from ullage.engines.vllm.values import human_int


def parse(text: str, version: str | None = None) -> Launch:
    return ENGINE.parse(text, version)


def values(text: str, version: str | None = None) -> dict[str, object]:
    return {name: arg.value for name, arg in parse(text, version).args.items()}


@pytest.mark.parametrize(
    "text",
    [
        "vllm serve a/b --max-model-len 4096 -tp 2",
        "vllm serve --model a/b --max_model_len=4096 --tensor-parallel-size=2",
        "python3 -m vllm.entrypoints.openai.api_server --model a/b --max-model-len 4096 --tensor_parallel_size 2",
        "python -m vllm.entrypoints.api_server --model a/b --max-model-l 4096 --tensor-par 2",
        "docker run --rm --gpus all -p 8000:8000 --name vllm vllm/vllm-openai:v0.9.1 --model a/b --max-model-len 4096 -tp 2",
        "vllm serve a/b \\\n  --max-model-len 4096 \\\n  -tp 2  # two cards",
        "LLM(model='a/b', max_model_len=4096, tensor_parallel_size=2)",
    ],
)
def test_one_launch_in_many_forms(text: str) -> None:
    assert ENGINE.owns_command(text.split())
    launch = parse(text)
    assert launch.model == "a/b"
    assert launch.unknown == ()
    assert {k: v for k, v in values(text).items() if k != "model"} == {
        "max_model_len": 4096,
        "tensor_parallel_size": 2,
    }


@pytest.mark.parametrize(
    "text", ["sglang serve --model-path a", "python train.py", "docker run nginx:1", "", "vllm bench x"]
)
def test_other_commands_are_not_ours(text: str) -> None:
    assert not ENGINE.owns_command(text.split())


def test_release_and_variables_of_a_container() -> None:
    launch = parse("HF_HOME=/x docker run -e VLLM_USE_V1=0 --env A=b vllm/vllm-openai:v0.9.1 --model a/b")
    assert (launch.version, launch.version_source) == ("0.9.1", "command")
    assert launch.env == {"HF_HOME": "/x", "VLLM_USE_V1": "0", "A": "b"}


def test_said_release_beats_the_tag() -> None:
    assert parse("docker run vllm/vllm-openai:latest --model a", "0.19.0").version == "0.19.0"


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("32k", 32000),
        ("32K", 32768),
        ("25.6k", 25600),
        ("1M", 1 << 20),
        ("1.5K", None),
        ("7", None),
        ("k", None),
    ],
)
def test_human_numbers(text: str, number: int | None) -> None:
    assert human_int(text) == number


def test_human_numbers_by_release() -> None:
    assert values("vllm serve m --max-model-len 32k")["max_model_len"] == 32000
    assert values("vllm serve m --max-model-len auto")["max_model_len"] == -1
    assert values("vllm serve m --max-model-len 32k", "0.7.3")["max_model_len"] == "32k"


@pytest.mark.parametrize(
    "text",
    [
        """--speculative-config '{"method": "eagle", "num_speculative_tokens": 3}'""",
        """--speculative_config={\\"method\\":\\"eagle\\",\\"num_speculative_tokens\\":3}""",
        "--speculative-config.method eagle --speculative-config.num_speculative_tokens 3",
        "--speculative-config.method=eagle --speculative-config.num_speculative_tokens=3",
        '--speculative-config {"method": "eagle", "num_speculative_tokens": 3}',
        '-sc {"method":"eagle","num_speculative_tokens":3}',
    ],
)
def test_json_in_many_forms(text: str) -> None:
    launch = parse(f"vllm serve m {text} --enforce-eager", "0.20.0")
    assert launch.get("speculative_config") == {"method": "eagle", "num_speculative_tokens": 3}
    assert launch.flag("enforce_eager")
    assert launch.unknown == ()


def test_keys_are_merged_and_lists_grow() -> None:
    found = values("vllm serve m --hf-overrides.a.b 1 --hf-overrides.a.c+ x,y --hf-overrides.a.c+=z")
    assert found["hf_overrides"] == {"a": {"b": 1, "c": ["x", "y", "z"]}}


def test_levels() -> None:
    assert values("vllm serve m -O3")["optimization_level"] == 3
    assert values("vllm serve m -O3", "0.10.2")["compilation_config"] == {"mode": 3}
    assert values("vllm serve m -O.mode=3", "0.10.2")["compilation_config"] == {"mode": 3}


def test_switches() -> None:
    assert values("vllm serve m --no-enable-prefix-caching") == {"model": "m", "enable_prefix_caching": False}
    assert values("vllm serve m --enable-chunked-prefill false", "0.6.0")["enable_chunked_prefill"] is False
    assert values("vllm serve m --enable-chunked-prefill --port 1", "0.6.0")["enable_chunked_prefill"] is True


def test_lists_and_old_pairs() -> None:
    found = values(
        "vllm serve m --served-model-name a b --limit-mm-per-prompt image=2,video=0 --max-num-seqs 8", "0.6.0"
    )
    assert found["served_model_name"] == ["a", "b"]
    assert found["limit_mm_per_prompt"] == {"image": 2, "video": 0}
    assert found["max_num_seqs"] == 8


def test_unknown_flags_are_named_and_do_no_harm() -> None:
    launch = parse("vllm serve m --bogus 3 --kv-cache-memory-bytes 5 --max-num-seqs 8", "0.8.5")
    assert launch.unknown == ("--bogus", "--kv-cache-memory-bytes")
    assert launch.integer("kv_cache_memory_bytes") == 5
    assert launch.integer("max_num_seqs") == 8


@pytest.mark.parametrize("text", ['vllm serve "m', "vllm serve m --x '{"])
def test_quotes_must_close(text: str) -> None:
    with pytest.raises(CommandError):
        parse(text)


def test_defaults_follow_the_release() -> None:
    from packaging.version import Version

    assert flags(Version("0.19.0")).defaults()["gpu_memory_utilization"] == 0.9
    assert flags(None).defaults()["gpu_memory_utilization"] == 0.92


def test_no_two_rows_of_a_flag_hold_at_once() -> None:
    from packaging.version import Version

    from ullage.core.tables import load
    from ullage.engines.runtime.flags import FlagTable

    rows = load("ullage.engines.vllm", "flags.toml", FlagTable).flag
    for release in map(Version, ("0.6.0", "0.8.5", "0.11.0", "0.19.0", "0.20.0", "0.33.0")):
        names = [row.name for row in rows if row.span.holds(release)]
        assert len(names) == len(set(names))
