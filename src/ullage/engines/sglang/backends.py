"""SGLang's choice of attention backend and page size when none is given, by release."""

from __future__ import annotations

from ullage.core.model import Model
from ullage.engines.sglang.own_backends import imposed_page, own_backend, trtllm_mla
from ullage.engines.sglang.settings import Settings, at_least, extra_buffer

Capability = tuple[int, int] | None
#: architectures of compressed latents: one backend, one page size (arg_groups/deepseek_v4_hook)
COMPRESSED = ("DeepseekV4ForCausalLM",)


def is_sparse_mla(model: Model | None) -> bool:
    """DeepSeek sparse attention (DSA, earlier "NSA"): an indexer beside the latent cache."""
    return bool(model and any(layer.kind == "mla" and layer.index_dim for layer in model.layers))


#: architectures that take fa3 on Hopper by default up to 0.5.7 (utils, is_fa3_default_architecture)
_FA3_BY_DEFAULT = (
    "Qwen2ForCausalLM", "Llama4ForConditionalGeneration", "LlamaForCausalLM", "Olmo2ForCausalLM",
    "Gemma2ForCausalLM", "Gemma3ForConditionalGeneration", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM",
    "Glm4MoeForCausalLM", "Glm4vMoeForConditionalGeneration", "Step3VLForConditionalGeneration",
)  # fmt: skip
_FA3_OF_057 = ("Qwen3VLForConditionalGeneration", "Qwen3VLMoeForConditionalGeneration")


def attention_backend(
    s: Settings, model: Model | None, capability: Capability, *, amd: bool = False
) -> str | None:
    """The backend of decode passes; None where the GPU or the model is not known.

    Hopper: fa3 (flashinfer with a draft tree). SM100: trtllm_mha, or trtllm_mla for DeepSeek, flashinfer for
    other MLA. SM120 and the rest: flashinfer, MLA triton. Read: model_runner (..0.5.2), server_args 0.5.9.
    """
    if (model.architecture if model else None) in COMPRESSED and s.attention_backend != "ascend":
        return "dsv4"
    if s.decode_attention_backend or s.attention_backend:
        return s.decode_attention_backend or _checked(s, s.attention_backend or "")
    if is_sparse_mla(model):
        return "dsa" if at_least(s.release, "0.5.13") else "nsa"
    if amd and model is not None:
        return _on_amd(s, model)
    if capability is None or model is None:
        return None
    if not at_least(s.release, "0.4.6"):
        return "triton" if model.is_mla else "flashinfer"
    architecture = model.architecture or ""
    if model.is_mla:
        return _checked(s, _mla(s, architecture, capability))
    general = _general(s, model, architecture, capability[0])
    return _checked(s, own_backend(s, architecture, capability[0], general) or general)


def _on_amd(s: Settings, model: Model) -> str:
    """AITER from 0.4.7 on, for MLA with 16 or 128 heads on a rank only; else Triton (model_runner 0.4.7..0.5.4,
    server_args 0.5.5.., get_default_attn_backend)."""
    if not at_least(s.release, "0.4.7"):
        return "triton"
    return "triton" if model.is_mla and model.num_heads // max(1, s.tp) not in (16, 128) else "aiter"


def _checked(s: Settings, backend: str) -> str:
    """fa3 cannot read fp8_e5m2: triton instead (0.5.4.post1..), a given fa3 too."""
    e5m2 = s.kv_cache_dtype == "fp8_e5m2" and at_least(s.release, "0.5.4.post1")
    return "triton" if backend == "fa3" and e5m2 else backend


def _general(s: Settings, model: Model, architecture: str, major: int) -> str:
    """The rule for heads of full size. ``s.topk`` is the given one: the default depth comes later."""
    plain = s.topk is None or (s.topk == 1 and s.page_size in (None, 1))
    named = architecture in _FA3_BY_DEFAULT or (architecture in _FA3_OF_057 and at_least(s.release, "0.5.7"))
    if major == 9 and plain and (named or at_least(s.release, "0.5.8")):
        return "fa3"
    drafted = not s.speculative or s.topk is not None
    if major == 10 and at_least(s.release, "0.5.7") and plain and drafted:
        return "fa4" if _asymmetric(model) and at_least(s.release, "0.5.17") else "trtllm_mha"
    return "flashinfer"


