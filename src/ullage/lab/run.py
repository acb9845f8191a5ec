"""``ullage run``: preflight, launch, follow, stop early where it cannot succeed, explain, keep the record."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Mapping
from contextlib import suppress

from msgspec.structs import replace

from ullage.core.errors import UllageError
from ullage.core.secrets import masked
from ullage.lab import containers, facts, preflight, remote
from ullage.lab.asked import WILL_NOT, Asked, Result, Screen
from ullage.lab.durable import StoreError
from ullage.lab.facts import kept_environment
from ullage.lab.preflight import Known
from ullage.lab.reap import reap
from ullage.lab.records import Folder, Record, Store, new_id
from ullage.lab.session import Session
from ullage.lab.watch import durations


def run(asked: Asked, store: Store, screen: Screen) -> Result:
    """Do it all. Raises UllageError where it cannot even be started or recorded."""
    for reaped in reap(store, beyond):
        screen.say(reaped.text)
    environment = asked.launching.environment({} if asked.host else os.environ)
    known = preflight.look(preflight.Question(asked.plan, environment, asked.host))
    for note in known.notes:
        screen.say(note)
    refusal = _refusal(asked, known, screen)
    record, folder = _record(asked, known, environment, store, screen)
    if refusal is not None:
        screen.say(refusal)
        return _refused(folder, record, refusal)
    return Session(asked, known, folder, record, screen, _usual(store, record)).run()


def beyond(folder: Folder, record: Record) -> str | None:
    """End what an abandoned run has elsewhere: its containers, its processes on another machine."""
    host = record.where.removeprefix("ssh:") if record.where.startswith("ssh:") else None
    said = []
    if host is not None:
        said.append(remote.end(host, record.id) or f"{host} cannot be reached: what runs there ends by itself")
    if record.container is not None:
        tool = shlex.split(record.container)
        try:
            said.append(containers.end([*remote.prefix(host), *tool] if host else tool, record.id) or "")
        except UllageError as error:
            said.append(error.line)
    return ", ".join(text for text in said if text) or None


def _refusal(asked: Asked, known: Known, screen: Screen) -> str | None:
    """Why it is not launched; None where it is."""
    if not asked.preflight:
        return None
    if known.plan is not None:
        screen.planned(known.plan)
    if known.plan is not None and known.plan.verdict == "fails":
        if known.plan.proven and not asked.keep_going:
            return "not launched: it will not start (--keep-going launches it all the same)"
        screen.say(
            "launched all the same" if known.plan.proven else "launched: that it fails is likely, not proven"
        )
    port = known.endpoint.port if known.endpoint and not known.endpoint.unix_socket else None
    container = containers.of_command(asked.launching.argv, "") is not None
    holder = preflight.holder_of(port) if port and not asked.host and not container else None
    if holder is None:
        return None
    said = f"port {port} is taken by {holder}"
    if asked.keep_going:
        screen.say(said)
        return None
    return f"not launched: {said} (--keep-going launches it all the same)"


def _record(
    asked: Asked, known: Known, environment: Mapping[str, str], store: Store, screen: Screen
) -> tuple[Record, Folder]:
    """The folder and the first state of the record: written before anything is started."""
    plan, launch = known.plan, known.launch
    text = masked(asked.launching.text)
    folder = store.create((launch.model if launch else None) or asked.launching.argv[0], asked.name)
    where = f"ssh:{asked.host}" if asked.host else "here"
    record = Record(
        id=new_id(), name=folder.name, command=text, command_key=facts.key(text, where),
        engine=launch.engine if launch else None, version=plan.version if plan else None, where=where,
        cwd=None if asked.host else str(facts.folder()),
        environment=kept_environment(environment, launch.env if launch else ()),
        versions=facts.versions(asked.launching.argv, bool(asked.host)),
        hardware=facts.hardware(plan.machine if plan else None, here=not asked.host),
        plan=screen.plan_object(plan) if plan else None, created_at=time.time(),
    )  # fmt: skip
    folder.write(record)
    return record, folder


def _refused(folder: Folder, record: Record, why_not: str) -> Result:
    record = replace(record, outcome="refused", why=why_not, ended_at=time.time())
    folder.write(record)
    folder.unlock()
    return Result(record, WILL_NOT)


def _usual(store: Store, record: Record) -> dict[str, float]:
    """Seconds that each stage took in the newest run of the same command that became ready."""
    with suppress(StoreError):
        for _, earlier in reversed(store.records()):
            if earlier.command_key == record.command_key and earlier.ready_s is not None and earlier.stages:
                return durations(earlier.stages, earlier.ready_s)
    return {}


__all__ = ["Asked", "Result", "Screen", "run"]
