"""The processes of a run: found again in every way they can hide, ended, and seen to be gone.

A run's processes carry the variable ``ULLAGE_RUN=<id>``. That alone does not do: vLLM's workers rename
themselves (setproctitle), which overwrites the list that /proc shows. So a process belongs to the run if any of
these holds, and it is younger than the run's first process:

- it was seen in the run's tree before (``Traces.seen``, kept in the run's folder while the run goes on);
- it is in the run's process group, of the same session;
- it carries the variable;
- its stdout or stderr is a pipe of the run;
- a process of the run started it.

Signals go through pidfds, checked against the start time, so that a pid that was given away is never hit.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Iterable

from msgspec import Struct
from msgspec.structs import replace

from ullage.lab import proc_table
from ullage.lab.proc_table import Started

#: the variable that every process of a run is started with
MARKER = "ULLAGE_RUN"
#: seconds between two looks while processes end
_LOOK_S = 0.05
#: seconds within which a killed process must be gone; one that a driver holds uninterruptibly is not
KILL_S = 10.0


class Traces(Struct, frozen=True):
    """What a run's processes are found by. Written before the first of them starts, and renewed as they come.

    ``began`` is the clock tick before which none of them can have started. ``session`` is that of the ullage
    that started them, 0 where it is not known. ``ports`` are those that the server listens on here.
    """

    run_id: str
    boot: str
    began: int = 0
    leader: Started | None = None
    session: int = 0
    pipes: tuple[int, ...] = ()
    seen: tuple[Started, ...] = ()
    ports: tuple[int, ...] = ()


class Ended(Struct, frozen=True):
    """How the processes of a run ended. ``killed`` did not go when asked; ``left`` could not be ended (a driver
    holds them, or they are another user's); ``ports_held`` are still listened on, by whomever."""

    found: tuple[Started, ...] = ()
    killed: tuple[Started, ...] = ()
    left: tuple[Started, ...] = ()
    ports_held: tuple[int, ...] = ()

    @property
    def clean(self) -> bool:
        return not self.left and not self.ports_held


def traces(run_id: str, pipes: Iterable[int] = (), ports: Iterable[int] = ()) -> Traces:
    """The traces of a run about to start from this process."""
    me = proc_table.entry(os.getpid())
    uptime_ticks = int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))
    return Traces(
        run_id, proc_table.boot_id(), uptime_ticks - 1, None, me.session if me else 0, tuple(pipes), (),
        tuple(ports),
    )  # fmt: skip


def with_leader(found: Traces, pid: int) -> Traces:
    """The traces with the run's first process, the leader of its process group."""
    leader = proc_table.started(pid)
    return replace(found, leader=leader, seen=(leader,) if leader else ())


def environment(run_id: str, base: dict[str, str]) -> dict[str, str]:
    """``base`` with the marker of the run."""
    return {**base, MARKER: run_id}


def find(run: Traces) -> list[Started]:
    """The live processes of the run, oldest first; none where the machine was booted since."""
    if run.boot != proc_table.boot_id():
        return []
    rows = proc_table.table()
    known = set(run.seen)
    mine = proc_table.ancestors(rows, os.getpid())
    roots = {
        row.pid
        for row in rows.values()
        if row.process.ticks >= run.began and row.pid not in mine and _belongs(row, run, known)
    }
    return sorted((rows[pid].process for pid in proc_table.descendants(rows, roots) - mine), key=_age)


def _age(process: Started) -> tuple[int, int]:
    return process.ticks, process.pid


def _belongs(row: proc_table.Entry, run: Traces, known: set[Started]) -> bool:
    if row.process in known or _in_group(row, run):
        return True
    if run.pipes and not proc_table.pipes_of(row.pid).isdisjoint(run.pipes):
        return True
    return proc_table.has_variable(row.pid, MARKER, run.run_id)


def _in_group(row: proc_table.Entry, run: Traces) -> bool:
    """In the run's process group, and the group's number was not given away since: its leader is the run's, or
    dead, and a group of a dead leader keeps its number taken."""
    leader = run.leader
    if leader is None or row.group != leader.pid or (run.session and row.session != run.session):
        return False
    now = proc_table.entry(leader.pid)
    return now is None or now.process == leader


def observe(run: Traces) -> Traces:
    """The traces with what is in the run's tree and group now: cheap, to be called every second or so."""
    rows = proc_table.table()
    known = [p for p in run.seen if p.pid in rows and rows[p.pid].process == p]
    roots = {p.pid for p in known} | {row.pid for row in rows.values() if _in_group(row, run)}
    tree = {rows[pid].process for pid in proc_table.descendants(rows, roots) if pid != os.getpid()}
    seen = tuple(sorted(tree, key=_age))
    return run if seen == run.seen else replace(run, seen=seen)


def send(process: Started, number: int) -> bool:
    """Send a signal to exactly this process; False where it is gone or may not be signalled."""
    try:
        handle = os.pidfd_open(process.pid)
    except OSError:
        return False
    try:
        if proc_table.started(process.pid) != process:
            return False
        signal.pidfd_send_signal(handle, number)
        return True
    except OSError:
        return False
    finally:
        os.close(handle)


def end(
    run: Traces, grace_s: float, *, first: int = signal.SIGTERM, tick: Callable[[], object] | None = None
) -> Ended:
    """End every process of the run: ``first`` to its first process (to all where that is gone already), then
    SIGTERM to who outlives it, SIGKILL after ``grace_s`` seconds in all, and look whether all are gone.

    ``tick`` is called while it waits (to collect children).
    """
    found = find(run)
    everyone = set(found)
    until = time.monotonic() + grace_s
    asked: set[Started] = set()
    leader = run.leader if run.leader in everyone else None
    if leader is not None:
        send(leader, first)
        _continue(found)
    while found and time.monotonic() < until:
        if leader is None or leader not in found:
            for process in found:
                if process not in asked:
                    asked.add(process)
                    send(process, signal.SIGTERM)
                    send(process, signal.SIGCONT)
        if tick is not None:
            tick()
        time.sleep(_LOOK_S)
        found = find(run)
        everyone |= set(found)
    killed = tuple(found)
    left = _kill(run, tick)
    return Ended(
        tuple(sorted(everyone | set(killed), key=_age)), killed, tuple(left),
        tuple(port for port in run.ports if not port_free(port)) if everyone else (),
    )  # fmt: skip


def _continue(found: Iterable[Started]) -> None:
    """A stopped process hears nothing but SIGKILL until it goes on."""
    for process in found:
        send(process, signal.SIGCONT)


def _kill(run: Traces, tick: Callable[[], object] | None) -> list[Started]:
    """SIGKILL until none is left, new ones included; who is left after ``KILL_S`` seconds."""
    until = time.monotonic() + KILL_S
    left = find(run)
    while left and time.monotonic() < until:
        for process in left:
            send(process, signal.SIGKILL)
        if tick is not None:
            tick()
        time.sleep(_LOOK_S)
        left = find(run)
    return left


def port_free(port: int) -> bool:
    """True if nothing listens on the TCP port here, on any address."""
    for family, address in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind((address, port))
        except OSError as error:
            if error.errno == 98:  # EADDRINUSE; no IPv6 at all is no holder
                return False
    return True
