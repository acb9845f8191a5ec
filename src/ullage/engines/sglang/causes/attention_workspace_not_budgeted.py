"""An attention workspace that grows with the token pool or the context is not part of the budget.

What you see: a line about a workspace buffer of many GiB after the pool, or free memory that falls by far
more than graphs need between "Memory pool end" and the first captured batch; on smaller cards, out of memory
there.

What misleads: the pool formula adds up and the server may start; the missing GiB appear in no line of the
pool.

What is true: some backends (AITER on ROCm) allocate scratch in proportion to the pool's tokens or the batch
times context. The plain rule gives the pool everything up to the fraction, and the workspace comes on top.

What helps: a lower fraction, a cap (--max-total-tokens), a shorter --context-length, or a release that sizes
pool and workspace together.
"""

from __future__ import annotations

from ullage.core.finding import Case, Finding
from ullage.engines.sglang.causes._oom import oom
from ullage.engines.sglang.causes._terms import (
    advice,
    checked,
    count,
    largest,
    lower_fraction,
    proof,
    smallest,
    terms,
)

#: GiB; the fixed workspaces of the other backends are 2 GiB at most
_LARGE = 4.0


def test(case: Case) -> Finding | None:
    workspace = largest(case, "workspace_gib")
    if workspace is None or workspace < _LARGE or (case.root is not None and oom(case) is None):
        return None
    left, tokens = smallest(case, "free_after_kv_pool_gib"), count(case, "kv_tokens")
    rest = f"; {left:.2f} GiB were left after the pool" if left is not None else ""
    return Finding(
        cause="attention-workspace-not-budgeted", certainty="likely", weight=34,
        summary=f"The attention backend's workspace takes {workspace:.2f} GiB that the pool's budget "
                "does not know.",
        explanation=f"The workspace grows with the token pool{rest}. By the plain rule the pool alone "
                    "may fill the "
        "card up to mem_fraction_static, and the workspace would come on top of it.",
        evidence=proof(case, "workspace_gib", "free_after_kv_pool_gib"),
        fixes=(
            advice("a build that budgets the workspace together with the pool"),
            *lower_fraction(
                case, 0, min(0.1, workspace / (terms(case).total or 80.0)), "a smaller pool and workspace"
            ),
            *([checked(case, {"max_total_tokens": tokens // 2}, "a cap on both")] if tokens else []),
        ),
    )  # fmt: skip
