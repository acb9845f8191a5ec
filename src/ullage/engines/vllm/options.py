"""Single options of a launch, read as the engine reads them: counts, lengths, JSON objects, speculation."""

from __future__ import annotations

from typing import Any

from packaging.version import Version

from ullage.core.launch import Launch
from ullage.core.model import Model
from ullage.core.patterns import lazy

#: beyond this a count is nonsense, and a share is one from 10 on
LARGEST = 1 << 40


_LENGTH = lazy(r"(\d+(?:\.\d+)?)\s*([kKmMgG]?)")


_UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def count(launch: Launch, name: str, most: int = LARGEST) -> int | None:
    """A whole number of the launch; None where it is none, negative or absurd."""
    value = launch.number(name)
    return int(value) if value is not None and 0 <= value <= most else None


def size(launch: Launch, name: str) -> int:
    """A parallel size: 1 where it is not given."""
    return max(1, count(launch, f"{name}_parallel_size", 65536) or 1)


def since(release: Version | None, first: str) -> bool:
    """True if ``release`` is ``first`` or later; an unknown release is the newest."""
    return release is None or release >= Version(first)


def as_length(value: object) -> int | None:
    """A length as the flag takes it: 32k is 32000, 32K is 32768 (vllm 0.10 on, engine/arg_utils.py)."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int | float):
        return int(value) if -1 <= value <= LARGEST else None
    match = _LENGTH.fullmatch(value.strip()) if isinstance(value, str) and len(value) < 32 else None
    length = int(float(match[1]) * _UNITS[match[2]]) if match else (-1 if value == "-1" else LARGEST + 1)
    return length if length <= LARGEST else None


def config(launch: Launch, name: str) -> dict[str, Any]:
    """A setting that is a JSON object; {} where it is none or not readable."""
    import json

    value: object = launch.get(name)
    if isinstance(value, str) and value.lstrip().startswith("{") and len(value) < 100_000:
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return {}
    return {str(key): item for key, item in value.items()} if isinstance(value, dict) else {}


def num_speculative_tokens(launch: Launch) -> int:
    """Draft tokens a step; 0 without speculation."""
    value = config(launch, "speculative_config").get(
        "num_speculative_tokens", launch.get("num_speculative_tokens")
    )
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 10_000 else 0


def speculative_method(launch: Launch) -> str | None:
    """The method of speculation as given; a draft model without one is "draft_model" (or an EAGLE head)."""
    given = config(launch, "speculative_config")
    method = given.get("method")
    if isinstance(method, str):
        return method
    model = given.get("model") or launch.get("speculative_model")
    if not isinstance(model, str):
        return None
    name = model.lower()
    return (
        "eagle3"
        if "eagle3" in name
        else "eagle"
        if "eagle" in name
        else name
        if "ngram" in name
        else "draft_model"
    )


def second_runner(launch: Launch, model: Model | None) -> bool:
    """True if the second model runner is likely in charge (vllm, config/vllm.py, use_v2_model_runner).

    0.22: dense Qwen3; 0.23: Llama and Mistral too, unquantised; 0.24: quantised too; 0.25 to 0.28: all dense
    generative models; 0.29.0 on: all.
    """
    release, asked = launch.release, launch.env.get("VLLM_USE_V2_MODEL_RUNNER")
    if asked in ("0", "1"):
        return asked == "1"
    if since(release, "0.29.0"):
        return True
    if not since(release, "0.22.0") or model is None or model.is_hybrid:
        return False
    if since(release, "0.25.0"):
        return model.num_experts == 0
    names = ("Qwen3For", "LlamaFor", "MistralFor") if since(release, "0.23.0") else ("Qwen3For",)
    plain = model.quantization is None or since(release, "0.24.0")
    return plain and (model.architecture or "").startswith(names)
