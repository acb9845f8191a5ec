"""A value turned gives the command that has it: the plan of that command has that value."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ullage
from ullage.core.errors import CommandError
from ullage.planning.knobs import knobs, turned

SGLANG = "python3 -m sglang.launch_server --model-path Qwen/Qwen3-32B --tp 2 \\\n  --mem-fraction-static=0.8"
VLLM = "FOO=1 docker run --gpus all vllm/vllm-openai:v0.11.0 --model Qwen/Qwen3-32B -tp 2 --max-model-len 32k"


def test_a_flag_keeps_its_spelling_and_the_rest_its_text() -> None:
    assert turned(SGLANG, {"tp_size": 4, "mem_fraction_static": 0.75}) == (
        "python3 -m sglang.launch_server --model-path Qwen/Qwen3-32B --tp 4 \\\n  --mem-fraction-static=0.75"
    )
    assert turned(VLLM, {"tensor_parallel_size": 8, "max_model_len": 8192}).endswith(
        "-tp 8 --max-model-len 8192"
    )
    assert turned(SGLANG, {"context_length": 4096}).endswith("0.8 --context-length 4096")


def test_another_model_takes_the_place_of_the_old() -> None:
    assert "--model-path Qwen/Qwen3-8B --tp" in turned(SGLANG, {}, model="Qwen/Qwen3-8B")
    assert turned("vllm serve Qwen/Qwen3-32B --port 1", {}, model="a/b") == "vllm serve a/b --port 1"


@pytest.mark.parametrize("command", [SGLANG, VLLM])
@given(data=st.data())
def test_the_plan_of_the_turned_command_has_the_value(command: str, data: st.DataObject) -> None:
    plan = ullage.plan(command, gpu="8x H100")
    knob = data.draw(st.sampled_from(knobs(plan)))
    value = data.draw(st.sampled_from(knob.values))
    after = ullage.plan(turned(command, {knob.setting: value}), gpu="8x H100")
    assert after.settings[knob.setting].value == value


def test_what_is_no_setting_is_refused() -> None:
    with pytest.raises(CommandError):
        turned(SGLANG, {"x; rm -rf": 1})
