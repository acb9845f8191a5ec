"""Before a launch: its plan, where it will answer, and whether its port is free."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import Struct

from ullage.core.errors import CommandError, InputError
from ullage.core.launch import Launch
from ullage.core.report import Plan
from ullage.lab import endpoint as http
from ullage.lab import proc_table, processes
from ullage.lab.endpoint import Endpoint
from ullage.planning import plan as planning


class Known(Struct, frozen=True):
    """What is known before the start. ``notes`` say what could not be found out."""

    plan: Plan | None = None
    launch: Launch | None = None
    endpoint: Endpoint | None = None
    notes: tuple[str, ...] = ()


class Question(Struct, frozen=True):
    """``asked`` as for ``plan``; ``host``: it will run there. ``environment`` is that of the launch."""

    asked: planning.Asked
    environment: Mapping[str, str] = {}
    host: str | None = None


def look(question: Question, plan: Callable[[planning.Asked], Plan] = planning.plan) -> Known:
    """Plan the launch. A command that starts no known engine is no error: it is started all the same. Raises
    InputError and CommandError for what is certainly wrong with it."""
    asked = question.asked
    try:
        engine = planning.engine_of(asked.command)
    except CommandError as error:
        return Known(notes=(f"no preflight: it {error.what}",))
    launch = engine.parse(asked.command, asked.version, asked.files)
    notes: list[str] = []
    if question.host and asked.gpu is None:
        asked = planning.Asked(
            asked.command, f"ssh:{question.host}", asked.version, asked.model_dir, asked.readings,
            asked.contexts, asked.files, asked.hub,
        )  # fmt: skip
    try:
        found = plan(asked)
    except InputError as error:
        if asked.gpu is None or not question.host:
            raise
        notes.append(error.line)
        found = plan(question.asked)
    return Known(found, launch, http.of_launch(launch, question.environment), tuple(notes))


def holder_of(port: int) -> str | None:
    """Who listens on a port here, in words; None where nobody does."""
    if processes.port_free(port):
        return None
    import psutil

    try:
        pids = {
            c.pid
            for c in psutil.net_connections("tcp")
            if c.status == psutil.CONN_LISTEN and c.laddr and c.laddr.port == port
        }
    except (psutil.Error, OSError):
        pids = set()
    rows = [row for pid in pids if pid and (row := proc_table.entry(pid))]
    return ", ".join(f"process {row.pid} ({row.name})" for row in rows) or "another process"
