"""What is wrong with a flag, said with the release that has it and the nearest spelling."""

from __future__ import annotations

import tomllib
from importlib import import_module
from pathlib import Path

import pytest

from ullage.core.errors import CommandError, InputError
from ullage.core.problem import Problem
from ullage.core.tables import load
from ullage.engines.runtime.flags import FlagTable
from ullage.engines.runtime.nearest import distance, nearest
from ullage.engines.sglang import args as sglang
from ullage.engines.vllm import args as vllm

SGLANG, VLLM = "python -m sglang.launch_server --model-path m", "vllm serve m"
CASES = Path(__file__).parents[1] / "cases"
#: commands that their release refuses indeed, or that are not plain commands, each with the reason
REFUSED = {
    "vllm-backport-68": "a fork with flags of a later release",
    "vllm-gpustack-4678": "an option of the container runtime, told in prose",
}


def one(engine: object, text: str, version: str | None) -> Problem:
    [problem] = engine.problems(text, version)  # type: ignore[attr-defined]
    return problem  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("flags", "version", "kind", "text", "suggestion"),
    [
        ("--enable-mixed-chunks", "0.5.9", "mistyped", "--enable-mixed-chunks is not a flag of SGLang 0.5.9; nearest: --enable-mixed-chunk", "--enable-mixed-chunk"),
        ("--cuda-graph-max-bs-decode 8", "0.5.9", "not_yet", "--cuda-graph-max-bs-decode exists from 0.5.14; in 0.5.9 it is --cuda-graph-max-bs", "--cuda-graph-max-bs"),
        ("--cuda-graph-max-bs 8", "0.5.23", "renamed", "--cuda-graph-max-bs is gone from SGLang since 0.5.20; write --cuda-graph-max-bs-decode", "--cuda-graph-max-bs-decode"),
        ("--disable-mla", "0.5.3", "removed", "--disable-mla is gone from SGLang since 0.4.5.post2; no other flag takes its place", None),
        ("--gpu-memory-utilization 0.9", "0.5.9", "unknown", "--gpu-memory-utilization is not a flag of SGLang 0.5.9; there it is --mem-fraction-static", "--mem-fraction-static"),
        ("--mem-static-fraction 0.9", "0.5.9", "mistyped", "--mem-static-fraction is not a flag of SGLang 0.5.9; nearest: --mem-fraction-static", "--mem-fraction-static"),
        ("--tp_size 8", "0.5.9", "mistyped", "--tp_size is not a flag of SGLang 0.5.9; write --tp-size", "--tp-size"),
        ("--tp eight", "0.5.9", "bad_value", "--tp wants a whole number, not 'eight'", None),
        ("--tp", "0.5.9", "bad_value", "--tp lacks its value", None),
        ("--enable-dp-attention=true", "0.5.9", "bad_value", "--enable-dp-attention takes no value: leave out =true", "--enable-dp-attention"),
        ("--kv-cache-dtype mxfp8", "0.5.9", "bad_value", "--kv-cache-dtype mxfp8 is not allowed in SGLang 0.5.9 (it is from 0.5.16); it takes auto, fp8_e5m2, fp8_e4m3, bf16, bfloat16, fp4_e2m1", None),
    ],
)  # fmt: skip
def test_sglang(flags: str, version: str, kind: str, text: str, suggestion: str | None) -> None:
    found = one(sglang, f"{SGLANG} {flags}", version)
    assert (found.kind, found.text, found.suggestion, found.certain, found.stops) == (
        kind,
        text,
        suggestion,
        True,
        True,
    )


@pytest.mark.parametrize(
    ("flags", "version", "kind", "suggestion"),
    [
        ("--kv-cache-memory-bytes 5", "0.8.5", "not_yet", None),
        ("--disable-log-requests", "0.20.0", "renamed", "--no-enable-log-requests"),
        ("--num-speculative-tokens 3", "0.10.0", "renamed", "--speculative-config"),
        ("--swap-space 4", "0.20.0", "removed", None),
        ("--mem-fraction-static 0.9", "0.20.0", "unknown", "--gpu-memory-utilization"),
        ("--disable-prefix-caching", "0.30.0", "unknown", "--no-enable-prefix-caching"),
        ("--max-model-len 32k", "0.7.3", "bad_value", None),
        ("--enforce-eager True", "0.20.0", "bad_value", "--enforce-eager"),
        ("--kv-cache-dtype fp9", "0.20.0", "bad_value", "fp8"),
    ],
)
def test_vllm(flags: str, version: str, kind: str, suggestion: str | None) -> None:
    found = one(vllm, f"{VLLM} {flags}", version)
    assert (found.kind, found.suggestion) == (kind, suggestion)


@pytest.mark.parametrize(
    "text",
    [
        f"{SGLANG} --tp $TP --port PORT --host <host> --mem-fraction 0.9",
        f"{SGLANG} --cuda-graph-bs 1 2 4 --lora-paths a=b c=d --nnodes=2",
        "python -m sglang.bench_one_batch --model-path m --batch 1 --input-len 8",
        "sglang serve m --tp 2",
    ],
)
def test_nothing_is_wrong_with_sglang(text: str) -> None:
    assert sglang.problems(text, "0.5.9") == []


@pytest.mark.parametrize(
    "text",
    [
        f"{VLLM} --max_model_len 32k --no-enable-prefix-caching -tp 2 -O3",
        f"{VLLM} --speculative-config.method eagle --speculative-config '{{\"num_speculative_tokens\": 3}}'",
        f"{VLLM} --moe-backend deep-gemm --tool-call-parser any",
        "LLM(model='m', tensor_parallel_size=2)",
    ],
)
def test_nothing_is_wrong_with_vllm(text: str) -> None:
    assert vllm.problems(text, "0.20.0") == []


