"""Temporary tensors of the loader were alive when free memory was measured; the pool is far too small.

What you see: the server starts with a pool of a few thousand tokens, many GiB stay unused afterwards, and
short prompts are refused because of the pool's size.

What misleads: no error at all; the formula adds up with the printed free memory. More of it seems to be
weights than the checkpoint holds.

What is true: free memory is read after loading. Tensors that Python had not yet collected (an EAGLE or NEXTN
draft's own embedding and head, repacked layers) counted as used at that moment and were freed afterwards.

What helps: a release with a garbage collection before sizing (0.5.19 and later), a somewhat higher fraction
as a stopgap, or the launch without the draft.
"""

from __future__ import annotations

from packaging.version import Version

from ullage.core.finding import Case, Finding
from ullage.engines.sglang.causes._terms import (
    advice,
    checked,
    count,
    fraction,
    proof,
    smallest,
    speculates,
    terms,
)

#: releases that load target and draft before sizing but do not collect first
_SINCE, _UNTIL = Version("0.5.14"), Version("0.5.19")
#: a pool below this part of the context serves nothing but toy prompts
_TINY = 1 / 8


def test(case: Case) -> Finding | None:
    if case.root is not None or not (tiny(case) or _unused(case)):
        return None
    tokens, ready = count(case, "kv_tokens"), smallest(case, "free_at_ready_gib")
    spare = f" while {ready:.2f} GiB stay free" if ready is not None else ""
    f = fraction(case)
    return Finding(
        cause="loader-memory-residue", certainty="likely", weight=34, phase="serving",
        summary=f"The pool of {tokens or 0:,} tokens is far smaller than it could be{spare}: memory of "
                f"the loader was "
        "still counted as used when it was sized.",
        explanation="The rule reads the free memory once, after loading. With a draft model, releases "
                    "0.5.14 to 0.5.18 "
        "measure before the loader's temporaries are collected.",
        evidence=proof(case, "kv_tokens", "free_at_ready_gib"),
        fixes=(
            advice("a release that collects before sizing: 0.5.19 or later"),
            *([checked(case, {"mem_fraction_static": round(min(0.95, f + 0.08), 3)}, "a stopgap")]
              if f is not None else []),
        ),
    )  # fmt: skip


def tiny(case: Case) -> bool:
    """True if a launch with a draft, of the releases concerned, has a pool far below its context."""
    tokens = count(case, "kv_tokens")
    context = count(case, "context_len") or case.deployment.launch.integer("context_length")
    release = case.deployment.launch.release
    concerned = release is None or _SINCE <= release < _UNTIL
    if tokens is None or context is None or not speculates(case) or not concerned:
        return False
    return tokens < _TINY * context and case.deployment.launch.integer("max_total_tokens") is None


def _unused(case: Case) -> bool:
    """True if, once ready, far more is free than the share outside the fraction: it came back after sizing."""
    known, ready = terms(case), smallest(case, "free_at_ready_gib")
    if ready is None or known.total is None or known.fraction is None or known.pool is None:
        return False
    capped = case.deployment.launch.integer("max_total_tokens") is not None
    outside = known.total * (1 - known.fraction)
    return (
        not capped
        and known.pool > 0
        and ready > outside + max(8.0, 0.1 * known.total)
        and ready > 2 * known.pool
    )
