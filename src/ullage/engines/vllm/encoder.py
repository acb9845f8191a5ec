"""What a vision encoder takes of the profile: the largest item's embeddings, kept beside the language model's
pass.

Read: vllm 0.11.0 to 0.20.0, model_executor/models/qwen3_vl.py and v1/worker/gpu_model_runner.py, profile_run.
All sizes in bytes of one rank.
"""

from __future__ import annotations

from collections.abc import Callable

from ullage.core.launch import Launch
from ullage.core.model import Model
from ullage.core.units import GIB
from ullage.core.versions import Rules
from ullage.engines.vllm.options import config
from ullage.engines.vllm.settings import Settings

#: embeddings of the largest image of the Qwen family, each of 4 patches
IMAGE = 16384
#: rows of embeddings of Qwen3-VL beside the last layer's: three of its own layers'
DEEPSTACK = 3

VIDEO_GROUPS: Rules[[int], int] = Rules("video_groups")


@VIDEO_GROUPS.since("≤0.11.0", source="vllm 0.11.0 to 0.14.1, qwen2_vl.py, _MAX_FRAMES_PER_VIDEO = 14")
def as_many_as_fit(length: int) -> int:
    """Pairs of frames in the dummy video: up to 7, as long as they fit into max_model_len."""
    return max(1, min(7, length // IMAGE))


@VIDEO_GROUPS.since("0.16.0", source="vllm 0.16.0 and 0.20.0, qwen3_vl.py, get_max_video_tokens: two frames")
def one_pair(length: int) -> int:
    return 1


def limit(launch: Launch, modality: str) -> int:
    """Items of a modality that a prompt may hold; one where nothing is said."""
    told = config(launch, "limit_mm_per_prompt").get(modality, 1)
    told = told.get("count", 1) if isinstance(told, dict) else told
    return told if isinstance(told, int) and not isinstance(told, bool) and told >= 0 else 1


def profiled(launch: Launch) -> bool:
    """True if the profile runs the encoder (0.10.1 on --skip-mm-profiling, 0.17.0 on --language-model-only)."""
    if launch.flag("skip_mm_profiling") or launch.flag("language_model_only"):
        return False
    return limit(launch, "image") > 0 or limit(launch, "video") > 0


def encoder_bytes(launch: Launch, model: Model, s: Settings) -> tuple[float, float]:
    """(what stays beside the language model's pass, what the encoder's own pass takes at its peak).

    Qwen3-VL: tokens x hidden x 4 x 2, once more for the budget that it is laid out in, and the pixels.
    """
    if model.vision is None or not profiled(launch):
        return 0.0, 0.0
    if not (model.model_type or "").startswith("qwen3_vl"):
        return 0.2 * GIB, 0.0
    pairs: Callable[[int], int] = VIDEO_GROUPS.at(s.release)
    groups = pairs(s.max_model_len or model.max_context or IMAGE) if limit(launch, "video") else 1
    kept = groups * IMAGE * model.hidden_size * (1 + DEEPSTACK) * 2.0
    pixels = groups * IMAGE * 4 * 1536 * 2.0
    return kept, 2 * kept + pixels
