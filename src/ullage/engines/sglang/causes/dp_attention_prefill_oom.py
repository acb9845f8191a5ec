"""With DP attention one rank computes all heads of its request: a long prefill needs more buffers.

What you see: CUDA out of memory while serving, in a forward pass, in a launch with --enable-dp-attention;
often on one rank only.

What misleads: the same prompt fits with plain tensor parallelism, and the other ranks have memory left.

What is true: requests are divided among the DP ranks instead of heads. A rank that gets a long prompt holds
its queries, keys and attention buffers for all heads, and gathered MoE inputs of all ranks.

What helps: a smaller --chunked-prefill-size (it is divided by dp), a lower fraction, fewer DP ranks.
"""

from __future__ import annotations

from ullage.core.finding import Case, Finding
from ullage.engines.sglang.causes._serving import finding, in_service
from ullage.engines.sglang.causes._terms import advice


def test(case: Case) -> Finding | None:
    failure = in_service(case)
    launch = case.deployment.launch
    labelled = any(f.rank.dp is not None for f in (case.root, *case.failures) if f is not None)
    attention = launch.flag("enable_dp_attention") or (
        labelled and (launch.integer("dp_size") or 1) > 1 and launch.get("enable_dp_attention") is not False
    )
    if failure is None or not attention or failure.place in ("logits", "vision", "workspace"):
        return None
    chunk, dp = launch.integer("chunked_prefill_size"), launch.integer("dp_size")
    times = f" ({dp} times here)" if dp and dp > 1 else ""
    return finding(
        case, failure, "dp-attention-prefill-oom", 36,
        "With DP attention one rank holds all heads of its prefill, and its activations did not fit.",
        "DP attention divides requests, not heads: for the attention of one prefill a rank needs buffers "
        f"dp_size times as large{times}.",
        fixes=(advice("fewer tokens in a step", chunked_prefill_size=max(512, (chunk or 8192) // 2)),),
    )  # fmt: skip
