"""A figure that proves that a start cannot succeed, before the engine itself gets there.

The bar is proof, not likelihood: a verdict of the engine's own arithmetic that rests on a figure read from this
start's log, with the limits of everything else stretched until less than one chance in a thousand is left.
"""

from __future__ import annotations

from msgspec import Struct

from ullage.core.deployment import Budget
from ullage.core.run import PHASES, Failure, Phase
from ullage.core.units import Band, gib_text, tokens_text
from ullage.diagnose.why import Examined

#: chance (0 to 1) below which a figure proves
PROOF = 0.001
#: figures of the log that a verdict can rest on
_FIGURES = ("free_at_start_gib", "free_before_weights_gib", "weights_gib", "free_after_weights_gib")


class Doom(Struct, frozen=True):
    """Why it cannot succeed: where it will fail, by which cause, in words, and the line of the figure.
    ``readings`` are the figures of the start so far that a plan can begin with."""

    phase: Phase
    cause: str
    text: str
    formula: str
    source: str
    readings: dict[str, float] = {}


def doom_of(found: Examined) -> Doom | None:
    """The proof that this start will fail; None where there is none, or it is past the place already."""
    budget, run = found.case.budget, found.case.run
    if budget.verdict != "fails" or budget.fails_at is None or run.ready is not None:
        return None
    if any(isinstance(event, Failure) for event in run.events):
        return None  # it says so by itself
    reached = run.reached
    if reached is not None and PHASES.index(reached) > PHASES.index(budget.fails_at):
        return None
    figure = next((name for name in reversed(_FIGURES) if name in found.observed), None)
    if figure is None:
        return None
    said = _proof(budget, found)
    if said is None:
        return None
    reading = found.observed[figure]
    readings = {name: found.observed[name].value.value for name in _FIGURES if name in found.observed}
    return Doom(
        budget.fails_at, budget.cause or "", said, budget.formula, f"{figure} {reading.value}", readings
    )  # fmt: skip


def _proof(budget: Budget, found: Examined) -> str | None:
    """The sentence, where the figures leave no way out."""
    pool = budget.pool_bytes
    if budget.cause == "budget-below-weights" and pool is not None and _below(pool, 0):
        return f"nothing can be left for the KV pool: {gib_text(-pool.value)} are missing"
    if budget.cause == "weights-exceed-gpu":
        return "the weights are larger than the memory that is free for them"
    if budget.cause == "free-memory-below-request" and "free_at_start_gib" in found.observed:
        return "less memory is free than the share asks for"
    length = found.case.deployment.launch.integer("max_model_len")
    tokens = budget.kv_tokens
    if budget.cause == "max-len-exceeds-kv" and tokens is not None and length and _below(tokens, length):
        return (
            f"a request of {tokens_text(length)} tokens cannot fit: the pool holds {tokens_text(tokens.value)}"
        )
    return None


def _below(band: Band, limit: float) -> bool:
    return band.high < limit and band.chance_above(limit) < PROOF
