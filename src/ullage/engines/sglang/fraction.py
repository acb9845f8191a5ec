"""The default of mem_fraction_static, by release: what the engine keeps free of weights and pool.

``gpu_mib`` is the smallest ``memory.total`` that nvidia-smi prints, in MiB; N is tp_size (..0.4.6.post1) or
tp_size x pp_size. Read: server_args (..0.5.18) and arg_groups/memory_hook (0.5.19..).
"""

from __future__ import annotations

from ullage.core.versions import Rules
from ullage.engines.sglang.captured import prefill_limit
from ullage.engines.sglang.settings import Settings, at_least

KIB = 1024
FRACTION: Rules[[Settings, int | None, bool], float] = Rules("mem_fraction_static")


def _by_size(parallel: int) -> float:
    return next(f for least, f in ((16, 0.79), (8, 0.81), (4, 0.85), (2, 0.87), (0, 0.88)) if parallel >= least)


@FRACTION.since("≤0.4.0", source="sglang 0.4.0, server_args")
def fraction_by_tp(s: Settings, gpu_mib: int | None, mla: bool) -> float:
    """By tp_size alone: 0.88, 0.87 (2), 0.85 (4), 0.81 (8), 0.79 (16)."""
    return _by_size(s.tp)


@FRACTION.since("0.4.5.post3", source="sglang 0.4.5.post3, server_args")
def fraction_less_13(s: Settings, gpu_mib: int | None, mla: bool) -> float:
    """By tp_size up to 81,920 MiB; above, 13 GiB stay free."""
    return _by_size(s.tp) if gpu_mib is None or gpu_mib <= 81920 else (gpu_mib - 13 * KIB) / gpu_mib


def _large(base: float, gpu_mib: int, reserve_mib: int) -> float:
    return min(base + 48 * KIB * (1 - base) / gpu_mib, (gpu_mib - reserve_mib) / gpu_mib)


@FRACTION.since("0.4.6.post2", source="sglang 0.4.6.post2, server_args")
def fraction_less_18(s: Settings, gpu_mib: int | None, mla: bool) -> float:
    """By N up to 81,920 MiB, else 0.88; above 96 GiB at most 18 GiB stay free."""
    base = _by_size(s.tp * s.pp) if gpu_mib is not None and gpu_mib <= 81920 else 0.88
    return _large(base, gpu_mib, 18 * KIB) if gpu_mib is not None and gpu_mib > 96 * KIB else base


@FRACTION.since("0.4.7", source="sglang 0.4.7, server_args")
def fraction_less_20(s: Settings, gpu_mib: int | None, mla: bool) -> float:
    """As before; 0.79 above 180,000 MiB; with speculation 20 GiB, or 5 % less on smaller GPUs."""
    base = _by_size(s.tp * s.pp) if gpu_mib is not None and gpu_mib <= 81920 else 0.88
    if gpu_mib is not None and gpu_mib > 180_000:
        return 0.79
    if gpu_mib is not None and gpu_mib > 96 * KIB:
        return _large(base, gpu_mib, (20 if s.speculative else 18) * KIB)
    return base * 0.95 if s.speculative else base


@FRACTION.since("0.4.7.post1", source="sglang 0.4.7.post1 and 0.5.2, server_args")
def fraction_reserved(s: Settings, gpu_mib: int | None, mla: bool) -> float:
    """round((gpu - R) / gpu, 3), R by classes: 2.8 + N/10 GiB below 35 GiB, 9.5 + N/2 below 90, 12 + N/2 below
    160, else 32; +2 GiB speculative (+6 STANDALONE), +4 GiB DP attention."""
    if gpu_mib is None:
        return 0.88
    n = s.tp * s.pp
    classes = ((35, 2.8 + n / 10), (90, 9.5 + n / 2), (160, 12 + n / 2))
    reserved: float = next((r for limit, r in classes if gpu_mib < limit * KIB), 32) * KIB
    if s.speculative:
        reserved += (6 if s.speculative_algorithm == "STANDALONE" else 2) * KIB
    reserved += 4 * KIB if s.dp_attention else 0
    return round((gpu_mib - reserved) / gpu_mib, 3)


