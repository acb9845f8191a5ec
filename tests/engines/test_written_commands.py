"""Commands with what people write in and around them: calls in Python, placeholders, asides, remarks."""

from __future__ import annotations

import contextlib
import shlex

import pytest

from ullage import engines
from ullage.core.launch import Launch


def parsed(text: str) -> Launch:
    engine = engines.of_text(text)
    assert engine is not None, text
    return engine.parse(text, None)


SCRIPT = """from vllm import LLM, SamplingParams
llm = LLM(
    model="Qwen/Qwen3-8B",  # a comment, with a comma
    gpu_memory_utilization=0.7, max_model_len=4096,
    tensor_parallel_size=2, enforce_eager=True, trust_remote_code=False,
    compilation_config={"mode": 3, "cudagraph_capture_sizes": [1, 2]},
)
print(llm.generate(["Hello (there)"], SamplingParams(max_tokens=8)))
"""


def test_a_script_is_read_as_the_command_that_does_the_same() -> None:
    launch = parsed(SCRIPT)
    assert (launch.engine, launch.model) == ("vllm", "Qwen/Qwen3-8B")
    assert launch.number("gpu_memory_utilization") == 0.7
    assert (launch.integer("max_model_len"), launch.integer("tensor_parallel_size")) == (4096, 2)
    assert launch.flag("enforce_eager") and not launch.flag("trust_remote_code")
    assert launch.get("compilation_config") == {"mode": 3, "cudagraph_capture_sizes": [1, 2]}


@pytest.mark.parametrize("quoted", [False, True])
def test_a_call_of_sglang(quoted: bool) -> None:
    text = 'sgl.Engine(model_path="meta-llama/Llama-3.1-8B-Instruct", tp_size=2, mem_fraction_static=0.8, disable_cuda_graph=True)'
    launch = parsed(shlex.join(shlex.split(text)) if quoted else text)
    assert (launch.engine, launch.model) == ("sglang", "meta-llama/Llama-3.1-8B-Instruct")
    assert (launch.integer("tp_size"), launch.number("mem_fraction_static")) == (2, 0.8)
    assert launch.flag("disable_cuda_graph")


def test_a_call_that_lost_its_quotes_to_a_shell() -> None:
    text = "LLM(model=<Qwen2.5-7B quantised>, gpu_memory_utilization=0.70, max_model_len=4096)"
    launch = parsed(shlex.join(shlex.split(text)))
    assert launch.model == "<Qwen2.5-7B quantised>"
    assert (launch.number("gpu_memory_utilization"), launch.integer("max_model_len")) == (0.7, 4096)


@pytest.mark.parametrize("text", [
    "LLM(model=__import__('os').system('false'))", "LLM(", "LLM(model=" + "(" * 5000, "LLM(**kwargs)", "LLM(model='a'\0)",
])  # fmt: skip
def test_a_call_is_never_run(text: str) -> None:
    from ullage.core.errors import UllageError

    engine = engines.of_text(text)
    if engine is not None:
        with contextlib.suppress(UllageError):
            engine.parse(text, None)


@pytest.mark.parametrize(
    ("text", "model", "settings"),
    [
        ("vllm serve <Qwen3.6-27B INT4> --max-model-len 180000", "<Qwen3.6-27B INT4>", {"max_model_len": 180000}),
        ("vllm serve DeepSeek-R1 '(GPTQ' 4 'bit)' --tensor-parallel-size 16", "DeepSeek-R1 (GPTQ 4 bit)",
         {"tensor_parallel_size": 16}),
        ("vllm serve a/b --kv-cache-dtype fp8 with MTP 2", "a/b", {"kv_cache_dtype": "fp8"}),
        ("vllm serve a/b --gpu-memory-utilization 0.82 with drafting of 15 tokens and the default --max-num-seqs 256",
         "a/b", {"gpu_memory_utilization": 0.82, "max_num_seqs": 256}),
        ("vllm serve <a b> --tensor-parallel-size 2 '(image' with CUDA 13.2 'tools)'", "<a b>", {"tensor_parallel_size": 2}),
        ("vllm serve a/b --distributed-executor-backend ray with MTP '6;' ray start --include-log-monitor=false", "a/b",
         {"distributed_executor_backend": "ray"}),
        ("sglang serve --model-path <GLM-5.2 W4W8> --tp 4", "<GLM-5.2 W4W8>", {"tp_size": 4}),
        ("vllm serve a/b < /dev/null > log.txt 2>&1", "a/b", {}),
    ],
)  # fmt: skip
def test_words_that_are_no_part_of_the_command(text: str, model: str, settings: dict[str, object]) -> None:
    launch = parsed(text)
    assert launch.model == model
    assert {name: launch.get(name) for name in settings} == settings
    assert not launch.unknown
