"""The kernel killed a process because host memory ran out.

What you see: exit code -9 or 137, "Killed", an exit without any exception, "OOMKilled" from the orchestrator,
or a log that simply stops after lines about host memory. The last lines of the engine are whatever it was
doing.

What misleads: the last lines (graph capture, loading) have nothing to do with it, GPU memory is healthy, and
the other ranks report broken connections. A hint at the OOM killer that is printed beside another exit code
(-3, 1) is only part of the message: SIGQUIT and ordinary exceptions do not come from the kernel.

What is true: the kernel or the container's limit sends SIGKILL, which no process can report. Every rank is a
process of its own: pinned host pools, offloaded weights and loader buffers count once for each, and each
passes its own check before the others have taken theirs.

What helps: look at dmesg -T | grep -i oom and at the container's limit; lower what is taken per rank (host
cache size divided by the local ranks, fewer loader threads, less offload) or raise the limit.
"""

from __future__ import annotations

import re

from ullage.core.finding import Case, Change, Evidence, Finding, How, Refuted
from ullage.core.run import Event, Line
from ullage.engines.runtime.rows import evidence

_KILLED = re.compile(
    r"\bSIGKILL\b(?!\), a common)|exit(?:ed with)?(?: ?code)?:? \(?(?:-9|137)\b|exitcode:? -9\b|signal 9\b|"
    r"unexpectedly failed with (?:an exit code |exitcode=)(?:9|137)\b|"  # a wait status, not an exit code
    r"Out of memory: Killed process|oom-kill|OOMKilled|Memory cgroup out of memory|"
    r"due to the node running low on memory|killed due to memory pressure \(OOM\)",  # Ray's memory monitor
    re.IGNORECASE,
)
_KERNEL = re.compile(
    r"Out of memory: Killed process|oom-kill|OOMKilled|Memory cgroup out of memory|"
    r"due to the node running low on memory|killed due to memory pressure \(OOM\)",
    re.IGNORECASE,
)
#: a parent that finds its child gone, without knowing how it ended
_GONE = re.compile(r"\bdied unexpectedly(?! \(exit code: -?\d)", re.IGNORECASE)
#: what native code prints before it ends a process by itself
_NATIVE = re.compile(
    r"\.cuh?:\d+|\.cpp:\d+|\.cc:\d+|[Ss]egfault|Segmentation fault|SIGSEGV|SIGABRT|terminate called"
    r"|Fatal Python error|CUDA error|HIP error|Memory access fault|NCCL (?:WARN|error)|Bus error|core dumped"
    r"|Traceback",
)
#: what a shell prints of a process that took SIGKILL; an engine that ends its own tree leaves it too
_BARE = re.compile(r"^(?:.{0,120}: line \d+:\s+\d+ )?Killed\b")
_ALLOCATES = re.compile(r"Allocating (?:.*?, )?(\d+(?:\.\d+)?) GB host memory")


def test(case: Case) -> Finding | None:
    proof = _killed(case)
    if proof is not None:
        return _found(case, proof, "certain" if _KERNEL.search(case.log + case.text) else "likely", 30)
    if case.root is None and not case.run.failures and case.run.ready is None:
        return _silent(case)
    if case.root is not None and _BARE.search(case.root.text) and not any(f.cascade for f in case.failures):
        loads = case.phase in ("weights", "kv_pool")
        return _found(case, [evidence(case.root, "root")], "likely" if loads else "possible", 20)
    if case.root is not None and _GONE.search(case.root.text) and not _NATIVE.search(case.log):
        return _found(case, [evidence(case.root, "root")], "possible", 5)
    return None


def _killed(case: Case) -> list[Evidence] | None:
    """The lines that say that a process was killed; None where the root is another fault."""
    if case.root is not None and (case.root.signal == -9 or _KILLED.search(case.text)):
        return [evidence(case.root, "root")]
    items: list[Event | Line] = [*case.run.events, *case.run.last]
    if case.root is not None and _GONE.search(case.root.text):
        return next(([evidence(item, "root")] for item in items if _KERNEL.search(item.text)), None)
    if case.outcome not in ("crashed", "unknown") or (case.root is not None and not case.root.cascade):
        return None
    return next(([evidence(item, "root")] for item in items if _KILLED.search(item.text)), None)


def _silent(case: Case) -> Finding | None:
    """A log that just ends where every rank pins host memory: the sum is what the host had to give."""
    items = [(item, found) for item in case.run.last if (found := _ALLOCATES.search(item.text))]
    after = [line for line in case.run.last if items and line.source.line > items[-1][0].source.line]
    if len(items) < 2 or any("Memory pool end" in line.text or "raph end" in line.text for line in after):
        return None
    total = sum(float(found[1]) for _, found in items)
    return _found(
        case, [evidence(item, "context") for item, _ in items[:4]], "likely", 24, silent=True,
        sizes=f"{len(items)} host allocations of {total:.1f} GB together",
    )  # fmt: skip


def _found(
    case: Case, proof: list[Evidence], certainty: How, weight: int, *, silent: bool = False, sizes: str = ""
) -> Finding:
    how = (
        f"the log stops after {sizes}; each rank takes its own share of one host's memory."
        if sizes
        else "SIGKILL comes from outside the process: the kernel, or the container's memory limit."
    )
    return Finding(
        cause="host-oom-killed", certainty=certainty, weight=weight,
        summary="A process was killed for want of host memory (RAM), not of GPU memory.",
        explanation=f"{how[0].upper()}{how[1:]} Nothing the engine printed last is the reason.",
        evidence=tuple(proof), outcome="crashed" if silent else None,
        phase="kv_pool" if sizes else None,
        refuted=(Refuted("GPU memory", "CUDA reports it as an exception with figures; a kill leaves none"),),
        fixes=(
            Change({}, "raise the memory limit of the container or host; dmesg -T | grep -i oom confirms it"),
            *(_smaller_pool(case) if sizes else ()),
        ),
    )  # fmt: skip


def _smaller_pool(case: Case) -> tuple[Change, ...]:
    ranks = case.deployment.launch.integer("tp_size") or 1
    size = case.deployment.launch.number("hicache_size")
    if not size or ranks < 2:
        return ()
    return (
        Change({"--hicache-size": int(size // ranks)}, "the size counts per rank: host budget / local ranks"),
    )
