"""Each tool's question answered, in a worker: arguments in, the object of ``--json`` and a short text out."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from ullage.core.errors import InputError
from ullage.core.secrets import masked, masked_value
from ullage.mcp import arguments as given
from ullage.mcp import texts
from ullage.mcp.roots import Fence, Roots
from ullage.mcp.schemas import RUNS
from ullage.mcp.worker import Answer, Question, Settings

if TYPE_CHECKING:
    from ullage.core.launch import Launch
    from ullage.core.report import Diagnosis
    from ullage.planning import plan as planning
    from ullage.spec.acceptance import Acceptance, Width

#: what a list of runs leaves out; ``runs`` with a name has it all
_LONG = ("plan", "diagnosis", "hardware", "environment", "versions", "observed")
Found = tuple[dict[str, Any], str]


class Asker:
    """What the tools of one process share."""

    def __init__(self, settings: Settings) -> None:
        self.roots = Roots(settings.roots)
        self.hub = settings.hub
        self.fence = Fence(self.roots, hub=settings.hub)

    # what is asked

    def launch(self, asked: given.Plan | given.Spec | given.CommPlan | given.Launch) -> planning.Asked:
        from ullage.planning import plan as planning

        readings = asked.readings if isinstance(asked, given.Plan | given.Launch) else {}
        contexts = tuple(asked.contexts) if isinstance(asked, given.Plan) else ()
        return planning.Asked(
            asked.command, self.gpu(asked.gpu), asked.engine_version or None, self.folder(asked.model_dir),
            readings, contexts, self.roots.read, self.hub,
        )  # fmt: skip

    def gpu(self, name: str | None) -> str | None:
        """The name; another machine is never asked from here."""
        if name and name.strip().lower().startswith("ssh:"):
            raise InputError(
                "asks another machine, which this server does not", where="gpu", hint="name the GPUs"
            )
        return name or None

    def folder(self, path: str | None) -> str | None:
        if not path:
            return None
        return self.roots.path(path, folder=not path.endswith(".gguf"))

    def logs(self, names: Sequence[str], command: str | None = None) -> tuple[list[str], str | None]:
        """(the logs to read, the launch command): files below the roots, or runs by their names."""
        found = []
        for name in names:
            try:
                path = self.roots.path(name)
                # a report calls the log as the caller does: this process stands in the first root
                found.append(name if os.path.realpath(name) == path else path)
            except InputError:
                record = None if "/" in name else _run(name)
                if record is None:
                    raise
                found.append(record[0])
                command = command or record[1]
        return found, command

    # the tools

    def plan(self, asked: given.Plan) -> Found:
        from ullage.planning import plan as planning
        from ullage.render import plan_json

        found = planning.plan(self.launch(asked))
        return plan_json.plan_object(found), texts.plan(found)

    def why(self, asked: given.Why) -> Found:
        from ullage.render import json

        found = self._diagnosis(asked, asked.logs, asked.baseline, asked.run)
        return json.why_object(found), texts.why(found)

    def diff(self, asked: given.Diff) -> Found:
        from ullage.render import json

        found = self._diagnosis(asked, [asked.b], [asked.a], None)
        return msgspec.json.decode(json.diff(found)), texts.diff(found)

    def _diagnosis(
        self, asked: given.Why | given.Diff, logs: Sequence[str], baseline: Sequence[str], run: int | None
    ) -> Diagnosis:
        from ullage.diagnose import why as diagnose

        paths, command = self.logs(logs, asked.command)
        others, _ = self.logs(baseline)
        said = diagnose.Asked(
            command, self.gpu(asked.gpu), asked.engine_version or None, self.folder(asked.model_dir),
            asked.readings, run,
        )  # fmt: skip
        return diagnose.why(paths, baseline=others, asked=said)

    def spec(self, asked: given.Spec) -> Found:
        from ullage.diagnose import spoken
        from ullage.planning.drafting import Wish
        from ullage.planning.speculation import answer as payoff
        from ullage.render import spec_json

        wish = Wish(asked.method, asked.draft_model, asked.depth, asked.topk, asked.draft_tokens)
        calls: dict[int | None, float] = {} if asked.allreduce_us is None else {None: asked.allreduce_us}

        def acceptance(launch: Launch, width: Width) -> Acceptance | None:
            return self._acceptance(asked, width)

        points = spoken.benchmarks(asked.measured)
        found = payoff(self.launch(asked), wish, acceptance, tuple(asked.batch), asked.context, calls, points)
        return spec_json.spec_object(found), texts.spec(found)

    def _acceptance(self, asked: given.Spec, width: Width) -> Acceptance | None:
        from statistics import fmean

        from ullage.spec.acceptance import of_length, of_positions

        kinds = [name for name in ("accept", "accept_length", "logs") if getattr(asked, name)]
        if len(kinds) > 1:
            raise InputError("give one of them", where=" and ".join(kinds))
        if asked.accept:
            return of_positions(asked.accept, width, "accept")
        if ends := asked.accept_length:
            return of_length(fmean(ends), width, "accept_length", (min(ends), max(ends)))
        return self._observed(asked.logs, width) if asked.logs else None

    def _observed(self, names: Sequence[str], width: Width) -> Acceptance:
        from ullage.diagnose.read import read
        from ullage.spec.observed import of_run

        runs = read(self.logs(names)[0]).runs
        found = [item for run in runs if (item := of_run(run, width)) is not None]
        if not found:
            raise InputError("shows no acceptance length", where=f"logs: {names[0][:60]}")
        return found[-1]

    def comm_plan(self, asked: given.CommPlan) -> Found:
        from ullage.comm import store
        from ullage.hardware import topology
        from ullage.planning import comm
        from ullage.render import comm_json

        measured = [one for path in asked.measured for one in store.read(self.roots.path(path))]
        links = topology.parse(self.roots.read(asked.topology), asked.topology) if asked.topology else None
        found = comm.comm_plan(comm.Asked(
            self.launch(asked), tuple(asked.batch) or comm.BATCHES,
            tuple(p for p in ("decode", "prefill") if not asked.phases or p in asked.phases), asked.tokens,
            links, asked.via, (*measured, *store.kept()),
        ))  # fmt: skip
        return comm_json.plan_object(found), texts.comm(found)

    def check(self, asked: given.Check) -> Found:
        from ullage.engines import NAMES
        from ullage.planning import checks
        from ullage.render import check_json

        if asked.engine and asked.engine not in NAMES:
            raise InputError("is no engine that is known", where=asked.engine[:40], hint=", ".join(NAMES))
        folder = self.folder(asked.folder)
        # without a folder nothing that is asked names a file: it is this machine that is looked at
        self.fence.up = folder is not None
        found = checks.check(checks.Asked(folder=folder, engine=asked.engine or None))
        return check_json.check_object(found), texts.check(found)

    def runs(self, asked: given.Runs) -> Found:
        from ullage.lab.records import Store

        store = Store()
        if asked.name is not None:
            folder = store.get(asked.name)
            record = folder.read()
            found = [record] if record is not None else []
            return {"schema": RUNS, "runs": msgspec.to_builtins(found), "of": len(found)}, texts.run(record)
        records = [record for _, record in store.records()]
        shown = records[: -asked.limit - 1 : -1]
        objects = [{k: v for k, v in msgspec.to_builtins(r).items() if k not in _LONG} for r in shown]
        return {"schema": RUNS, "runs": objects, "of": len(records)}, texts.runs(shown, len(records))

    def run(self, asked: given.Launch) -> Found:
        """What ``run`` is to launch, planned first: it must be a launch of an engine that needs no shell, and
        name no file beyond the roots."""
        from ullage.lab.launching import of_text
        from ullage.planning import plan as planning

        found = planning.plan(self.launch(asked))
        launching = of_text(asked.command)
        if "-c" in launching.argv[:2] and asked.command in launching.argv:
            raise InputError(
                "needs a shell (a variable that expands, several commands, redirection)", where="command",
                hint="write it out as one plain command",
            )  # fmt: skip
        words = [*(f"{name}={value}" for name, value in launching.given.items()), *launching.argv]
        options = {"--gpu": asked.gpu, "--engine-version": asked.engine_version,
                   "--model-dir": self.folder(asked.model_dir)}  # fmt: skip
        before = [word for name, value in options.items() if value for word in (name, value)]
        before += [w for k, v in asked.readings.items() for w in ("--reading", f"{k}={v!r}")]
        return {"options": before, "words": words}, texts.plan(found)


def _run(name: str) -> tuple[str, str | None] | None:
    """(log, launch command) of a run that was kept; None where there is none of that name."""
    from ullage.lab.records import Store

    folder = Store().find(name)
    if folder is None:
        return None
    record = folder.read()
    return str(folder.log), record.command if record and record.engine else None


_ASKER: list[Asker] = []
TOOLS: dict[str, tuple[type[msgspec.Struct], Callable[[Asker, Any], Found]]] = {
    "plan": (given.Plan, Asker.plan), "why": (given.Why, Asker.why), "diff": (given.Diff, Asker.diff),
    "spec": (given.Spec, Asker.spec), "comm_plan": (given.CommPlan, Asker.comm_plan),
    "check": (given.Check, Asker.check), "runs": (given.Runs, Asker.runs), "run": (given.Launch, Asker.run),
}  # fmt: skip


def answer(question: Question, settings: Settings) -> Answer:
    """The answer, without secrets. Raises UllageError for what a person can mend."""
    kind, work = TOOLS[question.tool]
    asked = msgspec.json.decode(question.arguments, type=kind)
    if not _ASKER:
        _ASKER.append(Asker(settings))
    fence = _ASKER[0].fence
    fence.up = True
    try:
        found, text = work(_ASKER[0], asked)
    finally:
        fence.up = False
    kept = found if question.tool == "run" else sealed(msgspec.to_builtins(found))
    return Answer(masked(text), msgspec.Raw(msgspec.json.encode(kept)))


def sealed(found: Any, name: str = "") -> Any:
    """``found`` without the secrets that a text holds or a setting of such a name has."""
    if isinstance(found, str):
        return masked_value(name, found) if name else masked(found)
    if isinstance(found, Mapping):
        inner = {key: name if key == "value" else str(key) for key in found}
        return {masked(str(key)): sealed(value, inner[key]) for key, value in found.items()}
    if isinstance(found, list | tuple):
        return [sealed(item, name) for item in found]
    return found