@FRACTION.since("0.5.3", source="sglang 0.5.3..0.5.14, server_args, _handle_gpu_memory_settings")
def fraction_by_work(s: Settings, gpu_mib: int | None, mla: bool) -> float:
    """round((gpu - R) / gpu, 3) with R = 512 + 1.5 chunk + 2 max_bs + N/8 GiB, DP attention and prefill graphs,
    at least 10 GiB on GPUs above 60 GiB, and the drafts' share (MiB)."""
    if gpu_mib is None:
        return 0.88
    max_bs = s.cuda_graph_max_bs or 0
    reserved = 512 + activation_tokens(s) * 1.5 + max_bs * 2 + s.tp * s.pp / 8 * KIB
    reserved += padding_mib(s) if s.dp_attention else 0
    if at_least(s.release, "0.5.8"):
        reserved += prefill_graphs_mib(s, mla)
    reserved = max(reserved, 10 * KIB) if gpu_mib > 60 * KIB else reserved
    reserved += draft_reserve_mib(s)
    if not at_least(s.release, "0.5.8"):
        reserved += prefill_graphs_mib(s, mla)
    return round((gpu_mib - reserved) / gpu_mib, 3)


@FRACTION.since("0.5.15", source="sglang 0.5.16 server_args, 0.5.23 arg_groups/memory_hook")
def fraction_by_mode(s: Settings, gpu_mib: int | None, mla: bool) -> float:
    """As before, by serving mode: no decode terms on a prefill server, none of prefill graphs on a decode one;
    DeepEP +2 GiB after the floor (MiB)."""
    if gpu_mib is None:
        return 0.95 if at_least(s.release, "0.5.20") else 0.88
    reserved = 512 + activation_tokens(s) * 1.5 + s.tp * s.pp / 8 * KIB
    decodes = s.disaggregation_mode != "prefill"
    reserved += (s.cuda_graph_max_bs or 0) * 2 if decodes and s.decode_graphs else 0
    reserved += padding_mib(s) if decodes and s.dp_attention else 0
    reserved += prefill_graphs_mib(s, mla) if s.disaggregation_mode != "decode" else 0
    reserved = max(reserved, 10 * KIB) if gpu_mib > 60 * KIB else reserved
    reserved += 2 * KIB if decodes and s.decode_graphs and s.moe_a2a_backend == "deepep" else 0
    return round((gpu_mib - reserved) / gpu_mib, 3)


def activation_tokens(s: Settings) -> int:
    """Tokens that the activations of a forward pass scale with, at least 2048."""
    if s.disaggregation_mode == "decode" and at_least(s.release, "0.5.15"):
        return max((s.max_running_requests or s.cuda_graph_max_bs or 1) * (s.draft_tokens or 1), 2048)
    chunk = s.chunked_prefill_size or 0
    return max(chunk if chunk > 0 else s.max_prefill_tokens, 2048)


def padding_mib(s: Settings) -> float:
    """DP attention pads: 3 MiB x max_bs x dp, 4.5 where max_bs > 300."""
    max_bs = s.cuda_graph_max_bs or 0
    return max_bs * s.dp * (4.5 if max_bs > 300 else 3)


def draft_reserve_mib(s: Settings) -> int:
    """Flat share for draft weights and graphs: STANDALONE 6 GiB, NGRAM none, others 2 GiB, 4 from 0.5.10 on;
    nothing from 0.5.14 on, which charges the draft to the pool."""
    if not s.speculative or s.speculative_algorithm == "NGRAM" or at_least(s.release, "0.5.14"):
        return 0
    if s.speculative_algorithm == "STANDALONE":
        return 6 * KIB
    return (4 if at_least(s.release, "0.5.10") else 2) * KIB


def prefill_graphs_mib(s: Settings, mla: bool) -> float:
    """Share for prefill ("piecewise") graphs: tokens / 4 (0.5.5.post1..0.5.6.post2), / 8 (0.5.7), 8 MiB a size
    (0.5.8..), for MLA 1.5 GiB (0.5.10..); breakable graphs beside DeepEP 1 GiB more (0.5.17..)."""
    if not s.prefill_graphs or not at_least(s.release, "0.5.5.post1"):
        return 0
    if not at_least(s.release, "0.5.8"):
        return prefill_limit(s, mla) // (8 if at_least(s.release, "0.5.7") else 4)
    size = 1.5 * KIB if mla and at_least(s.release, "0.5.10") else len(s.prefill_graph_sizes) * 8
    deepep = s.moe_a2a_backend == "deepep" and at_least(s.release, "0.5.17")
    return size + (KIB if deepep else 0)
