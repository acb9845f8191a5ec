"""vLLM's memory arithmetic, one door: the budget, what figures imply, what they contradict, which shares start.

terms.py has the sum, kv_specs/kv_groups/kv_plan the cache, peak.py, graphs.py and outside.py the rest of the
share, beside.py what must fit next to it, verdict.py the checks.
"""

from __future__ import annotations

from ullage.engines.vllm.beside import beside
from ullage.engines.vllm.contradict import contradictions
from ullage.engines.vllm.graphs import graph_bytes
from ullage.engines.vllm.infer import infer
from ullage.engines.vllm.interval import interval, shortage
from ullage.engines.vllm.peak import sampler_bytes
from ullage.engines.vllm.settings import Settings, settings
from ullage.engines.vllm.terms import REQUESTED, terms, with_rest
from ullage.engines.vllm.verdict import budget

__all__ = [
    "REQUESTED", "Settings", "beside", "budget", "contradictions", "graph_bytes", "infer", "interval",
    "sampler_bytes", "settings", "shortage", "terms",
    "with_rest",
]  # fmt: skip
