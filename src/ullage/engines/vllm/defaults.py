"""What the engine chooses where the user does not say: share, batch sizes, graph sizes, block size, engine."""

from __future__ import annotations

from msgspec import Struct
from packaging.version import Version

from ullage.core.units import GIB
from ullage.core.versions import Rules


class Device(Struct, frozen=True):
    """What the defaults look at: the GPU's name and total bytes, its compute capability."""

    name: str
    total_bytes: int
    capability: tuple[int, int] | None = None


UTILIZATION: Rules[[], float] = Rules("gpu_memory_utilization")


@UTILIZATION.since("≤0.6.0", source="vllm 0.19.1, config/cache.py")
def nine_tenths() -> float:
    """Share of the device's total memory."""
    return 0.9


@UTILIZATION.since("0.20.0", source="vllm 0.20.0, config/cache.py")
def with_graphs() -> float:
    """Share of the device's total memory; graphs are taken out of it from this release on."""
    return 0.92


BATCH: Rules[[Device], tuple[int, int]] = Rules("batch_defaults")


@BATCH.since("≤0.6.0", source="vllm 0.6.0 to 0.6.4.post1, engine/arg_utils.py (V0, chunked prefill)")
def v0_small(device: Device) -> tuple[int, int]:
    """(max_num_batched_tokens, max_num_seqs) of a server. V0 without chunked prefill: see v0_batch."""
    return 512, 256


@BATCH.since("0.6.5", source="vllm 0.6.5, engine/arg_utils.py (V0, chunked prefill)")
def v0_chunked(device: Device) -> tuple[int, int]:
    return 2048, 256


@BATCH.since("0.8.0", source="vllm 0.8.0 to 0.8.3, engine/arg_utils.py, _set_default_args_v1")
def hopper_by_name(device: Device) -> tuple[int, int]:
    """8192 tokens where the name holds h100 or h200, else 2048; 1024 sequences."""
    return (8192 if _is_hopper(device) else 2048), 1024


@BATCH.since("0.8.4", source="vllm 0.8.4, engine/arg_utils.py")
def fewer_sequences(device: Device) -> tuple[int, int]:
    return (8192, 1024) if _is_hopper(device) else (2048, 256)


@BATCH.since("0.8.5", source="vllm 0.8.5, engine/arg_utils.py")
def by_memory(device: Device) -> tuple[int, int]:
    """8192 tokens and 1024 sequences from 70 GiB on."""
    return (8192, 1024) if device.total_bytes >= 70 * GIB else (2048, 256)


@BATCH.since("0.9.0", source="vllm 0.9.0 to 0.27.1, engine/arg_utils.py, get_batch_defaults")
def not_for_a100(device: Device) -> tuple[int, int]:
    """As before, but never for an A100."""
    return (2048, 256) if "a100" in device.name.lower() else by_memory(device)


@BATCH.since("0.28.0", source="vllm 0.28.0 to 0.32.0, engine/arg_utils.py, get_batch_defaults")
def largest(device: Device) -> tuple[int, int]:
    """16384 tokens from 160 GiB on."""
    return (16384, 1024) if device.total_bytes >= 160 * GIB else not_for_a100(device)


@BATCH.since("0.33.0", source="vllm 0.33.0, engine/arg_utils.py, get_batch_defaults")
def not_for_gb10(device: Device) -> tuple[int, int]:
    """A GB10 (capability 12.1) has the memory but not the compute: 2048 and 256."""
    return (2048, 256) if device.capability == (12, 1) else largest(device)


def _is_hopper(device: Device) -> bool:
    return any(name in device.name.lower() for name in ("h100", "h200"))


def v0_batch(max_model_len: int, chunked: bool, release: Version | None) -> tuple[int, int]:
    """(max_num_batched_tokens, max_num_seqs) of a V0 server: max(L, 2048) without chunked prefill.

    Chunked prefill is automatic above 32768 tokens (vllm 0.6.0 to 0.10.2, engine/arg_utils.py).
    """
    if chunked or max_model_len > 32768:
        return (512 if release and release < Version("0.6.5") else 2048), 256
    return max(max_model_len, 2048), 256


GRAPH_LIMIT: Rules[[int, int, int, int], int] = Rules("graph_limit")


