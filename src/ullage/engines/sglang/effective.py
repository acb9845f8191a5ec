"""The settings that decide, as the release resolves them, for people to read."""

from __future__ import annotations

from ullage.core.deployment import Deployment
from ullage.core.launch import Arg, Value
from ullage.engines.sglang.implied import fraction
from ullage.engines.sglang.known import Known, known
from ullage.engines.sglang.settings import Settings


def effective(deployment: Deployment) -> dict[str, Arg]:
    """Setting -> value with where it is from. What is not known is left out."""
    base = known(deployment)
    found = {name: _arg(base, name, value) for name, value in _values(base, base.settings).items()}
    return {name: arg for name, arg in found.items() if arg.value is not None}


def _values(base: Known, s: Settings) -> dict[str, Value]:
    share, _ = fraction(base)
    values: dict[str, Value] = {
        "mem_fraction_static": round(share.value, 6) if share else None,
        "tp_size": s.tp, "pp_size": s.pp, "dp_size": s.dp,
        "chunked_prefill_size": s.chunked_prefill_size,
        "cuda_graph_max_bs": s.cuda_graph_max_bs if s.decode_graphs else None,
        "cuda_graph_bs": list(s.cuda_graph_bs) if s.decode_graphs else None,
        "max_running_requests": s.max_running_requests,
        "page_size": s.page, "kv_cache_dtype": s.kv_cache_dtype,
        "attention_backend": s.attention_backend,
        "context_length": s.context_length or (base.model.max_context if base.model else None),
    }  # fmt: skip
    if s.dp_attention:
        values["enable_dp_attention"] = True
    if s.prefill_graphs:
        values["prefill_graph_sizes"] = list(s.prefill_graph_sizes)
    if s.speculative:
        values |= {
            "speculative_algorithm": s.speculative_algorithm, "speculative_num_steps": s.num_steps,
            "speculative_eagle_topk": s.topk, "speculative_num_draft_tokens": s.draft_tokens,
        }  # fmt: skip
    return values


def _arg(base: Known, name: str, value: Value) -> Arg:
    """Given where the launch states this very value; else the release's own choice."""
    launch = base.deployment.launch
    stated = launch.args.get(name)
    release = f"sglang {launch.version or 'newest rules'}"
    if stated is None:
        return Arg(value, "inferred", release)
    if stated.value == value:
        return stated
    if stated.origin == "given":
        return Arg(value, "inferred", f"{release}, from {stated.source or stated.value}")
    return Arg(value, "inferred", release)
