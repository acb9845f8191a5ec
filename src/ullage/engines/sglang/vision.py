"""What a vision tower takes from mem_fraction_static, by release, and other factors that it meets later."""

from __future__ import annotations

from ullage.core.model import Model, Vision
from ullage.engines.sglang.settings import Settings, at_least

#: architectures whose vision tower is off unless --enable-multimodal is given (mm_disabled_models of
#: 0.4.5.post1 and later)
_VISION_OFF = (
    "Gemma3ForConditionalGeneration", "Llama4ForConditionalGeneration", "Step3VLForConditionalGeneration",
)  # fmt: skip
#: towers as SGLang's own config class names them where config.json has other keys (configs/kimi_k25.py)
_OWN_TOWERS = {"KimiK25ForConditionalGeneration": Vision(27, 1152)}


def is_multimodal(model: Model | None, s: Settings) -> bool:
    """True where the engine treats the model as multimodal."""
    if model is None or model.vision is None:
        return False
    off = model.architecture in _VISION_OFF and at_least(s.release, "0.4.5.post1")
    wanted = s.enable_multimodal if s.enable_multimodal is not None else not off
    return wanted and not (s.language_only and at_least(s.release, "0.5.9"))


def vision_factor(vision: Vision) -> float:
    """What the default fraction is multiplied with: 0.95 x clamp(1 - 0.1 (ratio - 1), 0.8, 1.05).

    ratio = layers x hidden^2 / (24 x 1024^2); attributes that the config does not have under these very names
    count as 24 and 1024 (sglang 0.4.9.post3.., adjust_mem_fraction_for_vlm).
    """
    layers = 24 if vision.num_hidden_layers is None else vision.num_hidden_layers
    hidden = 1024 if vision.hidden_size is None else vision.hidden_size
    ratio = layers * hidden**2 / (24 * 1024**2)
    return 0.95 * max(0.8, min(1.05, 1.0 - 0.1 * (ratio - 1.0)))


def for_vision(fraction: float, model: Model | None, s: Settings) -> float:
    """The default fraction of a multimodal model; x 0.9 in 0.4.9..0.4.9.post2, nothing before."""
    if not is_multimodal(model, s) or not at_least(s.release, "0.4.9") or model is None or model.vision is None:
        return fraction
    if s.disaggregation_mode == "decode" and at_least(s.release, "0.5.17"):
        return fraction
    tower = _OWN_TOWERS.get(model.architecture or "", model.vision)
    return fraction * (vision_factor(tower) if at_least(s.release, "0.4.9.post3") else 0.9)


def runtime_factor(model: Model | None, s: Settings) -> float:
    """What the model runner multiplies the fraction with after the arguments are printed, a given one too.

    Multimodal models: 0.95 (..0.4.4.post3), 0.9 (0.4.4.post4..0.4.8.post1). AITER (ROCm) with more than 8192
    tokens of context: 0.85 (0.4.7..0.5.4; later the arguments themselves say it). Read: model_runner,
    model_specific_adjustment.
    """
    factor = 1.0
    if is_multimodal(model, s) and not at_least(s.release, "0.4.9"):
        factor *= 0.9 if at_least(s.release, "0.4.4.post4") else 0.95
    runner = at_least(s.release, "0.4.7") and not at_least(s.release, "0.5.5")
    return factor * (0.85 if runner and _long_aiter(model, s) else 1.0)


def argument_factor(model: Model | None, s: Settings, *, given: bool) -> float:
    """What the arguments' own pass multiplies the fraction with before they are printed, a given one too: AITER
    with more than 8192 tokens of context 0.85 (0.5.5.., server_args, 0.5.20.. arg_groups/attention_hook, where
    SGLANG_AITER_HONOR_EXPLICIT_MEM_FRACTION leaves a given one alone)."""
    if not at_least(s.release, "0.5.5") or not _long_aiter(model, s):
        return 1.0
    honoured = s.env.get("SGLANG_AITER_HONOR_EXPLICIT_MEM_FRACTION", "").lower() in ("1", "true", "yes", "on")
    return 1.0 if given and honoured and at_least(s.release, "0.5.20") else 0.85


def _long_aiter(model: Model | None, s: Settings) -> bool:
    context = s.context_length or (model.max_context if model else None) or 0
    return s.attention_backend == "aiter" and context > 8192
