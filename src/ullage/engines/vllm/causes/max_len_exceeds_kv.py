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

from collections.abc import Iterator

from ullage.core.finding import Case, Change, Finding, Prediction, Refuted
from ullage.core.units import GIB
from ullage.engines.vllm import host
from ullage.engines.vllm.causes._budget import Terms, fit, no_fit, terms
from ullage.engines.vllm.causes._case import between, checked, figure, found, gib, starts


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
            f"{gib(seen['available'])} are there."
        )
    if "tokens" in seen:
        return f"The KV cache holds {int(seen['tokens']):,} tokens, fewer than one request of {limit}."
    return f"The KV cache is smaller than one request of {limit} needs."


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
            f"Missing are {gib(missing)}, that is a share larger by {missing / known.total:.3f} "
            f"({known.utilization + missing / known.total:.3f} in all)."
        )
    if case.deployment.launch.get("max_model_len") is None:
        parts.append("No limit was given, so the model's own context was taken.")
    return " ".join(parts) or "The check compares one request of the limit with the pool; no allocation failed."


def _fixes(case: Case, known: Terms, seen: dict[str, float]) -> Iterator[Change]:
    best = longest(case, seen)
    if best:
        yield _shorter(case, best, seen)
    if _pinned(case):
        yield from _larger_pool(seen)
    else:
        yield from starts(_larger_share(case, known, seen))
    if case.deployment.launch.text("kv_cache_dtype") in (None, "auto") and between(
        case, "0.6.0", None, unknown=True
    ):
        yield checked(case, {"kv_cache_dtype": "fp8"}, "half the bytes a token", certainty="possible")


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
    if not {"estimate", "tokens"} & set(seen) or (change.predicted and change.predicted.verdict == "starts"):
        return change
    pool = int(seen["available"] * GIB) if "available" in seen else None
    said = Prediction("starts", best, pool, "as the engine's own message says")
    return Change(change.change, change.why, said, change.certainty)


def _larger_share(case: Case, known: Terms, seen: dict[str, float]) -> list[Change]:
    """The next share that closes the gap and still passes the check at start; empty where there is none."""
    if "available" not in seen or not known.total:
        return []
    free = figure(case, "free_at_start_gib")
    ceiling = free.value / known.total if free is not None else 0.98
    wanted = known.utilization + (seen["needed"] - seen["available"]) / known.total
    share = round(int(wanted * 100 + 1.5) / 100, 2)
    if share > ceiling:
        return []
    settings = {"gpu_memory_utilization": share}
    return [checked(case, settings, f"the gap closes at {wanted:.3f}; {ceiling:.3f} is the most that is free")]


def _refuted(known: Terms, seen: dict[str, float]) -> Iterator[Refuted]:
    if seen.get("available"):
        yield Refuted("the card is full", f"the pool is positive: {gib(seen['available'])}")
    yield Refuted("fragmentation", "the check is arithmetic on bytes; no allocation has failed")
    if known.weights_alone is False:
        yield Refuted("the weights do not fit", f"they take {gib(known.weights or 0)} of the share")
