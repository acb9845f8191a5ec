"""Benchmarks: their commands, and the figures in what they give."""

from __future__ import annotations

import json

import pytest

from ullage.core.errors import InputError
from ullage.lab.campaign import approach, benchmark, metrics
from ullage.lab.campaign.benchmark import Point
from ullage.lab.campaign.file import Benchmark, Source
from ullage.planning.plan import engine_of


def load(launch: str, kind: str, **args: object) -> str:
    command = approach.read(launch)
    target = benchmark.point(engine_of(launch).parse(launch, None), "127.0.0.1", 81)
    return " ".join(benchmark.load(Benchmark(kind=kind, args=args), command, target, "/r/x.json").words)  # type: ignore[arg-type]


def test_the_engines_own_benchmarks_beside_the_server() -> None:
    words = load("/x/bin/vllm serve /m --served-model-name a", "vllm", **{"num-prompts": 16})
    assert words.startswith(
        "/x/bin/vllm bench serve --model /m --served-model-name a --backend openai --base-url http://127.0.0.1:81"
    )
    assert words.count("--num-prompts") == 1 and words.endswith("--num-prompts 16")
    assert load("python3 -m vllm.entrypoints.openai.api_server --model m", "vllm").startswith(
        "python3 -m vllm.entrypoints.cli.main bench serve --model m")  # fmt: skip
    words = load("/v/bin/python -m sglang.launch_server --model-path m", "sglang")
    assert words.startswith("/v/bin/python -m sglang.bench_serving --model m --backend sglang")
    assert "--output-file /r/x.json" in words
    assert load("/v/bin/sglang serve --model-path m", "sglang").startswith(
        "/v/bin/python -m sglang.bench_serving"
    )
    words = load("vllm serve m", "guidellm")
    assert words.startswith(
        "guidellm run --backend kind=openai_http,target=http://127.0.0.1:81 --output kind=json,path=/r/x.json"
    )


def test_a_container_needs_the_benchmarks_program() -> None:
    with pytest.raises(InputError, match="is in a container"):
        load("docker run vllm/vllm-openai:v0.9.1 --model m", "vllm")


def test_a_command_of_ones_own() -> None:
    own = Benchmark(
        kind="command", command="load --at {url} --json '{\"a\": 1}' {port}", metrics={"x": Source(json="x")}
    )
    found = benchmark.load(own, approach.read("vllm serve m"), Point("::1", 81), "/r/x.json")
    assert found.words == ("load", "--at", "http://[::1]:81", "--json", '{"a": 1}', "81")
    assert found.result is None


VLLM = {"output_throughput": 300.5, "request_throughput": 9.5, "completed": 16, "mean_ttft_ms": 30.0, "median_ttft_ms": 28.0,
        "p90_ttft_ms": 40.0, "p99_ttft_ms": 50.0, "p99_itl_ms": 5.0, "median_e2el_ms": 90.0,
        "spec_decode_acceptance_length": 2.4, "backend": "openai"}  # fmt: skip


def test_standard_names() -> None:
    found = benchmark.read(Benchmark(kind="vllm"), "", json.dumps(VLLM))
    assert found["acceptance_length"] == 2.4
    assert found["p99_ttft_ms"] == 50.0
    assert found["median_e2el_ms"] == 90.0
    lines = [
        '{"output_throughput": 1}',
        '{"output_throughput": 2, "p99_e2e_latency_ms": 7, "accept_length": null}',
    ]
    found = benchmark.read(Benchmark(kind="sglang"), "", "\n".join(lines))
    assert found == {"output_throughput": 2.0, "p99_e2el_ms": 7.0}
    stats = {"successful": {"mean": 80.0, "median": 79.0, "percentiles": {"p90": 90.0, "p99": 99.0}}}
    guide = {
        "benchmarks": [{}, {"metrics": {"output_tokens_per_second": stats, "time_to_first_token_ms": stats}}]
    }
    found = benchmark.read(Benchmark(kind="guidellm"), "", json.dumps(guide))
    assert found["output_throughput"] == 80.0
    assert found["p99_ttft_ms"] == 99.0


def test_metrics_have_directions() -> None:
    assert metrics.find("output_throughput").better == "higher"  # type: ignore[union-attr]
    for point in ("mean", "median", "p90", "p99"):
        for what in ("ttft", "itl", "tpot", "e2el"):
            assert metrics.find(f"{point}_{what}_ms").better == "lower"  # type: ignore[union-attr]


@pytest.mark.parametrize(("source", "text", "value"), [
    (Source(json="a.b[-1].c"), '{"a": {"b": [{"c": 1}, {"c": 2.5}]}}', 2.5),
    (Source(json="a.b"), 'a log line\n{"a.b": 3}\n', 3.0),
    (Source(json="x"), 'noise\n{\n "x": 4\n}\n', 4.0),
    (Source(regex=r"tok/s: ([\d.,]+)"), "tok/s: 1\ntok/s: 1,234.5\n", 1234.5),
])  # fmt: skip
def test_results(source: Source, text: str, value: float) -> None:
    assert benchmark.read(Benchmark(kind="command", command="c", metrics={"m": source}), text, None) == {
        "m": value
    }


@pytest.mark.parametrize(("source", "text", "words"), [
    (Source(json="a"), "{}", "no number at 'a'"), (Source(json="a"), '{"a": NaN}', "no number"),
    (Source(json="a"), "nothing", "is no JSON"), (Source(json="a"), '{"a": true}', "no number"),
    (Source(regex="x(y)"), "xy", "not a number"), (Source(regex="x(y)"), "z", "nothing matches"),
    (Source(json="a"), "[" * 100_000, "is no JSON"),
])  # fmt: skip
def test_no_results(source: Source, text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        benchmark.read(Benchmark(kind="command", command="c", metrics={"m": source}), text, None)


def test_not_one_answer() -> None:
    with pytest.raises(InputError, match="not one request"):
        benchmark.read(Benchmark(kind="vllm"), "", json.dumps({"completed": 0, "output_throughput": 0.0}))


def test_an_expression_that_backtracks_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark, "REGEX_S", 0.5)
    with pytest.raises(InputError, match="takes longer"):
        benchmark.last_match(r"(a+)+$", "a" * 40 + "b")
