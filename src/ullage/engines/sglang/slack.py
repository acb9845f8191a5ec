"""What must fit beside the KV pool, in total x (1 - mem_fraction_static): tables, workspaces, graphs.

Sizes that follow from shapes are exact; graphs and activations are estimates with limits. Read: sglang 0.5.9
attention backends (init_cuda_graph_state), memory_pool ReqToTokenPool, cuda_graph_runner.
"""

from __future__ import annotations

from ullage.core.ledger import Entry
from ullage.core.model import Model
from ullage.core.run import Phase
from ullage.core.units import GIB, KIB, MIB
from ullage.engines.sglang.cells import main_layer
from ullage.engines.sglang.pool import Pool
from ullage.engines.sglang.settings import Settings, at_least
from ullage.engines.sglang.speculative import draft_layers, uncharged_draft_bytes


def estimated(stage: Phase, name: str, low: float, value: float, high: float, source: str) -> Entry:
    return Entry(stage, name, round(value), round(low), round(high), "estimated", source)


def beside_the_pool(model: Model, s: Settings, pool: Pool, context_len: int | None = None) -> tuple[Entry, ...]:
    """Everything that takes memory after the pool is sized, largest certainty first, empty entries left out."""
    context = context_len or s.context_length or model.max_context or 0
    entries = [
        request_table(s, pool.max_num_reqs, context),
        unbudgeted_draft(model, s, pool),
        unbudgeted_pages(pool),
        *graph_tables(model, s, pool, context),
        workspace(model, s),
        logits_buffer(model, s, pool),
        decode_graphs(model, s, pool),
        prefill_graphs(model, s),
        symmetric_memory(s),
        libraries(s.tp * s.pp),
        activations(model, s),
        sampling(model, s, pool),
    ]
    return tuple(entry for entry in entries if entry is not None and entry.high > 0)


