"""The room that must stay beside the KV pool: until the server answers, and while it serves.

What a launch was seen to take until it was up beats the rules. What a full prefill chunk takes is never
printed: it stays an estimate, from the model's shapes up to 1.5 MiB a token (sglang 0.5.9 server_args).
"""

from __future__ import annotations

from msgspec import Struct

from ullage.core.ledger import Entry
from ullage.core.run import Run
from ullage.core.units import GIB, MIB, Band
from ullage.engines.sglang.budget import free_slack
from ullage.engines.sglang.fraction import FRACTION
from ullage.engines.sglang.implied import fraction
from ullage.engines.sglang.known import Known, add
from ullage.engines.sglang.pool import Pool, mm_reserved_bytes, pool_bytes, size_pool
from ullage.engines.sglang.slack import at_start, total_of

#: free once the server is up: sglang's tuning guide calls 5 to 8 GiB of an 80 GiB card good
SPARE = 0.055
#: what the card has, over what is free once CUDA's context stands (1.2 .. 3 % in public logs)
_WHOLE = 1.02
#: how the largest terms are called in a sentence
_WORDS = {
    "req_to_token": "request table", "decode graphs": "CUDA graphs", "draft KV, not budgeted": "draft KV cache",
    "prefill activations": "activations of a prefill chunk",
}  # fmt: skip


class Room(Struct, frozen=True):
    """Bytes beside the pool: ``start`` until the server answers, ``serving`` on top, for a full prefill."""

    start: Band
    serving: Band
    because: str

    @property
    def least(self) -> float:
        """With less, the start or the first full prefill chunk fails."""
        return self.start.low + self.serving.low

    @property
    def most(self) -> float:
        """More than this it hardly ever takes."""
        return self.start.high + self.serving.high

    def likely(self, total: float) -> float:
        """What it takes as far as can be told, and some to spare."""
        return self.start.value + max(self.serving.value, SPARE * total)


def observed(run: Run | None, base: Known) -> Room | None:
    """What this very launch took after its pool, by its stages: total (1 - f) less what was free in the end.

    Only for a launch that got past its graphs; what came after is no part of it.
    """
    if run is None or base.total is None:
        return None
    end = base.read("free_at_ready_gib") or base.read("free_after_graphs_gib")
    share, _ = fraction(base)
    if end is None or share is None:
        return None
    taken = base.total.value * (1 - share.value) - end.value
    if taken < 0:
        return None  # more was free in the end than the rule leaves: the fraction is not what it seems
    lines = base.source("free_at_ready_gib", "free_after_graphs_gib")
    serving = _serving(base, share.value)
    more = (
        f", and a full prefill chunk takes at least {serving.low / GIB:.1f} GiB more"
        if serving.low > 0.05 * GIB
        else ""
    )
    text = f"beside its pool this launch took {taken / GIB:.2f} GiB until it was up ({lines}){more}"
    return Room(Band(taken, taken, taken), serving, text)


def by_rules(base: Known, low: float, at: float | None = None) -> Room | None:
    """By the terms of slack, and what the libraries take at their first use. Tables and uncounted drafts depend
    on the pool, and so on the fraction: worked out ``at`` one, else at the one in force or the least useful."""
    pool = pool_at(base, at if at is not None else max(low + 0.02, base.settings.mem_fraction_static or 0))
    if pool is None or base.total is None:
        return None
    entries = free_slack(base, pool)
    least, value, most = total_of(at_start(entries))
    start = add(Band(value, least, most), _workspace(base))
    serving = _served(entries)
    names = [_WORDS.get(e.name, e.name) for e in sorted(entries, key=lambda e: -e.low) if e.low > 0.05 * GIB][
        :4
    ]
    need = f"{(start.low + serving.low) / GIB:.1f} to {(start.high + serving.high) / GIB:.0f} GiB, estimated"
    listed = f" ({', '.join(names)})" if names else ""
    return Room(start, serving, f"what must fit beside the pool{listed}: {need}")


def _workspace(base: Known) -> Band:
    """A workspace that the log shows to grow with the pool (AITER): the terms of slack do not know it."""
    shown = base.read("workspace_gib")
    return shown if shown is not None and shown.value > 4 * GIB else Band(0, 0, 0)


def default_fraction(base: Known) -> float | None:
    """The engine's own default for a card of this size, before it is lowered for a vision tower."""
    machine = base.deployment.machine
    gpu = machine.gpu if machine else None
    whole = gpu.total_bytes if gpu is not None else None
    if whole is None and base.total is not None:
        whole = round(base.total.value * _WHOLE)
    if whole is None:
        return None
    mla = bool(base.model and base.model.is_mla)
    return FRACTION.at(base.settings.release)(base.settings, whole // MIB, mla)


def pool_at(base: Known, f: float) -> Pool | None:
    if base.model is None or not base.model.layers or base.total is None or base.free is None:
        return None
    reserved = mm_reserved_bytes(base.model, base.settings)
    return size_pool(base.model, base.settings, pool_bytes(base.free.value, base.total.value, f, reserved))


def _serving(base: Known, f: float) -> Band:
    pool = pool_at(base, f)
    if pool is None:
        return Band(GIB, 0, (base.settings.chunked_prefill_size or 8192) * 1.5 * MIB)
    return _served(free_slack(base, pool))


def _served(entries: tuple[Entry, ...]) -> Band:
    found = [Band(e.bytes, e.low, e.high) for e in entries if e.stage == "serving"]
    return add(*found) if found else Band(0, 0, 0)


__all__ = ["Room", "by_rules", "default_fraction", "observed", "pool_at"]
