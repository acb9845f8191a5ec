"""Another process holds part of the card; the fraction is a ceiling on the whole GPU, not a share.

What you see: a second server on the same GPU stops with "Loaded weights leave no GPU memory for the KV cache"
or "Not enough memory" although its model is small, or it starts with a tiny pool.

What misleads: the fractions of the two servers add up to less than 1, so each seems to have its part.

What is true: the pool is free_after_weights - total x (1 - f), with total what was free when this server
started. What another process holds is missing from both, so the same fraction that works on an empty card
leaves little or nothing beside a neighbour.

What helps: give the later server a fraction of what was free to it: (weights + wanted pool) / free, mostly
well above the naive share; start the servers one after the other; or cap the first with --max-total-tokens;
or free the card.
"""

from __future__ import annotations

import re

from ullage.core.finding import Case, Finding
from ullage.core.units import GIB
from ullage.engines.sglang.causes._oom import oom, size
from ullage.engines.sglang.causes._terms import (
    advice,
    better_fractions,
    card_gib,
    no_room,
    proof,
    smallest,
    terms,
)

#: of the card's memory, less than this free at the start means that somebody else holds the rest
_EMPTY = 0.85


def held_elsewhere(case: Case) -> bool:
    """True if the pool is refused although the rules, on an empty card, give one."""
    if not no_room(case):
        return False
    return _card_was_used(case) or _starts_by_rule(case)


def _card_was_used(case: Case) -> bool:
    """True if figures show a neighbour, and an empty card would have given a pool with this fraction."""
    known, card = terms(case), card_gib(case)
    if card is None or known.total is None or known.free is None or known.fraction is None:
        return False
    weights = known.total - known.free
    return known.total < _EMPTY * card and 0.95 * card * known.fraction - weights > 0


def _starts_by_rule(case: Case) -> bool:
    """True if no figure of this log is known and the rules alone give a pool with room to spare."""
    if smallest(case, "free_after_weights_gib") is not None or case.budget.pool_bytes is None:
        return False
    return case.budget.pool_bytes.low > 2 * GIB


def test(case: Case) -> Finding | None:
    if held_elsewhere(case):
        return _refused(case)
    failure = oom(case)
    if failure is None or failure.total is None or failure.free is None or failure.process is None:
        return None
    others = failure.total - failure.free - failure.process
    if others < 0.1 * failure.total or re.search(r"Process \d+ has", case.text) is None:
        return None
    return Finding(
        cause="instance-accounting-shared-gpu", certainty="possible", weight=22,
        summary=f"Other processes hold {size(others)} of the card.",
        explanation=f"{failure.story}{size(failure.process)} belong to this process, {size(others)} to others.",
        evidence=proof(case), fixes=(advice("free the card, or account for the neighbour in the fraction"),),
    )  # fmt: skip


def _refused(case: Case) -> Finding:
    known, card = terms(case), card_gib(case)
    measured = _card_was_used(case)
    seen = (
        f"Only {known.total:.2f} of {card:.2f} GiB were free when it started"
        if measured and known.total is not None and card is not None
        else "By the rules alone, on an empty card, this launch has a pool of "
        f"{size(case.budget.pool_bytes.value) if case.budget.pool_bytes else 'several GiB'}"
    )
    return Finding(
        cause="instance-accounting-shared-gpu", certainty="certain" if measured else "likely", weight=44,
        phase="kv_pool",
        summary="Another process holds part of this GPU; the fraction is a ceiling on the whole card, "
        "so nothing is left for this server's pool.",
        explanation=f"{seen}; what the neighbour holds is missing from this server's budget. "
        "The message to raise the fraction is right in its direction: the later server needs a larger one.",
        evidence=proof(case, "free_before_weights_gib", "free_after_weights_gib"),
        fixes=(
            *(better_fractions(case, known) if measured else ()),
            advice("fraction of the later server = fraction of the first + the share it wants for itself"),
            advice("or free the card: nvidia-smi shows the processes on it", "possible"),
        ),
    )  # fmt: skip
