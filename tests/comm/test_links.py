"""What lies between the GPUs, from names, topologies and logs; and the layout of a launch."""

from __future__ import annotations

import pytest

from ullage import engines
from ullage.comm.collectives import Layout
from ullage.comm.layout import draft_of, layout_of
from ullage.comm.links import links_of
from ullage.core.model import Model
from ullage.hardware import gpus, topology

MOE = Model("m", "made", num_layers=2, hidden_size=64, vocab_size=100, num_experts=8)


def matrix(link: str, count: int = 4) -> topology.Topology:
    names = [f"GPU{n}" for n in range(count)]
    rows = ["\t" + "\t".join(names) + "\tCPU Affinity\tNUMA Affinity"]
    rows += [f"{a}\t" + "\t".join("X" if a == b else link for b in names) + "\t0-63\t0" for a in names]
    return topology.parse("\n".join(rows))


@pytest.mark.parametrize(
    ("link", "fabric"),
    [("NV18", "nvlink"), ("PIX", "switch"), ("PXB", "switch"), ("PHB", "pcie"), ("NODE", "pcie"),
     ("SYS", "sockets")],
)  # fmt: skip
def test_a_topology_decides(link: str, fabric: str) -> None:
    assert links_of(gpus.find("4x L40S"), 4, topology=matrix(link)).fabric == fabric


def test_by_name_alone() -> None:
    assert links_of(gpus.find("8x H100"), 8).fabric == "nvlink"
    assert links_of(gpus.find("8x H100"), 8).multicast
    assert not links_of(gpus.find("2x H100"), 2).multicast
    assert links_of(gpus.find("8x RTX PRO 6000"), 8).fabric == "unknown_pcie"
    assert links_of(gpus.find("8x MI300X"), 8).fabric == "nvlink"
    assert links_of(gpus.find("2x RTX 4090"), 2).fabric == "host"
    assert links_of(None, 4).fabric == "unknown_pcie"


def layout(command: str, model: Model | None = None) -> Layout:
    engine = engines.of_text(command)
    assert engine is not None
    return layout_of(engine.parse(command, None), model)


def test_layouts_of_commands() -> None:
    sglang = "python -m sglang.launch_server --model-path m"
    assert layout(f"{sglang} --tp 8").tp == 8
    dp = layout(f"{sglang} --tp 8 --dp 4 --enable-dp-attention", MOE)
    assert (dp.attention_ranks, dp.expert_ranks, dp.embedding_ranks) == (2, 8, 2)
    assert layout(f"{sglang} --tp 8 --moe-a2a-backend deepep", MOE).a2a == "deepep"
    vllm = layout("vllm serve m -tp 2 --data-parallel-size 4 --enable-expert-parallel", MOE)
    assert (vllm.tp, vllm.dp, vllm.ep, vllm.expert_ranks, vllm.a2a) == (2, 4, 8, 8, "")
    assert layout("vllm serve m -tp 2 --data-parallel-size 4").expert_ranks == 2


def test_drafts_of_commands() -> None:
    sglang = (
        "python -m sglang.launch_server --model-path m --tp 8 --speculative-algorithm EAGLE3"
        " --speculative-num-steps 2 --speculative-eagle-topk 1 --speculative-num-draft-tokens 3"
    )
    vllm = """vllm serve m -tp 4 --speculative-config '{"method": "eagle3", "model": "d", "num_speculative_tokens": 3}'"""
    found = []
    for command in (sglang, vllm, "vllm serve m"):
        engine = engines.of_text(command)
        assert engine is not None
        draft = draft_of(engine.parse(command, None), MOE)
        found.append((draft.verify_tokens, draft.steps, draft.tp, draft.num_layers) if draft else None)
    assert found == [(3, 2, 8, 1), (4, 3, 4, 1), None]


def test_ngrams_draft_without_a_model() -> None:
    command = """vllm serve m --speculative-config '{"method": "ngram", "num_speculative_tokens": 5}'"""
    engine = engines.of_text(command)
    assert engine is not None
    draft = draft_of(engine.parse(command, None), MOE)
    assert draft is not None
    assert (draft.verify_tokens, draft.num_layers) == (6, 0)
