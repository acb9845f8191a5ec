"""The KV cache has room, but less than one request of the full context needs.

What you see: "To serve at least one request with the model's max seq len (L), (N GiB KV cache is needed,
which is larger than the available KV cache memory (K GiB)"; the old engine (V0, to 0.10.2): "The model's max
seq len (L) is larger than the maximum number of tokens that can be stored in KV cache (N)".

What misleads: both changes that the message names are printed whatever the numbers are. With tensor
parallelism the available figure is that of one card: the memory of the cards does not add up, since each
already stores only its share of the heads. In V0 a longer limit also made the dummy prompt longer and the
pool smaller.

What is true: the engine refuses a limit that it could never serve, even if no request would be that long. L
is the model's own context where none was given. The estimate that is printed is the longest limit that fits;
it is wrong only with pipeline stages (0.14.0-0.16) and for hybrid models before 0.19.

What helps: --max-model-len at or below the estimate, which needs no other change; or a pool larger by needed
minus available, by a larger share, a smaller activation peak, an 8-bit KV cache, or more cards.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from msgspec.structs import replace

from ullage.core.finding import Case, Change, Finding, Prediction, Refuted
from ullage.core.units import GIB, gib_text
from ullage.engines.vllm import host
from ullage.engines.vllm.candidates import FP8_SINCE
from ullage.engines.vllm.causes._budget import Terms, fit, no_fit, terms
from ullage.engines.vllm.causes._case import between, figure, found, gib, starts
from ullage.engines.vllm.causes._checks import checked, in_force, shorter_beside
from ullage.engines.vllm.kv_specs import element_bytes


def test(case: Case) -> Finding | None:
    if not no_fit(case):
        return None
    known, seen = terms(case), fit(case)
    return found(
        case, "max-len-exceeds-kv", "certain", 40 if "available" in seen or "tokens" in seen else 20,
        _summary(case, seen), _explanation(case, known, seen), shown=["kv_gib", "kv_tokens", "weights_gib"],
        fixes=_fixes(case, known, seen), refuted=_refuted(known, seen), phase="kv_pool",
    )  # fmt: skip


def longest(case: Case, seen: dict[str, float]) -> int | None:
    """The longest limit that fits, rounded down to a block of 16: printed, or in proportion to the memory."""
    if "estimate" in seen:
        return int(seen["estimate"])
    if "tokens" in seen:
        return int(seen["tokens"])
    shown = figure(case, "est_max_len")
    if shown is not None:
        return int(shown.value)
    if seen.get("needed") and "available" in seen:
        # printed figures are rounded: half a step off each way
        share = max(0.0, seen["available"] - 0.005) / (seen["needed"] + 0.005)
        return int(seen["length"] * share) // 16 * 16
    return None


def _length(case: Case, seen: dict[str, float]) -> int | None:
    return int(seen["length"]) if "length" in seen else case.deployment.launch.integer("max_model_len")


def _summary(case: Case, seen: dict[str, float]) -> str:
    length = _length(case, seen)
    limit = f"{length:,} tokens" if length else "the full context"
    if "available" in seen:
        return (
            f"One request of {limit} needs {gib(seen['needed'])} of KV cache on each card, and "
            f"{_there(seen)} there."
        )
    if "tokens" in seen:
        return f"The KV cache holds {int(seen['tokens']):,} tokens, fewer than one request of {limit}."
    return f"The KV cache is smaller than one request of {limit} needs."


def _there(seen: dict[str, float]) -> str:
    """What the pool has, as exactly as the message prints it."""
    return f"{gib(seen['available'])} are" if seen["available"] >= 0.005 else "less than 0.01 GiB is"


def _explanation(case: Case, known: Terms, seen: dict[str, float]) -> str:
    parts = []
    if _pinned(case):
        parts.append("The size of the pool was told, not measured; the share has no part in it.")
    elif known.requested is not None:
        parts.append(f"The pool is what the share leaves: {known.formula}.")
    best = longest(case, seen)
    if best is not None:
        parts.append(f"The longest limit that fits is about {best:,} tokens.")
    if "available" in seen and known.total and not _pinned(case):
        missing = seen["needed"] - seen["available"]
        parts.append(
            f"Missing are {gib_text(missing * GIB)}, {missing / known.total:.2%} of the card: the share would "
            f"have to be {known.utilization + missing / known.total:.4f}."
        )
    if case.deployment.launch.get("max_model_len") is None:
        parts.append("No limit was given, so the model's own context was taken.")
    return " ".join(parts) or "The check compares one request of the limit with the pool; no allocation failed."


def _fixes(case: Case, known: Terms, seen: dict[str, float]) -> Iterator[Change]:
    best = longest(case, seen)
    if best:
        yield _shorter(case, best, seen)
    else:
        yield from shorter_beside(case, "about the longest limit that fits this pool")
    if _pinned(case):
        yield from _larger_pool(seen)
    else:
        yield from starts(_larger_share(case, known, seen))
    yield from _half(case, seen)


def _half(case: Case, seen: dict[str, float]) -> Iterator[Change]:
    """An 8-bit cache, where it is not in force, this GPU has it, and half of the need is there."""
    s, machine = in_force(case), case.deployment.machine
    capability = machine.gpu.capability if machine is not None and machine.gpu is not None else None
    if element_bytes(s.cache.dtype, s.cache.model_dtype) < 2 or host.on_host(case.deployment):
        return
    dtype = "fp8_e5m2" if capability is not None and capability < FP8_SINCE else "fp8"
    change = checked(
        case, {"kv_cache_dtype": dtype}, "half the bytes a token, a little less exact", certainty="possible"
    )
    have, need = seen.get("available", seen.get("tokens")), seen.get("needed", seen.get("length"))
    if have is None or need is None:
        yield change
    elif 2 * have > need:
        pool = int(seen["available"] * GIB) if "available" in seen else None
        tokens = int(2 * seen["tokens"]) if "tokens" in seen else None
        known = change.predicted if change.predicted and "tokens" not in seen else None
        tokens = known.kv_tokens if known is not None and tokens is None else tokens
        yield replace(change, predicted=Prediction("starts", tokens, pool))


def _pinned(case: Case) -> bool:
    """True where the pool's size was given (in bytes, or on the CPU) instead of being what a share leaves."""
    launch = case.deployment.launch
    return launch.get("kv_cache_memory_bytes") is not None or host.on_host(case.deployment)