@GRAPH_LIMIT.since("≤0.6.4", source="vllm 0.8.5, config.py, _set_cudagraph_sizes")
def always_512(num_seqs: int, limit: int, spec: int, family: int) -> int:
    """The largest size captured, in tokens."""
    return 512


@GRAPH_LIMIT.since("0.10.0", source="vllm 0.10.0 to 0.11.0, config, _set_cudagraph_sizes")
def twice_the_sequences(num_seqs: int, limit: int, spec: int, family: int) -> int:
    return min(2 * num_seqs, 512)


@GRAPH_LIMIT.since("0.11.1", source="vllm 0.12.0, config/vllm.py, _set_cudagraph_sizes")
def within_a_batch(num_seqs: int, limit: int, spec: int, family: int) -> int:
    return min(2 * num_seqs, 512, limit)


@GRAPH_LIMIT.since("0.13.0", source="vllm 0.13.0 to 0.27.1, config/vllm.py, _set_cudagraph_sizes")
def with_speculation(num_seqs: int, limit: int, spec: int, family: int) -> int:
    return min(2 * num_seqs * (1 + spec), 512, limit)


@GRAPH_LIMIT.since("0.28.0", source="vllm 0.28.0 to 0.33.0, config/vllm.py, _set_cudagraph_sizes")
def more_on_blackwell(num_seqs: int, limit: int, spec: int, family: int) -> int:
    """The cap is 1024 on capability 10.x."""
    return min(2 * num_seqs * (1 + spec), 1024 if family == 100 else 512, limit)


def graph_sizes(
    release: Version | None,
    num_seqs: int,
    limit: int,
    spec: int = 0,
    family: int = 90,
    asked: int | None = None,
) -> list[int]:
    """The batch sizes, in tokens, that are captured, in ascending order.

    ``limit`` is max_num_batched_tokens, ``spec`` the speculative tokens, ``family`` the capability times ten
    (100 for 10.x), ``asked`` the largest size where the launch names it: it stands in place of the default's,
    up to ``limit``. Rules of vllm 0.6.4 to 0.33.0, config/vllm.py.
    """
    most = min(asked, limit) if asked else GRAPH_LIMIT.at(release)(num_seqs, limit, spec, family)
    newer = release is None or release >= Version("0.11.1")
    if newer:
        sizes = [n for n in (1, 2, 4) if n <= most] + list(range(8, min(most + 1, 256), 8))
        sizes += list(range(256, most + 1, 16))
    else:
        kept = limit if release is None or release >= Version("0.8.0") else most
        sizes = [n for n in (1, 2, 4, *range(8, most + 1, 8)) if n <= kept]
    if (release is None or release >= Version("0.20.1")) and limit <= most:
        sizes.append(limit)
    if release is None or release >= Version("0.29.0"):
        sizes += [n for n in _decode_sizes(release, num_seqs, limit, spec, family) if not asked or n <= most]
    return sorted(set(sizes))


def v0_graph_sizes(num_seqs: int) -> list[int]:
    """The batch sizes that V0 captures: 1, 2, 4, 8, 16, 24, .. up to the first that holds max_num_seqs
    (vllm 0.6.0 to 0.10.2, config.py, _set_cudagraph_sizes)."""
    sizes = [1, 2, 4, *range(8, 8193, 8)]
    return [n for n in sizes if n <= next((m for m in sizes if m >= num_seqs), sizes[-1])]


def _decode_sizes(release: Version | None, num_seqs: int, limit: int, spec: int, family: int) -> list[int]:
    """Sizes of uniform decode batches: n * (1 + spec) for n = 1, 2, 4, 8 .. S; without speculation S
    itself (0.31+).

    They may reach the cap before max_num_batched_tokens is applied.
    """
    cap = 1024 if family == 100 else 512
    ceiling = min(num_seqs * (1 + spec) * 2, cap)
    if spec == 0:
        since = release is None or release >= Version("0.31.0")
        return [num_seqs] if since and num_seqs <= min(ceiling, limit) else []
    most = min(num_seqs, cap)
    counts = {
        *(n for n in (1, 2, 4) if n <= most),
        *range(8, min(most + 1, 256), 8),
        *range(256, most + 1, 16),
        most,
    }
    return [n * (1 + spec) for n in counts if n * (1 + spec) <= min(ceiling, limit)]
