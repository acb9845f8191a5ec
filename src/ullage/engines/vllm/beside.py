"""What is allocated after the budget was fixed and so must fit beside the requested share: graphs where they
are not subtracted, attention workspaces, the sampler's warm-up. All sizes in bytes of one rank."""

from __future__ import annotations

from ullage.core.deployment import Deployment
from ullage.core.ledger import Entry
from ullage.core.units import GIB, MIB, Band
from ullage.engines.vllm.graphs import graph_bytes
from ullage.engines.vllm.kv_specs import element_bytes
from ullage.engines.vllm.options import second_runner, since
from ullage.engines.vllm.peak import mla_context_tokens
from ullage.engines.vllm.settings import Settings


def workspaces(deployment: Deployment, s: Settings) -> list[Entry]:
    """What is allocated after the budget was fixed and so must fit beside the requested share."""
    model, out = deployment.model, []
    if model is not None and model.is_mla and s.core == "V1":
        latent = next(layer for layer in model.layers if layer.kind == "mla")
        size = (
            mla_context_tokens(s)
            * (latent.kv_lora_rank + latent.rope_dim)
            * element_bytes("auto", s.cache.model_dtype)
        )
        out.append(Entry("graph_capture", "MLA context workspace", int(size), 0, int(size), "estimated",
                         "vllm, mla/common.py: tokens x 576 x elem"))  # fmt: skip
    flashinfer = flashinfer_bytes(deployment, s)
    if flashinfer is not None:
        out.append(Entry("graph_capture", "FlashInfer workspace", int(flashinfer.value), int(flashinfer.low),
                         int(flashinfer.high), "estimated", "vllm, backends/flashinfer.py"))  # fmt: skip
    return out


def flashinfer_bytes(deployment: Deployment, s: Settings) -> Band | None:
    """The FlashInfer workspace: 256 MiB to 0.11.0, then 394 MiB (VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE); used
    by default on capability 10.x, or where the back end is asked for. None where it is not used."""
    launch = deployment.launch
    asked = f"{launch.text('attention_backend') or ''} {launch.env.get('VLLM_ATTENTION_BACKEND', '')}".upper()
    gpu = deployment.machine.gpu if deployment.machine else None
    blackwell = gpu is not None and gpu.capability is not None and gpu.capability[0] == 10
    if "FLASHINFER" not in asked and (asked.strip() or not blackwell):
        return None
    given = launch.env.get("VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE", "")
    default = (394 if since(s.release, "0.11.1") else 256) * MIB
    size = int(given) if given.isascii() and given.isdigit() and len(given) < 13 else default
    return Band(size, 0 if not asked.strip() else size, size)


def beside(deployment: Deployment, s: Settings) -> list[Entry]:
    """Everything that must fit into what the requested share leaves free: graphs where they are not subtracted,
    workspaces, and the sampler warm-up as far as it exceeds the room that the profile's peak leaves in the
    share."""
    out = [] if s.subtracts_graphs else [graphs_entry(deployment, s)]
    return (
        [entry for entry in out if entry.high > 0] + workspaces(deployment, s) + sampler_beyond(deployment, s)
    )


def graphs_entry(deployment: Deployment, s: Settings) -> Entry:
    read = deployment.readings.get("graphs_gib")
    if read is not None:
        band = read.value.band.scaled(GIB)
        return Entry("graph_capture", "CUDA graphs", int(band.value), int(band.low), int(band.high), "observed",
                     read.source)  # fmt: skip
    band = graph_bytes(s, deployment.model)
    return Entry("graph_capture", "CUDA graphs", int(band.value), int(band.low), int(band.high), "estimated",
                 "sizes captured x bytes a graph in public logs")  # fmt: skip


def sampler_beyond(deployment: Deployment, s: Settings) -> list[Entry]:
    """The sampler warm-up of the first model runner runs after the capture (0.8.0 on). The profile took the
    same room, so normally nothing is left over; the high limit is one buffer of logits, lost to
    fragmentation."""
    model = deployment.model
    if model is None or not model.vocab_size or s.core == "V0" or second_runner(deployment.launch, model):
        return []
    rows = min(s.max_num_seqs, s.max_num_batched_tokens)
    one = rows * model.vocab_size * 4
    return [Entry("warmup", "sampler warm-up beyond the profile's peak", 0, 0, one, "estimated",
                  "max_num_seqs x vocabulary x 4 bytes")]  # fmt: skip
