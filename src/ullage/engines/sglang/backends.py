"""SGLang's choice of attention backend and page size when none is given, on NVIDIA GPUs, by release."""

from __future__ import annotations

from ullage.core.model import Model
from ullage.engines.sglang.settings import Settings, at_least

Capability = tuple[int, int] | None


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


def attention_backend(s: Settings, model: Model | None, capability: Capability) -> str | None:
    """The backend of decode passes; None where the GPU or the model is not known.

    Hopper: fa3 (flashinfer with a draft tree). SM100: trtllm_mha, or trtllm_mla for DeepSeek, flashinfer for
    other MLA. SM120 and the rest: flashinfer, MLA triton. Read: model_runner (..0.5.2), server_args 0.5.9.
    """
    if s.decode_attention_backend or s.attention_backend:
        return s.decode_attention_backend or s.attention_backend
    if is_sparse_mla(model):
        return "dsa" if at_least(s.release, "0.5.13") else "nsa"
    if capability is None or model is None:
        return None
    if not at_least(s.release, "0.4.6"):
        return "triton" if model.is_mla else "flashinfer"
    architecture = model.architecture or ""
    if model.is_mla:
        return _mla(s, architecture, capability)
    if architecture.startswith("Gemma4"):
        return "triton"
    if architecture == "GptOssForCausalLM":
        return {9: "fa3", 10: "trtllm_mha"}.get(capability[0], "triton")
    named = architecture in _FA3_BY_DEFAULT or (architecture in _FA3_OF_057 and at_least(s.release, "0.5.7"))
    if not named and not at_least(s.release, "0.5.8"):
        return "trtllm_mha" if capability[0] == 10 and at_least(s.release, "0.5.7") else "flashinfer"
    tree = s.speculative_algorithm != "NGRAM" and (s.topk or 1) > 1
    if capability[0] == 9:
        return "flashinfer" if tree else "fa3"
    if capability[0] == 10 and at_least(s.release, "0.5.7"):
        return "flashinfer" if tree else "trtllm_mha"
    return "flashinfer"


def _mla(s: Settings, architecture: str, capability: tuple[int, int]) -> str:
    if capability[0] == 9:
        return "fa3"
    if capability[0] == 10:
        deepseek = architecture.startswith("DeepseekV3") and at_least(s.release, "0.5.3")
        return "trtllm_mla" if deepseek else "flashinfer"
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
    deepseek = architecture == "DeepseekV3ForCausalLM" and at_least(s.release, "0.5.3.post1")
    by_arguments = deepseek or architecture == "GptOssForCausalLM"
    if not at_least(s.release, "0.5.5") and not by_arguments:
        backend = s.attention_backend
    if is_sparse_mla(model) and at_least(s.release, "0.5.3"):
        return 64
    wanted = s.page_size if s.page_size is not None else 1
    for name in (backend, s.prefill_attention_backend):
        able, fallback = _PAGES.get(name or "", ((), 0))
        if able and wanted not in able:
            wanted = fallback
    return wanted