def _asymmetric(model: Model) -> bool:
    return any(layer.v_head_dim not in (0, layer.head_dim) for layer in model.layers if layer.kind != "linear")


def _mla(s: Settings, architecture: str, capability: tuple[int, int]) -> str:
    if capability[0] == 9:
        return "fa3"
    if capability[0] == 10:
        return "trtllm_mla" if trtllm_mla(s, architecture) else "flashinfer"
    return "triton"


#: backend -> (page sizes it can use, the size it falls back to)
_PAGES = {
    "flashmla": ((64,), 64), "cutlass_mla": ((128,), 128), "trtllm_mla": ((32, 64), 64),
    "trtllm_mha": ((16, 32, 64), 64),
}  # fmt: skip


def page_size(s: Settings, model: Model | None, backend: str | None, capability: Capability) -> int | None:
    """Tokens of a page: 1 unless given or imposed by the backend; sparse MLA 64.

    Up to 0.5.4 a backend that the model runner chose by itself came too late to change the page.
    """
    architecture = (model.architecture if model else None) or ""
    if architecture in COMPRESSED:
        return 128 if backend == "ascend" else 256
    deepseek = architecture == "DeepseekV3ForCausalLM" and at_least(s.release, "0.5.3.post1")
    by_arguments = deepseek or architecture == "GptOssForCausalLM"
    if not at_least(s.release, "0.5.5") and not by_arguments:
        backend = s.attention_backend
    wanted = s.page_size if s.page_size is not None else 1
    if is_sparse_mla(model) and at_least(s.release, "0.5.3"):
        wanted = 64
    if _one_token_pages(s, model):
        wanted = 1
    major = capability[0] if capability else 0
    if s.attention_backend is None and s.decode_attention_backend is None:
        wanted = imposed_page(s, backend, architecture, major) or wanted
    for name in (backend, s.prefill_attention_backend):
        wanted = _usable(s, model, name, wanted, major)
    return wanted


def _one_token_pages(s: Settings, model: Model | None) -> bool:
    """A recurrent state in the radix cache without buffers of its own: a given page is dropped
    (0.5.11..0.5.13)."""
    if not at_least(s.release, "0.5.11") or at_least(s.release, "0.5.14") or s.radix_off or extra_buffer(s):
        return False
    return bool(model and any(layer.state is not None for layer in model.layers))


def _usable(s: Settings, model: Model | None, backend: str | None, page: int, major: int) -> int:
    """``page``, or the size that ``backend`` falls back to."""
    if backend == "fa4" and major == 10 and not (model and model.is_mla) and (s.topk or 0) <= 1:
        return 128 if at_least(s.release, "0.5.17") or backend == s.prefill_attention_backend else page
    able, fallback = _PAGES.get(backend or "", ((), 0))
    if backend == "trtllm_mha" and at_least(s.release, "0.5.17"):
        able = (*able, 128)
    return fallback if able and page not in able else page


def radix_off(s: Settings, model: Model | None, backend: str | None) -> bool:
    """Whether the radix cache is off: as given, on servers that only decode, and where a recurrent state beside
    paged attention (trtllm_mha, 0.5.6.post1..) or drafts (0.5.9, Nemotron-H 0.5.8) cannot share it."""
    if s.radix_off or (s.disaggregation_mode == "decode" and not s.decode_radix):
        return True
    hybrid = bool(model and any(layer.state is not None for layer in model.layers))
    if not hybrid or extra_buffer(s):
        return False
    if s.speculative:
        nemotron = (model.architecture or "").startswith("NemotronH") if model else False
        since = "0.5.8" if nemotron else "0.5.9"
        return at_least(s.release, since) and not at_least(s.release, "0.5.10")
    return backend == "trtllm_mha" and at_least(s.release, "0.5.6.post1")
