"""SGLang's memory arithmetic: the door to its terms, one module a subject.

settings: what a launch states. defaults, fraction, vision, backends, captured: what the release fills in.
cells: bytes per token. windows, recurrent: hybrids. speculative: drafts. pool: tokens of a budget. slack: what
must fit beside the pool. known, implied: what was read, and what it implies. budget: all of it for one
deployment, with the ledgers. infer, interval: the formula turned round.
"""

from __future__ import annotations

from ullage.engines.sglang.budget import budget, free_slack, slack_bytes
from ullage.engines.sglang.cells import Cells, cell_size
from ullage.engines.sglang.defaults import Host, resolved
from ullage.engines.sglang.implied import bytes_per_token, fraction
from ullage.engines.sglang.infer import contradictions, infer
from ullage.engines.sglang.interval import interval
from ullage.engines.sglang.known import Known, known
from ullage.engines.sglang.pool import Pool, budget_for, max_num_reqs, mm_reserved_bytes, pool_bytes, size_pool
from ullage.engines.sglang.settings import Settings, of_launch
from ullage.engines.sglang.slack import beside_the_pool, custom_all_reduce_bytes, hicache_refusal

__all__ = [
    "Cells", "Host", "Known", "Pool", "Settings", "beside_the_pool", "budget", "budget_for",
    "bytes_per_token", "cell_size", "contradictions", "custom_all_reduce_bytes", "fraction", "free_slack",
    "hicache_refusal", "infer", "interval", "known", "max_num_reqs", "mm_reserved_bytes",
    "of_launch", "pool_bytes",
    "resolved", "size_pool", "slack_bytes",
]  # fmt: skip
