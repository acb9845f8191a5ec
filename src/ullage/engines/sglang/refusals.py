"""What SGLang refuses before it counts memory: uneven sizes, a context beyond the model's.

Read: sglang 0.5.9, layers/linear, layers/quantization/fp8 (create_weights), configs/model_config
(_derive_context_length).
"""

from __future__ import annotations

from collections.abc import Iterator

from ullage.core.deployment import Deployment
from ullage.core.machine import Machine
from ullage.core.model import Model
from ullage.core.units import gib_text
from ullage.engines.base import Refusal
from ullage.engines.runtime.divisible import uneven
from ullage.engines.sglang.combinations import combinations
from ullage.engines.sglang.known import overridden
from ullage.engines.sglang.settings import Settings, at_least, of_launch

_YES = ("1", "true", "yes", "y", "on")
_OVERWRITE = ("SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN", "SGL_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN")


def refusals(deployment: Deployment) -> tuple[Refusal, ...]:
    model = overridden(deployment.model, deployment.launch.get("json_model_override_args"))
    s = of_launch(deployment.launch)
    together = (*combinations(deployment, model, s), *_unbalanced(deployment.machine, s))
    if model is None:
        return together
    return (*together, *_uneven(deployment, model, s), *_too_long(model, s))


def _unbalanced(machine: Machine | None, s: Settings) -> Iterator[Refusal]:
    """The least free memory of a group is below 0.9 of another rank's (init_torch_distributed, every release;
    off by a variable from 0.4.5.post2 on). Only probed devices tell theirs apart."""
    devices = machine.devices if machine is not None else ()
    free = [device.free_bytes for device in devices if device.free_bytes is not None]
    off = s.env.get("SGL_DISABLE_TP_MEMORY_INBALANCE_CHECK", "").lower() in _YES and at_least(
        s.release, "0.4.5.post2"
    )
    off = off or s.env.get("SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK", "").lower() in ("0", "false", "no")
    if s.tp < 2 or len(free) < 2 or off or min(free) >= 0.9 * max(free):
        return
    yield Refusal(
        "init", "unbalanced-free-memory",
        f"{gib_text(min(free))} are free on one GPU of the group and {gib_text(max(free))} on another:"
        " SGLang stops below 0.9 of the most",
    )  # fmt: skip


def _uneven(deployment: Deployment, model: Model, s: Settings) -> Iterator[Refusal]:
    ep = max(1, deployment.launch.integer("ep_size") or 1)
    experts = 1 if s.moe_a2a_backend != "none" or deployment.launch.flag("enable_ep_moe") else s.tp // ep
    mlp = 1 if deployment.launch.integer("moe_dense_tp_size") == 1 else s.tp
    for text in uneven(model, attn_tp=s.attn_tp, mlp_tp=mlp, expert_tp=max(1, experts)):
        yield Refusal("weights", "tp-not-divisible", f"{text} (tp_size {s.tp})")


def _too_long(model: Model, s: Settings) -> Iterator[Refusal]:
    """A warning only up to 0.4.10 (the variable's default was true), an error since unless it is set."""
    longest = model.max_context
    allowed = any(s.env.get(name, "").lower() in _YES for name in _OVERWRITE)
    if longest and (s.context_length or 0) > longest and not allowed and at_least(s.release, "0.5.1"):
        yield Refusal(
            "args", "max-len-exceeds-model",
            f"--context-length {s.context_length:,} is longer than the {longest:,} tokens of {model.id};"
            f" {_OVERWRITE[0]}=1 allows it",
        )  # fmt: skip