def _larger_pool(seen: dict[str, float]) -> Iterator[Change]:
    if seen.get("needed"):
        least = int((seen["needed"] + 0.005) * 1.1 * 1024) + 1
        yield Change(
            {"--kv-cache-memory-bytes": f"{least}M"},
            "room for one request of this limit, with a tenth to spare",
        )


def _shorter(case: Case, best: int, seen: dict[str, float]) -> Change:
    """The longest limit that fits; where the engine's message names it, its own word is the prediction."""
    change = checked(
        case, {"max_model_len": best}, "the longest limit that fits this pool", certainty="certain"
    )
    if not {"estimate", "tokens"} & set(seen) or (
        change.predicted and change.predicted.verdict == "starts" and "tokens" not in seen
    ):
        return _in_proportion(change, seen)
    pool = int(seen["available"] * GIB) or None if "available" in seen else None
    said = Prediction("starts", best, pool, "as the engine's own message says")
    return Change(change.change, change.why, said, change.certainty)


def _in_proportion(change: Change, seen: dict[str, float]) -> Change:
    """A limit worked out from needed and available fits by that arithmetic, where the model is not known."""
    if change.predicted is None or change.predicted.verdict != "unsure" or "available" not in seen:
        return change
    return replace(change, predicted=replace(change.predicted, verdict="starts"))


def _larger_share(case: Case, known: Terms, seen: dict[str, float]) -> list[Change]:
    """The next share that closes the gap and still passes the check at start; empty where there is none."""
    if "available" not in seen or not known.total:
        return []
    free = figure(case, "free_at_start_gib")
    ceiling = free.value / known.total if free is not None else 0.97
    wanted = known.utilization + (seen["needed"] - seen["available"]) / known.total
    least = math.ceil(wanted * 100 + 0.25) / 100
    default = 0.92 if between(case, "0.20.0", None, unknown=True) else 0.9
    share = max(least, default) if default <= ceiling - 0.02 else least
    if share > ceiling:
        return []
    why = "one request of the limit fits" if share == least else "the engine's default"
    if share != least:
        why += f"; from {least:g} on one request of the limit fits"
    elif share > 0.95:
        why += (
            f", but only {gib((1 - share) * known.total)} stay outside the share for context, NCCL and graphs"
        )
    return [checked(case, {"gpu_memory_utilization": share}, why)]


def _refuted(known: Terms, seen: dict[str, float]) -> Iterator[Refuted]:
    if seen.get("available"):
        yield Refuted("the card is full", f"the pool is positive: {gib(seen['available'])}")
    yield Refuted("fragmentation", "the check is arithmetic on bytes; no allocation has failed")
    if known.weights_alone is False:
        yield Refuted("the weights do not fit", f"they take {gib(known.weights or 0)} of the share")
