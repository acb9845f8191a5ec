"""Draft models that a plan reads itself: from a folder, from the user's cache."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ullage.models.catalogue import find
from ullage.planning.model import draft_name, model_of
from ullage.planning.plan import Asked, engine_of, plan

HEAD = {
    "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "num_hidden_layers": 1, "vocab_size": 128256,
    "draft_vocab_size": 32000, "torch_dtype": "bfloat16", "max_position_embeddings": 8192,
}  # fmt: skip
LAUNCHES = {
    "sglang": "python -m sglang.launch_server --model-path meta-llama/Llama-3.1-8B-Instruct --speculative-algorithm EAGLE3"
              " --speculative-draft-model-path {draft} --speculative-num-steps 3",
    "vllm": "vllm serve meta-llama/Llama-3.1-8B-Instruct --speculative-config"
            """ '{{"method":"eagle3","model":"{draft}","num_speculative_tokens":3}}'""",
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "my-own-head"
    path.mkdir()
    (path / "config.json").write_text(json.dumps(HEAD))
    return path


def weights(command: str) -> dict[str, int]:
    found = plan(Asked(command, "H100", {"sglang": "0.5.9", "vllm": "0.19.0"}[engine_of(command).name]))
    assert found.budget.ledgers
    return {entry.name: entry.bytes for entry in found.budget.ledgers[0].entries if "draft" in entry.name}


@pytest.mark.parametrize("engine", list(LAUNCHES))
def test_a_draft_in_a_folder_weighs_what_the_known_one_does(engine: str, folder: Path) -> None:
    known = weights(LAUNCHES[engine].format(draft="jamesliu1/sglang-EAGLE3-LLaMA3.1-Instruct-8B"))
    own = weights(LAUNCHES[engine].format(draft=folder))
    assert own and own.keys() == known.keys()
    for name, size in own.items():
        assert size == pytest.approx(known[name], rel=0.05)


def test_the_draft_is_forgotten_with_the_next_plan(folder: Path) -> None:
    for draft in (str(folder), "nobody/never-seen"):
        command = LAUNCHES["vllm"].format(draft=draft)
        launch = engine_of(command).parse(command, "0.19.0")
        assert draft_name(launch) == draft
        model_of(launch)
        assert (find(draft) is not None) == (draft == str(folder))
    assert find(str(folder)) is None


def test_a_broken_draft_is_a_note_and_no_fault(folder: Path) -> None:
    (folder / "config.json").write_text("[")
    found = plan(Asked(LAUNCHES["vllm"].format(draft=folder), "H100", "0.19.0"))
    assert any("the draft model" in caution.text for caution in found.cautions)
