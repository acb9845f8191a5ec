"""What vLLM refuses before it counts memory: uneven sizes, a length beyond the model's.

Read: vllm 0.19.0, config/model.py (verify_with_parallel_config, _get_and_verify_max_len),
layers/quantization/fp8.py and utils/fp8_utils.py (validate_fp8_block_shape).
"""

from __future__ import annotations

from collections.abc import Iterator

from ullage.core.deployment import Deployment
from ullage.core.launch import Launch
from ullage.core.model import Model
from ullage.engines.base import Refusal
from ullage.engines.runtime.divisible import uneven
from ullage.engines.vllm.built import patched
from ullage.engines.vllm.options import as_length, config, count, size


def refusals(deployment: Deployment) -> tuple[Refusal, ...]:
    launch, model = deployment.launch, deployment.model
    if model is None:
        return ()
    return (*_uneven(launch, model), *_too_long(launch, model))


def _uneven(launch: Launch, model: Model) -> Iterator[Refusal]:
    """Sizes that the ranks cannot share; a patched build may fill heads up (public: 64 heads on 3 ranks)."""
    if patched(launch.version):
        return
    tp = size(launch, "tensor")
    dp = max(1, count(launch, "data_parallel_size", 65536) or 1)
    experts = 1 if launch.flag("enable_expert_parallel") else tp * dp
    for text in uneven(model, attn_tp=tp, mlp_tp=tp, expert_tp=experts):
        phase = "args" if "attention heads" in text else "weights"
        yield Refusal(phase, "tp-not-divisible", f"{text} (tensor_parallel_size {tp})")  # type: ignore[arg-type]


def _too_long(launch: Launch, model: Model) -> Iterator[Refusal]:
    asked, longest = as_length(launch.get("max_model_len")), model.max_context
    changed = config(launch, "hf_overrides") or config(launch, "rope_scaling") or launch.get("rope_theta")
    allowed = launch.env.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN") == "1"
    if asked and longest and asked > longest and not changed and not allowed:
        yield Refusal(
            "args", "max-len-exceeds-model",
            f"--max-model-len {asked:,} is longer than the {longest:,} tokens of {model.id};"
            " VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 allows it",
        )  # fmt: skip
