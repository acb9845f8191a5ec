"""Settings that SGLang refuses together whatever the memory is, as far as numbers decide: what divides what.

Pairs of a flag and a backend are rows of compat.toml. Read: sglang 0.4.0..0.5.23, server_args (__post_init__,
check_server_args, check_lora_server_args) and arg_groups.
"""

from __future__ import annotations

from collections.abc import Iterator

from ullage.core.deployment import Deployment
from ullage.core.launch import Launch
from ullage.core.model import Model
from ullage.engines.base import Refusal
from ullage.engines.sglang.lora import used
from ullage.engines.sglang.settings import BLOCK_FAMILY, Settings, at_least

CAUSE = "flag-combination-unsupported"
#: architectures whose own layers are the draft, so that no path is needed (server_args, speculative handling)
_OWN_DRAFT = (
    "Deepseek", "Glm4Moe", "GlmMoeDsa", "Bailing", "MistralLarge3", "Pixtral", "HYV3", "MiMoV2", "Qwen3Next",
    "Qwen3_5", "NemotronH", "Step3", "LongcatFlash", "Ernie4_5", "MiniMax", "KimiK3", "Inkling", "Exaone",
    "Gemma4",
)  # fmt: skip


def combinations(deployment: Deployment, model: Model | None, s: Settings) -> Iterator[Refusal]:
    """Each refusal at "args", in the engine's order."""
    launch = deployment.launch
    checks = (
        _drafts(launch, model, s), _shares(launch, s), _ranks(launch, s), _names(launch, s),
        _adapters(launch, s),
    )  # fmt: skip
    for text in (text for check in checks for text in check):
        yield Refusal("args", CAUSE, text)


def _ranks(launch: Launch, s: Settings) -> Iterator[str]:
    nodes = launch.integer("nnodes") or 1
    if nodes > 1 and s.tp * s.pp % nodes:
        yield f"tp_size x pp_size = {s.tp * s.pp} does not divide by the {nodes} nodes of --nnodes"
    if s.dp_attention and s.dp > 1 and s.tp % s.dp and at_least(s.release, "0.4.1.post7"):
        yield f"--enable-dp-attention: tp_size {s.tp} does not divide by dp_size {s.dp}"
    experts = launch.integer("ep_size") or 1
    if experts > s.tp or (experts > 1 and s.tp % experts):
        yield f"ep_size {experts} does not divide tp_size {s.tp}"
    runner = launch.text("moe_runner_backend")
    if runner == "flashinfer_cutlass" and experts not in (1, s.tp) and at_least(s.release, "0.4.10.post2"):
        yield f"flashinfer_cutlass takes an ep_size of 1 or of tp_size {s.tp}, not {experts}"


def _shares(launch: Launch, s: Settings) -> Iterator[str]:
    share = launch.number("swa_full_tokens_ratio")
    if share is not None and not 0 < share <= 1 and at_least(s.release, "0.5.7"):
        yield f"--swa-full-tokens-ratio {share:g} is not in (0, 1]"
    if s.hicache and s.radix_off and at_least(s.release, "0.5.1"):
        yield "--enable-hierarchical-cache and --disable-radix-cache exclude each other"


def _names(launch: Launch, s: Settings) -> Iterator[str]:
    served = launch.text("served_model_name")
    if served is not None and ":" in served and at_least(s.release, "0.5.5.post1"):
        yield f"--served-model-name {served[:60]} has a colon, which stands between a model and its adapter"
    dense = launch.integer("moe_dense_tp_size")
    limited = at_least(s.release, "0.4.5.post2") and not at_least(s.release, "0.5.13")
    if dense is not None and dense != 1 and limited:
        yield f"--moe-dense-tp-size takes 1 alone, not {dense}"


def _adapters(launch: Launch, s: Settings) -> Iterator[str]:
    if not used(launch) or not at_least(s.release, "0.4.9.post3"):
        return
    paths = launch.get("lora_paths")
    if not paths and not (launch.get("max_lora_rank") and launch.get("lora_target_modules")):
        yield "--enable-lora without --lora-paths needs both --max-lora-rank and --lora-target-modules"
    loaded, slots = launch.integer("max_loaded_loras"), launch.integer("max_loras_per_batch") or 8
    if loaded is not None and loaded < slots and at_least(s.release, "0.4.10.post2"):
        yield f"--max-loaded-loras {loaded} is less than --max-loras-per-batch {slots}"


def _drafts(launch: Launch, model: Model | None, s: Settings) -> Iterator[str]:
    algorithm, path = s.speculative_algorithm, launch.text("speculative_draft_model_path")
    if algorithm is None:
        return
    if algorithm in ("STANDALONE", *BLOCK_FAMILY) and path is None:
        yield f"--speculative-algorithm {algorithm} needs --speculative-draft-model-path"
    if algorithm == "EAGLE3" and path is None and model is not None and not _drafts_itself(model):
        yield f"EAGLE3 needs --speculative-draft-model-path: {model.id} has no draft layers of its own"
    shaped = s.topk is not None or s.draft_tokens is not None
    if s.eagle and s.num_steps is None and shaped and at_least(s.release, "0.4.4.post4"):
        yield "--speculative-eagle-topk and --speculative-num-draft-tokens need --speculative-num-steps"


def _drafts_itself(model: Model) -> bool:
    return model.num_nextn_layers > 0 or (model.architecture or "").startswith(_OWN_DRAFT)