def test_a_deprecated_spelling_does_not_stop() -> None:
    found = one(sglang, f"{SGLANG} --cuda-graph-max-bs 8", "0.5.15")
    assert (found.kind, found.stops, found.suggestion) == ("renamed", False, "--cuda-graph-max-bs-decode")


@pytest.mark.parametrize("version", [None, "0.5.99", "0.5.9.dev3"])
def test_of_a_release_that_was_not_read_nothing_is_certain(version: str | None) -> None:
    assert not one(sglang, f"{SGLANG} --enable-mixed-chunks", version).certain


def test_a_flag_of_any_release_will_do_where_none_is_named() -> None:
    assert sglang.problems(f"{SGLANG} --cuda-graph-max-bs 8 --enable-ep-moe", None) == []


def test_prose_is_one_doubt() -> None:
    found = one(vllm, f"{VLLM} --port 1 with two cards", "0.20.0")
    assert (found.text, found.certain) == ("'with two cards' belongs to no flag", False)


def test_many_unknown_flags_end_somewhere() -> None:
    flags = " ".join(f"--abc-{i}-def" for i in range(9000))
    assert len(vllm.problems(f"{VLLM} {flags}", "0.20.0")) == 40


def test_a_launch_can_be_judged_again() -> None:
    launch = sglang.parse(f"{SGLANG} --enable-mixed-chunks", "0.5.9")
    assert sglang.problems(launch) == sglang.problems(launch.command or "", "0.5.9")


@pytest.mark.parametrize("path", sorted(CASES.rglob("*.toml")), ids=lambda path: path.stem)
def test_real_commands_have_flags_of_their_release(path: Path) -> None:
    data = tomllib.loads(path.read_text())
    command = data.get("launch", {}).get("command") if "case" in data else None
    if not command:
        pytest.skip("no command")
    engine = import_module(f"ullage.engines.{data['case']['engine']}.args")
    found = engine.problems(command, data["case"].get("version") or None)
    wrong = [problem.text for problem in found if problem.certain and problem.stops]
    assert bool(wrong) == (path.stem in REFUSED), wrong


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_every_successor_is_a_flag_of_some_release(engine: str) -> None:
    table = load(f"ullage.engines.{engine}", "flags.toml", FlagTable)
    known = {spelling for row in table.flag for spelling in row.spelled}
    for row in table.flag:
        head = row.renamed_to.split("=")[0].split(".")[0].split()[:1]
        if head and head[0].startswith("--") and "{" not in head[0]:
            assert head[0] in known or "--" + head[0].removeprefix("--no-") in known, row.name


def test_nearest() -> None:
    known = ["--tensor-parallel-size", "--pipeline-parallel-size", "--port"]
    assert nearest("--tensor-paralel-size", known) == ("--tensor-parallel-size", True)
    assert nearest("--size-parallel-tensor", known) == ("--tensor-parallel-size", True)
    assert nearest("--colour", known) == (None, False)
    assert [distance(a, b, 3) for a, b in (("ab", "ba"), ("abc", "abd"), ("abcdef", "x"))] == [1, 1, 4]


# -- configuration files

FILE = """
model: org/m
tensor-parallel-size: 4
enforce-eager: true
enable-prefix-caching: false
served-model-name: [a, b]
speculative-config: {method: eagle, num_speculative_tokens: 3}
"""


def test_vllm_config_file_by_release() -> None:
    new = vllm.parse("vllm serve --config c.yaml -tp 2", "0.33.0", lambda name: FILE)
    assert (new.model, new.get("tensor_parallel_size"), new.get("enforce_eager")) == ("org/m", 2, True)
    assert new.get("enable_prefix_caching") is False
    assert new.get("served_model_name") == ["a", "b"]
    assert new.get("speculative_config") == {"method": "eagle", "num_speculative_tokens": 3}
    assert (
        "enable_prefix_caching"
        not in vllm.parse("vllm serve --config c.yaml", "0.20.0", lambda name: FILE).args
    )


def test_the_model_in_front_wins_over_the_file() -> None:
    assert vllm.parse("vllm serve other --config c.yaml", "0.20.0", lambda name: FILE).model == "other"


def test_sglang_config_file_by_release() -> None:
    text = "model-path: org/m\ntp-size: 4\nenable_dp_attention: true\ndisable-radix-cache: false\ncuda-graph-bs: [1, 2]\n"
    launch = sglang.parse("python -m sglang.launch_server --config c.yml --tp 2", "0.5.9", lambda name: text)
    assert (launch.model, launch.get("tp_size"), launch.get("cuda_graph_bs")) == ("org/m", 2, [1, 2])
    assert "disable_radix_cache" not in launch.args
    # the key becomes the flag as it is written, and SGLang knows no underscores
    assert launch.unknown == ("--enable_dp_attention",)


def test_without_a_way_to_read_it_the_file_is_a_setting() -> None:
    assert sglang.parse(f"{SGLANG} --config c.yaml", "0.5.9").get("config") == "c.yaml"


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("--config a.yaml --config b.yaml", ""),
        ("--tp 2 --config", ""),
        ("--config a.json", "{}"),
        ("--config a.yaml", "- a list"),
        ("--config a.yaml", "a: [1"),
        ("--config a.yaml", "a: " + "[" * 9999),
        ("--config a.yaml", "x" * 200_000),
    ],
)
def test_a_config_file_that_the_engine_refuses(command: str, text: str) -> None:
    for parse, head in ((sglang.parse, SGLANG), (vllm.parse, VLLM)):
        with pytest.raises((CommandError, InputError)) as caught:
            parse(f"{head} {command}", "0.5.9" if head is SGLANG else "0.20.0", lambda name: text)
        assert "\n" not in caught.value.line
