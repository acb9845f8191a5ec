"""The causes as data: every table loads, every pattern compiles, every id has one owner and a full page."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from ullage.core.versions import parse_release
from ullage.engines.runtime.rows import ModuleCause, RowCause, load

PACKAGES = {name: f"ullage.engines.{name}.causes" for name in ("sglang", "vllm", "runtime")}
#: every fault that public launches were found to have; "none" and "unknown" are no faults
IDS = """
attention-workspace-not-budgeted attention-workspace-oom budget-below-weights dp-attention-replicated-weights
draft-kv-not-budgeted ep-buffer-oom graph-capture-oom graph-capture-oom-hidden-by-custom-allreduce
graph-estimate-overreserve hybrid-state-floor-exceeds-budget kv-cache-memory-oversized loader-memory-residue
mamba-blocks-below-max-num-seqs max-len-exceeds-kv mm-encoder-profile-oom moe-repack-oom moe-workspace-profile-oom
nccl-buffer-oom pp-kv-check-overcount sampler-warmup-oom sleep-mode-accounting spec-decode-memory
stuck-between-two-fractions weights-exceed-gpu free-memory-below-request instance-accounting-shared-gpu
stale-process-holds-gpu unbalanced-check-after-target unbalanced-free-memory unified-memory-accounting
unified-memory-exhaustion wsl-residency-failure dp-attention-prefill-oom kv-pool-retraction logits-activation-oom
prefill-activation-oom prefill-peak-not-profiled runtime-oom vision-encoder-activation-oom disk-or-mmap-bus-error
hicache-host-memory-check host-memory-limit host-memory-thrash-at-load host-oom-killed shm-too-small
attention-backend-unsupported-shape draft-model-mismatch flag-combination-unsupported gated-model-auth
http-proxy-breaks-warmup kv-dtype-unsupported-by-backend max-len-exceeds-model multinode-device-check not-enough-gpus
offload-not-active port-in-use quant-format-not-detected quant-layout-mismatch rank-gpu-misplacement
ray-placement-unfulfillable tp-not-divisible cuda-driver-mismatch deepgemm-scale-rejected gpu-arch-unsupported
jit-host-compiler-too-old jit-toolchain-missing kernel-missing-for-arch model-arch-unknown preload-library-deadlock
triton-shared-memory-limit allreduce-fusion-workspace custom-allreduce-capture-fault
custom-allreduce-expandable-segments custom-allreduce-hang custom-allreduce-unsupported-platform
custom-allreduce-v2-no-nvlink deepep-nvshmem-init multi-node-link-lost-when-idle multi-node-rendezvous-timeout
nccl-duplicate-device nccl-system-error nccl-version-segfault nccl-wrong-interface p2p-hang
pd-transfer-memory-registration slow-load-skews-ranks-nccl-timeout bad-logits-nan embedding-model-unsupported-path
engine-bug frontend-process-died gpu-hardware-fault
""".split()
Cause = RowCause | ModuleCause


def causes(name: str) -> list[Cause]:
    return load(PACKAGES[name])


def rows(name: str) -> list[RowCause]:
    return [cause for cause in causes(name) if isinstance(cause, RowCause)]


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_an_engine_has_one_owner_for_each_id(engine: str) -> None:
    ids = Counter(cause.id for cause in [*causes(engine), *causes("runtime")])
    assert [cause for cause, number in ids.items() if number > 1] == []


def test_every_known_fault_has_a_cause() -> None:
    have = {cause.id for name in PACKAGES for cause in causes(name)}
    assert sorted(set(IDS) - have) == []


def test_no_cause_is_unheard_of() -> None:
    have = {cause.id for name in PACKAGES for cause in causes(name)}
    assert sorted(have - set(IDS)) == []


@pytest.mark.parametrize("name", list(PACKAGES))
def test_every_page_is_complete(name: str) -> None:
    for cause in causes(name):
        parts = cause.text
        for part in (parts.see, parts.misleads, parts.true, parts.helps):
            assert len(part) > 25, (cause.id, part)
            assert part.rstrip().endswith((".", ")", '"')), (cause.id, part[-40:])


@pytest.mark.parametrize("name", list(PACKAGES))
def test_every_pattern_compiles(name: str) -> None:
    for cause in rows(name):
        for when in cause.row.when:
            lists = (
                when.text,
                when.not_text,
                when.frames,
                when.not_frames,
                when.log,
                when.all_log,
                when.not_log,
            )
            values = [v for v in (*when.settings.values(), *when.env.values()) if isinstance(v, str)]
            for pattern in [p for one in lists for p in one] + [v[1:] for v in values if v.startswith("~")]:
                re.compile(pattern, re.IGNORECASE | re.MULTILINE)


@pytest.mark.parametrize("name", list(PACKAGES))
def test_a_row_needs_some_proof(name: str) -> None:
    """A row without any positive condition would hold for every log."""
    for cause in rows(name):
        for when in cause.row.when:
            proof = when.text or when.frames or when.log or when.all_log or when.root or when.note
            assert proof or (when.outcome and (when.env or when.phase)), (cause.id, when)


@pytest.mark.parametrize("name", list(PACKAGES))
def test_a_certain_row_is_not_a_faint_one(name: str) -> None:
    for cause in rows(name):
        for when in cause.row.when:
            weight = cause.row.weight if when.weight is None else when.weight
            assert (when.certainty or cause.row.certainty) != "certain" or weight >= 15, (cause.id, when)


@pytest.mark.parametrize("name", list(PACKAGES))
def test_releases_are_releases(name: str) -> None:
    for cause in rows(name):
        for when in cause.row.when:
            for limit in (when.since, when.until):
                assert limit is None or parse_release(limit) is not None, (cause.id, limit)


@pytest.mark.parametrize("name", list(PACKAGES))
def test_groups_in_sentences_exist_in_patterns(name: str) -> None:
    for cause in rows(name):
        named = {
            group
            for when in cause.row.when
            for pattern in [*when.text, *when.frames, *when.log, *when.all_log]
            for group in re.compile(pattern).groupindex
        }
        row = cause.row
        texts = [row.summary, row.true, row.misleads, *row.not_this.values(), *(c.why for c in row.change)]
        asked = {group for text in texts for group in re.findall(r"\{(\w+)\}", text)}
        assert asked <= named, (cause.id, asked - named)
