"""The parallel layout and the draft of a launch, from settings by the names that the engines give them.

Every name is a row: a setting that both engines spell alike stands once. What a release leaves to a default is
the caller's to resolve (``Engine.effective``): its settings come in beside the launch's own.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from ullage.comm.collectives import Draft, Layout
from ullage.core.launch import Arg, Launch, Value
from ullage.core.model import Model

#: more ranks than any launch has
MOST = 1 << 16
_NAMES: dict[str, tuple[str, ...]] = {
    "tp": ("tp_size", "tensor_parallel_size"), "pp": ("pp_size", "pipeline_parallel_size"),
    "dp": ("dp_size", "data_parallel_size"), "ep": ("ep_size", "expert_parallel_size"),
    "nodes": ("nnodes",), "draft_tp": ("draft_tensor_parallel_size",),
    "steps": ("speculative_num_steps",), "width": ("speculative_eagle_topk",),
    "verify": ("speculative_num_draft_tokens",),
}  # fmt: skip
_FUSED = (
    "enable_flashinfer_allreduce_fusion", "flashinfer_allreduce_fusion_backend",
    "enable_aiter_allreduce_fusion",
)  # fmt: skip
#: values of the all-to-all settings that gather rows and scatter sums instead (vLLM's default)
_GATHERED = ("", "none", "naive", "allgather_reducescatter", "pplx_naive")


class Read(Struct, frozen=True):
    """The settings of a launch, the resolved ones behind the given ones."""

    launch: Launch
    resolved: Mapping[str, Arg] = {}

    def value(self, *names: str) -> Value:
        for name in names:
            found = self.launch.args.get(name) or self.resolved.get(name)
            if found is not None and found.value is not None:
                return found.value
        return None

    def count(self, key: str, default: int = 1) -> int:
        value = self.value(*_NAMES[key])
        if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value <= MOST:
            return default
        return int(value)

    def on(self, *names: str) -> bool:
        return any(self.value(name) not in (None, False, "", "none", "auto") for name in names)


def layout_of(launch: Launch, model: Model | None = None, resolved: Mapping[str, Arg] | None = None) -> Layout:
    """How ``launch`` spreads its model over ranks. Unknown settings count as not given."""
    read = Read(launch, resolved or {})
    tp, dp = read.count("tp"), read.count("dp")
    shared = bool(read.value("enable_dp_attention"))
    a2a = _a2a(read)
    experts = model.num_experts if model is not None else 0
    joined = tp * dp if experts and not shared and "data_parallel_size" in launch.args else tp
    ep = joined if read.on("enable_expert_parallel", "enable_ep_moe") or a2a else read.count("ep")
    attention = max(1, tp // dp) if shared else tp
    return Layout(
        tp, read.count("pp"), dp, min(ep, joined), shared, a2a if ep > 1 else "", joined,
        embedding_ranks=attention, head_ranks=attention if read.on("enable_dp_lm_head") else tp,
        fused_norm=read.on(*_FUSED), nodes=read.count("nodes"),
    )  # fmt: skip


def _a2a(read: Read) -> str:
    value = read.value("moe_a2a_backend", "all2all_backend")
    if value is None:
        value = read.launch.env.get("VLLM_ALL2ALL_BACKEND")
    if read.value("enable_deepep_moe"):
        value = "deepep"
    text = str(value or "").lower()[:40]
    wanted = read.on("enable_expert_parallel") or "moe_a2a_backend" in read.launch.args
    return text if text not in _GATHERED and (wanted or read.value("enable_deepep_moe")) else ""


def draft_of(
    launch: Launch, model: Model | None = None, head: Model | None = None,
    resolved: Mapping[str, Arg] | None = None,
) -> Draft | None:  # fmt: skip
    """What the launch drafts; None where it does not speculate. ``head`` is the draft's model where it is
    known, else one layer of the target's sizes is taken (an EAGLE head or an MTP layer)."""
    read = Read(launch, resolved or {})
    config = _config(read.value("speculative_config"))
    method = str(read.value("speculative_algorithm") or config.get("method") or "").upper()
    tokens = config.get("num_speculative_tokens")
    if isinstance(tokens, int) and not isinstance(tokens, bool) and 0 < tokens <= MOST:
        verify, steps, width = tokens + 1, tokens, 1
    elif method:
        steps, width = read.count("steps", 3), read.count("width")
        verify = read.count("verify", steps + 1)
    else:
        return None
    layers = 0 if method in ("NGRAM", "[NGRAM]") else head.num_layers if head is not None else 1
    source = head or model
    return Draft(
        verify, steps, width, layers, source.hidden_size if source else 0, source.vocab_size if source else 0,
        _draft_ranks(config, read),
    )  # fmt: skip


def _draft_ranks(config: dict[str, object], read: Read) -> int:
    given = config.get("draft_tensor_parallel_size")
    return given if isinstance(given, int) and 1 <= given <= MOST else read.count("tp")


def _config(value: Value) -> dict[str, object]:
    """vLLM's --speculative-config: a JSON object, as text or read already; {} where it is none."""
    if isinstance(value, str) and value.lstrip().startswith("{") and len(value) < 100_000:
        import json  # costs a plan as much as all else here

        try:
            read = json.loads(value)
        except (ValueError, RecursionError):
            return {}
        return read if isinstance(read, dict) else {}
    return dict(value) if isinstance(value, dict) else {}
