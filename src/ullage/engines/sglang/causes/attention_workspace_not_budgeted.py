"""An attention workspace that grows with the token pool or the context is not part of the budget.

What you see: a line about a workspace buffer of many GiB after the pool, or free memory that falls by far
more than graphs need between "Memory pool end" and the first captured batch; on smaller cards, out of memory
there.

What misleads: the pool formula adds up and the server may start; the missing GiB appear in no line of the
pool.

What is true: some backends (AITER on ROCm) allocate scratch in proportion to the pool's tokens or the batch
times context. The plain rule gives the pool everything up to the fraction, and the workspace comes on top. The
table of request slots x context length (4 bytes an entry; mem_cache/memory_pool.py ReqToTokenPool) is allocated
before the pool and is not in its budget either: with a context of millions of tokens it takes tens of GiB.

What helps: a lower fraction, a cap (--max-total-tokens), a shorter --context-length, or a release that sizes
pool and workspace together.
"""

from __future__ import annotations

import re

from ullage.core.finding import Case, Finding
from ullage.core.units import GIB
from ullage.engines.sglang.causes._oom import Oom, not_these, oom
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
#: the table's constructor allocates by itself; the KV pools do so in functions of their own (0.4.0-0.5.23)
_TABLE = re.compile(r"mem_cache/memory_pool\.py:__init__$", re.MULTILINE)
_POOLS = re.compile(r":_?create_\w*buffers?$|:_create_|:init_kv_buffer$", re.MULTILINE)


def test(case: Case) -> Finding | None:
    failure = oom(case)
    if failure is not None and _of_table(failure, case):
        return _table(failure, case)
    workspace = largest(case, "workspace_gib")
    if workspace is None or workspace < _LARGE or (case.root is not None and failure is None):
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


def _of_table(failure: Oom, case: Case) -> bool:
    """True if a large allocation of the table of requests failed, not one of the KV pool."""
    large = (failure.asked or 0) >= _LARGE * GIB
    return (
        failure.place == "pool"
        and large
        and bool(_TABLE.search(case.frames))
        and not _POOLS.search(case.frames)
    )


def _table(failure: Oom, case: Case) -> Finding:
    return Finding(
        cause="attention-workspace-not-budgeted", certainty="likely", weight=34,
        summary="The table of request slots times context length does not fit; the pool's budget lacks it.",
        explanation=f"{failure.story}The table has 4 bytes for each request slot and token of context, and is "
                    "allocated before the KV pool.",
        evidence=proof(case, "free_after_weights_gib"), refuted=tuple(not_these(failure)),
        fixes=(
            advice("fewer request slots", max_running_requests=64),
            advice("a context length that requests really need", context_length=131072),
        ),
    )  # fmt: skip
