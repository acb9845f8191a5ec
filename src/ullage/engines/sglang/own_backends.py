"""Attention backends that SGLang sets for one architecture before its general rule, on NVIDIA GPUs, by release.

Read: server_args, model specific adjustments (..0.5.14), arg_groups/overrides (0.5.15..0.5.18) and
arg_groups/model_overrides (0.5.19..).
"""

from __future__ import annotations

from ullage.engines.sglang.settings import Settings, at_least

QWEN_HYBRIDS = ("Qwen3NextForCausalLM", "Qwen3_5MoeForConditionalGeneration", "Qwen3_5ForConditionalGeneration")
_DEEPSEEK = ("DeepseekV3ForCausalLM",)
_DEEPSEEK_059 = (
    "KimiK25ForConditionalGeneration",
    "MistralLarge3ForCausalLM",
    "PixtralForConditionalGeneration",
)
_TRITON_HYBRIDS = ("FalconH1ForCausalLM", "JetNemotronForCausalLM", "JetVLMForConditionalGeneration")


def own_backend(s: Settings, architecture: str, major: int, general: str) -> str | None:
    """The backend that the architecture asks for; None where the general rule, whose choice is ``general``,
    decides."""
    if architecture.startswith("Gemma4"):
        return "trtllm_mha" if major == 10 and at_least(s.release, "0.5.13") else "triton"
    if architecture == "GptOssForCausalLM":
        return {9: "fa3", 10: "trtllm_mha"}.get(major, "triton")
    if architecture.startswith("Llama4") and at_least(s.release, "0.5.6"):
        return {9: "fa3", 10: "trtllm_mha"}.get(major, "triton")
    if architecture.startswith("NemotronH"):
        return _nemotron(s, major)
    return _on_sm100(s, architecture, general) if major == 10 else None


def trtllm_mla(s: Settings, architecture: str) -> bool:
    """True where SM100 takes trtllm_mla for dense MLA."""
    if architecture in _DEEPSEEK:
        return at_least(s.release, "0.5.3")
    return architecture in _DEEPSEEK_059 and at_least(s.release, "0.5.9")


def _on_sm100(s: Settings, architecture: str, general: str) -> str | None:
    if architecture in QWEN_HYBRIDS:
        return _qwen_hybrid(s, architecture, general)
    if architecture == "GraniteMoeHybridForCausalLM" and at_least(s.release, "0.5.9"):
        return "flashinfer" if at_least(s.release, "0.5.13") else "triton"
    if architecture in _TRITON_HYBRIDS and at_least(s.release, "0.5.6.post1"):
        return "triton" if at_least(s.release, "0.5.9") or not s.radix_off else None
    if architecture == "Lfm2ForCausalLM" and at_least(s.release, "0.5.9"):
        return "flashinfer"
    if architecture.startswith("MiMoV2") and at_least(s.release, "0.5.22"):
        return "fa4"
    return None


def _qwen_hybrid(s: Settings, architecture: str, general: str) -> str | None:
    """triton (0.5.6.., Qwen3.5 0.5.9..); trtllm_mha where its pages do no harm to the radix cache
    (0.5.10..)."""
    since = "0.5.6" if architecture == "Qwen3NextForCausalLM" else "0.5.9"
    if not at_least(s.release, since):
        return None
    # "auto" is not resolved yet when this is asked
    paged = s.radix_off or s.speculative or s.mamba_strategy.startswith("extra_buffer")
    return "trtllm_mha" if at_least(s.release, "0.5.10") and general == "trtllm_mha" and paged else "triton"


def _nemotron(s: Settings, major: int) -> str | None:
    """SM100: flashinfer (0.5.7..0.5.18), trtllm_mha later; SM100 with a draft tree and SM120 with drafts:
    triton (0.5.19..)."""
    if major not in (10, 12) or not at_least(s.release, "0.5.7"):
        return None
    if at_least(s.release, "0.5.19"):
        if s.speculative:
            return "trtllm_mha" if major == 10 and s.topk in (None, 1) else "triton"
        return "trtllm_mha" if major == 10 else None
    if major == 12:
        return None
    if not at_least(s.release, "0.5.9") and (s.radix_off or (s.speculative and at_least(s.release, "0.5.8"))):
        return None
    return "flashinfer"


def imposed_page(s: Settings, backend: str | None, architecture: str, major: int) -> int | None:
    """The page size that goes with an architecture's own choice of backend, whatever is given: 64 with
    trtllm_mha, else 1 (Qwen hybrids on SM100, 0.5.14..)."""
    if architecture in QWEN_HYBRIDS and major == 10 and at_least(s.release, "0.5.14"):
        return 64 if backend == "trtllm_mha" else 1
    return None
