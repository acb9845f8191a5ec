"""What is known to go wrong with a launch of SGLang: the rows, and what follows from its arithmetic."""

from __future__ import annotations

from collections.abc import Iterator

from ullage.core.deployment import Deployment
from ullage.core.finding import Hazard
from ullage.core.launch import Value
from ullage.core.model import Model
from ullage.core.tables import load
from ullage.engines.runtime import compat as shared
from ullage.engines.sglang.budget import budget
from ullage.engines.sglang.known import known
from ullage.engines.sglang.settings import EAGLE_FAMILY, Settings, at_least
from ullage.hardware import compat
from ullage.hardware.compat import software
from ullage.models.catalogue import find

PACKAGE = "ullage.engines.sglang"
PREFIXES = ("SGLANG_", "SGL_")
#: below this share nobody starts a server but to make room for something else
LOW_FRACTION = 0.7


def warnings(deployment: Deployment) -> list[Hazard]:
    """Every hazard of the launch, those that stop it first; each id once."""
    base = known(deployment)
    asked = compat.subject(
        deployment.launch, base.model, deployment.machine, deployment.launch.release,
        worked_out(deployment, base.settings, base.model),
    )  # fmt: skip
    driver = deployment.reading("driver")
    found = [
        *compat.hazards(compat.table(PACKAGE, "compat.toml"), asked),
        *compat.warnings(deployment.launch, base.model, deployment.machine, asked.release, asked.worked_out),
        *software.hazards(
            asked, software.stack(shared.ships(PACKAGE), asked.release), driver.value if driver else None
        ),
        *shared.replicated_kv_heads(base.model, base.settings.attn_tp),
        *_speculation(deployment, base.given, base.settings),
        *_draft(deployment, base.settings, base.model),
        *_chunk(base.given, base.settings),
        *_context(base.given, base.model),
        *_lowered(deployment),
        *_variables(deployment),
    ]
    return shared.in_order(found)


def worked_out(deployment: Deployment, s: Settings, model: Model | None) -> dict[str, Value]:
    """What the rows call "@...": see hardware/compat/subject.py."""
    launch = deployment.launch
    return {
        **shared.of_model(launch, model), "@architecture": model.architecture if model is not None else None,
        "@dtype": shared.dtype(launch, model),
        "@group": s.tp if s.tp > 1 else None,
        "@pp": s.pp > 1, "@dp": s.dp > 1, "@nodes": (launch.integer("nnodes") or 1) > 1,
        "@ep": (launch.integer("ep_size") or 1) > 1, "@speculative": s.speculative,
        "@draft_tree": s.eagle and (s.topk or 1) > 1, "@pages": (s.page_size or 1) > 1,
    }  # fmt: skip


def _speculation(deployment: Deployment, given: Settings, s: Settings) -> Iterator[Hazard]:
    """Speculation changes more than the decoding: requests, overlap; a comparison must pin them."""
    if not s.speculative:
        return
    changed = []
    if given.max_running_requests is None and s.max_running_requests:
        changed.append(f"max_running_requests falls to {s.max_running_requests}")
    overlapped = at_least(s.release, "0.5.11") or s.env.get("SGLANG_ENABLE_SPEC_V2", "").lower() in (
        "1",
        "true",
    )
    if not overlapped:
        changed.append("the overlap scheduler is off")
    if changed:
        yield Hazard(
            "speculation-changes-defaults",
            f"With speculation {' and '.join(changed)}: set both alike in the baseline before you compare "
            "speeds.",
            "sglang 0.4.4.post4 to 0.5.23, speculative decoding: “Max running requests is reset to 48”",
        )  # fmt: skip


def _draft(deployment: Deployment, s: Settings, model: Model | None) -> Iterator[Hazard]:
    name = deployment.launch.text("speculative_draft_model_path")
    name = name or deployment.launch.text("speculative_draft_model")
    if not s.speculative or not name or name == deployment.launch.model:
        return
    eagle = s.speculative_algorithm in EAGLE_FAMILY
    yield from shared.draft(model, find(name), name, eagle=eagle and s.speculative_algorithm != "NEXTN")


def _chunk(given: Settings, s: Settings) -> Iterator[Hazard]:
    """chunked_prefill_size % page_size == 0 (0.4.9.post4.., check_server_args), after the division by dp."""
    chunk, page = s.chunked_prefill_size or 0, s.page
    if chunk <= 0 or page <= 1 or chunk % page == 0 or s.disaggregation_mode == "decode":
        return
    if not at_least(s.release, "0.4.9.post4"):
        return
    typed = s.release is not None and given.chunked_prefill_size is not None and given.page_size is not None
    yield Hazard(
        "chunk-not-whole-pages",
        f"A prefill chunk of {chunk} tokens is no whole number of pages of {page}: SGLang stops with "
        f"“chunked_prefill_size must be divisible by page_size”. {chunk - chunk % page or page} would do.",
        "sglang 0.4.9.post4 to 0.5.23, check_server_args", certain=typed, stops=typed,
        phase="args" if typed else None, cause="flag-combination-unsupported" if typed else None,
        message="chunked_prefill_size must be divisible by page_size",
    )  # fmt: skip


def _context(given: Settings, model: Model | None) -> Iterator[Hazard]:
    """A context beyond the model's that the launch gets away with."""
    longest, asked = (model.max_context if model else None), given.context_length
    if not longest or not asked or asked <= longest:
        return
    allowed = given.env.get("SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN", "").lower() in ("1", "true")
    if allowed or not at_least(given.release, "0.5.1"):
        yield Hazard(
            "context-beyond-model",
            f"--context-length {asked:,} is beyond the {longest:,} tokens that the model knows: positions "
            "past it "
            f"may give nonsense or a CUDA error. Give the RoPE scaling with it (--json-model-override-args).",
            "sglang 0.4.0 to 0.5.23, configs/model_config.py", certain=False,
        )  # fmt: skip


def _lowered(deployment: Deployment) -> Iterator[Hazard]:
    """A small fraction and a pool below nothing: people lower it against "Not enough memory"."""
    share = deployment.launch.number("mem_fraction_static")
    if share is None or not 0 < share < LOW_FRACTION:
        return
    found = budget(deployment)
    if found.pool_bytes is not None and found.pool_bytes.high < 0:
        yield Hazard(
            "fraction-lowered",
            f"--mem-fraction-static {share:g} is the share of the weights and the KV pool together: "
            "lowering it "
            f"never makes room for either. Raise it above what the weights take; NCCL's buffers have no "
            "part in it.",
            "sglang 0.4.0 to 0.5.23: pool = free after the weights - total x (1 - fraction)",
        )  # fmt: skip


def _variables(deployment: Deployment) -> Iterator[Hazard]:
    if shared.of_environment(deployment.launch.env, PREFIXES):
        table = load(PACKAGE, "variables.toml", shared.VariableTable)
        yield from shared.variables(table, deployment.launch, "SGLang", PREFIXES)