def at_start(entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
    """Those that are there before the server answers: what decides whether it starts."""
    return tuple(entry for entry in entries if entry.stage != "serving")


def total_of(entries: tuple[Entry, ...]) -> tuple[int, int, int]:
    """(low, value, high) bytes of ``entries`` together."""
    return sum(e.low for e in entries), sum(e.bytes for e in entries), sum(e.high for e in entries)


def request_table(s: Settings, max_num_reqs: int, context_len: int) -> Entry | None:
    """req_to_token: int32 [R, context + 4 (+ draft tokens, 0.5.1..)]; R + 1 rows ..0.4.6.post5."""
    rows = max_num_reqs + (0 if at_least(s.release, "0.4.7") else 1)
    width = context_len + 4 + ((s.draft_tokens or 0) if s.speculative and at_least(s.release, "0.5.1") else 0)
    if max_num_reqs <= 0 or not context_len:
        return None
    return Entry.exact("kv_pool", "req_to_token", rows * width * 4, "sglang 0.5.9, memory_pool, ReqToTokenPool")


def unbudgeted_draft(model: Model, s: Settings, pool: Pool) -> Entry | None:
    """KV of the draft model, which no budget counts up to 0.5.13: as many tokens as the pool."""
    size = uncharged_draft_bytes(model, s, pool.tokens) if pool.tokens > 0 else 0
    if not size:
        return None
    low, high = (0.99, 1.01) if s.draft_cell else (0.25, 4)
    source = "sglang 0.5.9, draft worker's pool"
    return estimated("kv_pool", "draft KV, not budgeted", size * low, size, size * high, source)


def unbudgeted_pages(pool: Pool) -> Entry | None:
    """What the pool's pages take beyond the budget (DeepSeek-V4: padding; bfloat16 latents on Ascend)."""
    size = round(pool.unbudgeted_bytes)
    if size <= 0:
        return None
    return estimated(
        "kv_pool", "KV pages, not budgeted", size * 0.8, size, size * 1.1,
        "sglang 0.5.12 to 0.5.23, mem_cache/deepseek_v4_memory_pool",
    )  # fmt: skip


def captured_requests(s: Settings, max_num_reqs: int) -> int:
    """The largest captured batch: the list's last, not above the request table."""
    if not s.decode_graphs or not s.cuda_graph_bs:
        return 0
    return min(max(s.cuda_graph_bs), max_num_reqs) if max_num_reqs > 0 else max(s.cuda_graph_bs)


def graph_tables(model: Model, s: Settings, pool: Pool, context: int) -> list[Entry | None]:
    """Page tables and masks that a backend allocates for the captured batch sizes.

    T rows (largest batch x tokens per request) as wide as the context, whether or not the pool could ever hold
    such a request. triton: int64 indices (int32 ..0.4.10.post2), a mask byte, split logits; flashinfer: int32
    indices and a mask byte per wrapper; paged backends: one int32 a page.
    """
    requests = captured_requests(s, pool.max_num_reqs)
    rows, backend = requests * s.tokens_per_request, s.attention_backend or ""
    if not rows or not context:
        return []
    if backend == "triton":
        return _triton(model, s, requests, rows, context)
    source = f"sglang 0.5.9, {backend or 'attention'} backend, init_cuda_graph_state"
    if backend == "flashinfer" and not model.is_mla:
        wrappers = 2 if any(layer.kind == "sliding" for layer in model.layers) else 1
        size = rows * context * 4 * wrappers + (rows * context if s.speculative else 0)
        return [Entry.exact("graph_capture", "flashinfer graph indices", size, source)]
    if backend in ("nsa", "dsa"):
        return [Entry.exact("graph_capture", "DSA graph tables", rows * context * 4, source)]
    copies = 3 if s.speculative else 1
    return [
        Entry.exact("graph_capture", "graph page tables", requests * -(-context // s.page) * 4 * copies, source)
    ]


def _triton(model: Model, s: Settings, requests: int, rows: int, context: int) -> list[Entry | None]:
    source = "sglang 0.5.9, triton backend, init_cuda_graph_state"
    if not at_least(s.release, "0.4.2.post2"):
        return []
    if not at_least(s.release, "0.4.8"):
        rows = requests
    element = 8 if at_least(s.release, "0.5.1") else 4
    layer = main_layer(model)
    width = (layer.kv_lora_rank if layer and layer.kind == "mla" else layer.v_head_dim if layer else 0) or 128
    heads = max(1, model.num_heads // s.attn_tp)
    mask = rows * context if at_least(s.release, "0.4.3") and not at_least(s.release, "0.5.17") else 0
    return [
        Entry.exact("graph_capture", "triton graph indices", rows * context * element, source),
        Entry.exact("graph_capture", "triton custom mask", mask, source),
        Entry.exact("graph_capture", "triton attention logits", rows * heads * 8 * width * 4, source),
    ]


#: architectures with a larger flashinfer workspace, and the release that began it
_WIDE = {
    "Qwen2ForCausalLM": "0.4.4", "Qwen2MoeForCausalLM": "0.4.4", "Qwen3ForCausalLM": "0.4.6.post5",
    "Qwen3MoeForCausalLM": "0.4.6.post5", "MiMoForCausalLM": "0.4.6.post5",
    "Qwen3VLForConditionalGeneration": "0.5.6.post2", "Qwen3VLMoeForConditionalGeneration": "0.5.6.post2",
}  # fmt: skip


def workspace(model: Model, s: Settings) -> Entry | None:
    """The attention backend's work buffer: flashinfer 384 MiB (512 for Qwen, 2048 deterministic), trtllm_mha
    512, trtllm_mla 150; FLASHINFER_WORKSPACE_SIZE and SGLANG_FLASHINFER_WORKSPACE_SIZE replace flashinfer's."""
    backend = s.attention_backend or ""
    sizes = {"trtllm_mha": 512, "trtllm_mla": 150, "flashinfer": 384}
    if backend not in sizes:
        return None
    size = sizes[backend] * MIB
    if backend == "flashinfer":
        since = _WIDE.get(model.architecture or "")
        size = 512 * MIB if since and at_least(s.release, since) else size
        size = 2048 * MIB if s.deterministic else size
        size = _from_env(s) or size
    return Entry.exact("kv_pool", f"{backend} workspace", size, f"sglang 0.5.9, {backend} backend")


def _from_env(s: Settings) -> int | None:
    for name in ("SGLANG_FLASHINFER_WORKSPACE_SIZE", "FLASHINFER_WORKSPACE_SIZE"):
        text = s.env.get(name, "")
        if text.isascii() and text.isdigit() and len(text) < 13:
            return int(text)
    return None


def logits_buffer(model: Model, s: Settings, pool: Pool) -> Entry | None:
    """Input buffers of the decode graphs: next_token_logits T x vocab x 4 bytes (0.4.10.post2..)."""
    rows = captured_requests(s, pool.max_num_reqs) * s.tokens_per_request
    if not rows or not model.vocab_size or not at_least(s.release, "0.4.10.post2"):
        return None
    size = rows * model.vocab_size * 4
    return Entry.exact("graph_capture", "graph logits buffer", size, "sglang 0.5.9, cuda_graph_runner")


def decode_graphs(model: Model, s: Settings, pool: Pool) -> Entry | None:
    """The captured graphs themselves, and the activations of the largest batch once (estimated).

    Public logs show 2 .. 40 MiB a captured size for dense models, 40 .. 180 for experts on several ranks.
    """
    largest = captured_requests(s, pool.max_num_reqs)
    count = sum(size <= largest for size in s.cuda_graph_bs)
    if not largest or not count:
        return None
    sets = 1 + (2 if draft_layers(s) else 0)
    batch = largest * s.tokens_per_request * activation_bytes_per_token(model, s) + logits_bytes(
        model, s, largest
    )
    each = 45 * MIB if model.num_experts and s.tp > 1 else 14 * MIB
    value = sets * count * each + batch
    return estimated(
        "graph_capture", "decode graphs", 0.15 * value, value, 3 * value + 1.5 * GIB,
        "2..180 MiB a captured size in public logs",
    )  # fmt: skip


def logits_bytes(model: Model, s: Settings, requests: int) -> float:
    """Bytes of the largest batch's logits inside the graphs: 16 bits, and 32 where no buffer holds them (see
    logits_buffer); of a draft with ``topk`` branches a request two copies in 32 bits more (softmax, top-k)."""
    rows = requests * s.tokens_per_request
    each = 2 if at_least(s.release, "0.4.10.post2") else 6
    drafted = requests * (s.topk or 1) * 8 if draft_layers(s) else 0
    return float(model.vocab_size * (rows * each + drafted))


def prefill_graphs(model: Model, s: Settings) -> Entry | None:
    """Prefill ("piecewise") graphs: 8 MiB a size beside torch's own memory, MLA about 1.5 GiB, as the engine's
    own reserve assumes."""
    if not s.prefill_graphs or not s.prefill_graph_sizes:
        return None
    value = 1536 * MIB if model.is_mla else len(s.prefill_graph_sizes) * 8 * MIB
    return estimated(
        "graph_capture", "prefill graphs", 0.3 * value, value, 4 * value + GIB, "sglang 0.5.10, server_args"
    )  # fmt: skip


def symmetric_memory(s: Settings) -> Entry | None:
    """--enable-symm-mem: 4 GiB (SGLANG_SYMM_MEM_PREALLOC_GB_SIZE) after the capture, not budgeted (0.5.9..)."""
    if not s.symm_mem or not at_least(s.release, "0.5.9"):
        return None
    text = s.env.get("SGLANG_SYMM_MEM_PREALLOC_GB_SIZE", "4")
    size = int(text) if text.isascii() and text.isdigit() and len(text) < 4 else 4
    return Entry.exact(
        "graph_capture", "symmetric memory", size * GIB, "sglang 0.5.9, SGLANG_SYMM_MEM_PREALLOC"
    )


def activation_bytes_per_token(model: Model, s: Settings) -> float:
    """Bytes of activations that one token of a forward pass needs at its widest layer, roughly.

    Six hidden-sized bf16 tensors, the MLP's two, and for experts top-k copies of hidden and of their two.
    """
    hidden = model.hidden_size * 2
    dense = 4 * model.intermediate_size / s.tp
    experts = model.experts_per_token * (hidden + 4 * model.moe_intermediate_size / s.tp)
    return 6 * hidden + max(dense, experts)


def activations(model: Model, s: Settings) -> Entry | None:
    """What a full prefill chunk needs while serving; the engine's own guess is 1.5 MiB a token (estimated)."""
    tokens = s.chunked_prefill_size or 0
    tokens = tokens if tokens > 0 else s.max_prefill_tokens
    if s.dp_attention:
        tokens *= s.attn_dp if at_least(s.release, "0.4.4.post1") else 1
    per_token = activation_bytes_per_token(model, s)
    value = min(tokens * per_token * 1.5, tokens * 1.5 * MIB)
    if not model.hidden_size or not tokens:
        return None
    high = max(tokens * 1.5 * MIB, value)
    return estimated(
        "serving", "prefill activations", value * 0.4, value, high, "shapes; sglang's 1.5 MiB a token"
    )


def sampling(model: Model, s: Settings, pool: Pool) -> Entry | None:
    """Logits of the requests that finish a prefill or decode together, outside the graphs: gathered over the
    ranks in 16 bits, then probabilities in float32 (estimated; --return-logprob takes more)."""
    rows = captured_requests(s, pool.max_num_reqs) or min(pool.max_num_reqs, 256)
    size = rows * model.vocab_size * 6
    if size <= 0:
        return None
    return estimated("serving", "logits and sampling", 0, size, 3 * size, "sglang 0.5.9, layers/sampler")


def libraries(ranks: int) -> Entry:
    """What cuBLAS, NCCL and lazily loaded kernels take at their first use, after the pool (estimated)."""
    low, value, high = (0, 0.3 * GIB, GIB) if ranks <= 1 else (0.1 * GIB, 0.6 * GIB, 2 * GIB)
    return estimated("warmup", "cuBLAS, NCCL and kernels at first use", low, value, high, "public logs")


def custom_all_reduce_bytes(s: Settings, *, full_mesh: bool | None) -> int:
    """Bytes of IPC buffers on each rank, allocated before the weights: metadata + three of 8 MiB.

    Only for 2, 4, 6 or 8 ranks of one node, all joined by NVLink (two may be PCIe): never for more than two
    PCIe-only GPUs (sglang 0.5.9, device_communicators/custom_all_reduce).
    """
    if s.tp not in (2, 4, 6, 8) or (s.tp > 2 and full_mesh is not True):
        return 0
    return 3 * 8 * MIB + 64 * KIB


def hicache_tokens(s: Settings, device_tokens: int, bytes_per_token: float) -> int:
    """Tokens of the host pool of one rank: hicache_size (decimal GB) // bytes, else device tokens x ratio."""
    if s.hicache_size > 0 and bytes_per_token > 0:
        return int(s.hicache_size * 1e9 // bytes_per_token)
    return int(device_tokens * s.hicache_ratio)


def hicache_refusal(
    s: Settings, device_tokens: int, bytes_per_token: float, host_free_bytes: float
) -> str | None:
    """Why the host pool of one rank is refused; None where it is not.

    "Not enough host memory available" where it needs more than free - 10 GiB (the margin from 0.4.9.post3 on);
    "The host memory should be larger than the device memory" where it holds no more tokens (..0.5.14).
    """
    tokens = hicache_tokens(s, device_tokens, bytes_per_token)
    if tokens <= device_tokens and not at_least(s.release, "0.5.15"):
        return f"{tokens} host tokens are not more than the {device_tokens} of the GPU"
    margin = 10 * GIB if at_least(s.release, "0.4.9.post3") else 0
    needed = (tokens + s.page) * bytes_per_token
    if needed > host_free_bytes - margin:
        return f"{needed / 1e9:.2f} GB are wanted, {(host_free_bytes - margin) / 1e9:.2f} GB may be taken"
    return None
