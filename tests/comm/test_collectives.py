"""How many collectives of which size: dense, experts, DP attention, pipelines, drafts."""

from __future__ import annotations

import pytest

from ullage.comm.collectives import Collective, Draft, Layout, collectives, num_all_reduces, per_call_us
from ullage.core.model import Layer, Model
from ullage.core.units import KIB

KIMI = Model("moonshotai/Kimi-K2.5", "made", num_layers=61, hidden_size=7168, vocab_size=163840, num_experts=384,
             experts_per_token=8)  # fmt: skip
LLAMA = Model("llama", "made", num_layers=80, hidden_size=8192, vocab_size=128256)
TP8 = Layout(8, expert_ranks=8, embedding_ranks=8, head_ranks=8)


def of(found: tuple[Collective, ...], what: str) -> list[Collective]:
    return [one for one in found if what in one.what]


def test_the_founding_verify_pass() -> None:
    """122 all-reduces of 42 KiB: two a layer of 61, three tokens of 7168 in bf16."""
    found = collectives(KIMI, TP8, "decode", 3, draft=Draft(3, 2, 1, 1, 7168, 163840, 8))
    main = found[0]
    assert (main.kind, main.count, main.bytes, main.ranks) == ("all_reduce", 122, 42 * KIB, 8)
    assert num_all_reduces(found) == 122
    assert round(per_call_us(30_000, 122)) == 246


@pytest.mark.parametrize(
    ("hidden", "rows", "kib"),
    [(7168, 1, 14), (7168, 3, 42), (7168, 4, 56), (7168, 8, 112), (7168, 32, 448), (7168, 128, 1792),
     (8192, 1, 16), (8192, 3, 48), (8192, 4, 64), (8192, 8, 128), (8192, 32, 512), (8192, 128, 2048),
     (2880, 8, 45), (2880, 32, 180), (2880, 128, 720)],
)  # fmt: skip
def test_the_size_of_a_decode_all_reduce(hidden: int, rows: int, kib: int) -> None:
    model = Model("m", "made", num_layers=1, hidden_size=hidden, vocab_size=1000)
    assert collectives(model, TP8, "decode", rows)[0].bytes == kib * KIB


def test_a_dense_model_reduces_twice_a_layer_once_for_the_embedding_and_gathers_logits() -> None:
    found = collectives(LLAMA, TP8, "decode", 4)
    assert [(one.kind, one.count) for one in found] == [
        ("all_reduce", 160),
        ("all_reduce", 1),
        ("all_gather", 1),
    ]
    assert of(found, "lm_head")[0].bytes == 4 * 128256 * 2


def test_a_prefill_wants_the_logits_of_its_last_row_only() -> None:
    found = collectives(LLAMA, TP8, "prefill", 8192)
    assert found[0].bytes == 8192 * 8192 * 2
    assert of(found, "lm_head")[0].bytes == 128256 * 2


def test_one_rank_has_none() -> None:
    assert collectives(KIMI, Layout(), "decode", 8) == ()


def test_experts_over_ranks_without_an_all_to_all_reduce_as_before() -> None:
    layout = Layout(8, ep=8, expert_ranks=8, embedding_ranks=8, head_ranks=8)
    assert num_all_reduces(collectives(KIMI, layout, "decode", 1)) == 122


def test_an_all_to_all_dispatches_and_combines_instead() -> None:
    layout = Layout(8, ep=8, a2a="deepep", expert_ranks=8, embedding_ranks=8, head_ranks=8)
    found = collectives(KIMI, layout, "decode", 2)
    assert num_all_reduces(found) == 61
    assert [(one.count, one.bytes) for one in found if one.kind == "all_to_all"] == [(61, 8 * 7168 * 2)] * 2


def test_dp_attention_gathers_rows_before_the_experts_and_scatters_behind() -> None:
    """tp 8, dp 8: attention on one rank each needs none; the experts see the rows of all eight."""
    layout = Layout(8, dp=8, dp_attention=True, expert_ranks=8, embedding_ranks=1, head_ranks=8)
    found = collectives(KIMI, layout, "decode", 4)
    assert num_all_reduces(found) == 0
    assert {(one.kind, one.count, one.bytes) for one in found if "MoE" in one.what} == {
        ("all_gather", 61, 8 * 4 * 7168 * 2), ("reduce_scatter", 61, 8 * 4 * 7168 * 2)
    }  # fmt: skip


def test_vllms_data_parallel_ranks_join_at_the_experts_only() -> None:
    layout = Layout(2, dp=4, ep=8, expert_ranks=8, embedding_ranks=2, head_ranks=2)
    found = collectives(KIMI, layout, "decode", 1)
    assert of(found, "attention output")[0].ranks == 2
    assert {one.ranks for one in found if "MoE" in one.what} == {8}


def test_a_pipeline_hands_over_hidden_states_and_residual() -> None:
    found = collectives(LLAMA, Layout(pp=4), "decode", 2)
    assert [(one.kind, one.count, one.bytes) for one in found] == [("send_recv", 3, 2 * 2 * 8192 * 2)]


def test_a_draft_steps_by_itself() -> None:
    """Two steps of a one-layer head: four all-reduces of one row a request, two embeddings, two heads."""
    found = collectives(KIMI, TP8, "decode", 12, draft=Draft(3, 2, 1, 1, 7168, 32000, 8))
    drafts = [(one.kind, one.count, one.bytes) for one in found if one.stage == "draft"]
    assert drafts == [
        ("all_reduce", 4, 4 * 14 * KIB), ("all_reduce", 2, 4 * 14 * KIB), ("all_gather", 2, 4 * 32000 * 2)
    ]  # fmt: skip


def test_a_draft_on_one_rank_or_by_ngrams_has_none() -> None:
    for draft in (Draft(3, 2, 1, 1, 7168, 32000, tp=1), Draft(3, 2, 1, 0, 7168, 32000, tp=8)):
        assert not [one for one in collectives(KIMI, TP8, "decode", 3, draft=draft) if one.stage == "draft"]


def test_the_fused_norm_changes_no_count() -> None:
    plain, fused = (
        collectives(LLAMA, Layout(8, embedding_ranks=8, head_ranks=8, fused_norm=f), "decode", 1)
        for f in (0, 1)
    )
    assert num_all_reduces(plain) == num_all_reduces(fused) == 160
    assert "norm" in fused[0].what


def test_dense_first_layers_are_not_experts() -> None:
    from ullage.comm.collectives import moe_layers
    from ullage.core.model import Checkpoint

    config = {"text_config": {"first_k_dense_replace": 1}}
    model = Model("m", "made", num_layers=61, hidden_size=7168, num_experts=384, checkpoint=Checkpoint(config))
    assert moe_layers(model) == 60


def test_a_hybrid_of_single_mixers_reduces_once_a_layer() -> None:
    """Nemotron-H: attention, Mamba and MLP layers each end in one all-reduce."""
    layers = (Layer("full"), Layer("none"), Layer("linear"), Layer("none"))
    model = Model(
        "n", "made", model_type="nemotron_h", num_layers=4, hidden_size=64, vocab_size=10, layers=layers
    )
    assert num_all_reduces(collectives(model, TP8, "decode", 1)) == 4


def test_falcon_reduces_once_a_layer() -> None:
    model = Model("f", "made", architecture="FalconForCausalLM", num_layers=60, hidden_size=8192, vocab_size=10)
    assert num_all_reduces(collectives(model, TP8, "decode", 1)) == 60
