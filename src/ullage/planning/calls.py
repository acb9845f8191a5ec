"""The collectives of a pass in time: comm's counts and fits as a Subject wants them."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from ullage.comm.allreduce import Settings, timed
from ullage.comm.collectives import Collective, Draft, Layout, collectives
from ullage.comm.fits import Backend
from ullage.comm.links import Links, links_of
from ullage.core.deployment import Deployment
from ullage.core.units import MIB
from ullage.planning.drafting import Drafting
from ullage.planning.speed import Measured
from ullage.spec.acceptance import Width
from ullage.spec.step import Call, Calls

#: the largest message of the engines' own all-reduce kernels, and the groups they serve (both engines up to
#: sglang 0.5.23 and vllm 0.33.0, custom_all_reduce.py)
_CUSTOM_BYTES, _CUSTOM_RANKS = 8 * MIB, (2, 4, 6, 8)


class Group(Struct, frozen=True):
    """What decides a collective's time here. ``custom``: the engine's own kernel is not switched off."""

    links: Links
    settings: Settings
    custom: bool = True
    measured: Measured | None = None


def calls_of(
    deployment: Deployment, layout: Layout, drafting: Drafting | None, measured: Measured | None = None
) -> Calls:
    """The collectives of a pass with what each takes: measured where it was, else by comm's fits."""
    model, launch = deployment.model, deployment.launch
    ranks = -(-max(layout.tp, layout.expert_ranks) // layout.nodes)
    links = links_of(deployment.machine, ranks, nodes=layout.nodes, environment=dict(launch.env))
    custom = not launch.flag("disable_custom_all_reduce")
    group = Group(links, Settings(environment=dict(launch.env)), custom, measured)

    def calls(rows: int, requests: int, width: Width | None) -> Sequence[Call]:
        if model is None:
            return ()
        draft = _draft(drafting, width) if width else None
        found = collectives(model, layout, "decode", rows, draft=draft, num_requests=requests)
        return [call(item, group, verify=width is not None) for item in found]

    return calls


def _draft(drafting: Drafting | None, width: Width) -> Draft:
    work, rows = drafting.work if drafting else None, width.verify_rows
    if drafting is None or work is None or not width.forwards:
        return Draft(rows)
    sizes = (drafting.hidden, drafting.vocabulary, drafting.tp)
    return Draft(rows, width.forwards, max(1, width.topk), work.layers, *sizes)


def call(item: Collective, group: Group, *, verify: bool) -> Call:
    """One row of collectives with its time. Those inside the layers are named "all-reduces"."""
    inside = item.kind == "all_reduce" and item.stage == "target" and "embedding" not in item.what
    name = "all-reduces" if inside else f"{item.kind.replace('_', '-')}: {item.what}"
    backend: Backend = "custom" if group.custom and _own_kernel(item, group.links) else "nccl"
    found = timed(item, group.links, backend, group.settings)
    if group.measured is not None and item.kind == "all_reduce" and item.stage == "target":
        given = group.measured(item.bytes, verify, found.band.value)
        if given is not None:
            return Call(item.stage, name, item.count, item.bytes, given, "given", "observed")
    return Call(item.stage, name, item.count, item.bytes, found.band, f"{backend}, {found.how}")


def _own_kernel(item: Collective, links: Links) -> bool:
    """Whether the engines' own kernel takes an all-reduce: a full NVLink mesh, or two GPUs with P2P."""
    fits = item.kind == "all_reduce" and item.bytes <= _CUSTOM_BYTES and item.ranks in _CUSTOM_RANKS
    return fits and links.nodes == 1 and (links.nvlink or (item.ranks == 2 and links.p2p is True))
