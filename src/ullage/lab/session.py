"""One launch, from its first process to its finished record."""

from __future__ import annotations

import os
import shlex
import signal
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from ullage.core.errors import UllageError
from ullage.core.report import Diagnosis, Plan
from ullage.diagnose.why import Asked as WhyAsked
from ullage.diagnose.why import why
from ullage.engines.base import Hints
from ullage.lab import containers, health, oom, remote
from ullage.lab.asked import WILL_NOT, Asked, Result, Screen
from ullage.lab.doom import Doom
from ullage.lab.durable import StoreError
from ullage.lab.ending import Ending, notes_of, outcome_of
from ullage.lab.gpu_samples import Sampler
from ullage.lab.preflight import Known
from ullage.lab.processes import Ended
from ullage.lab.records import Event, Folder, Outcome, Record
from ullage.lab.server import Server, Start, secrets_of
from ullage.lab.signals import Signals
from ullage.lab.terminal import Terminal
from ullage.lab.watch import Watch
from ullage.planning.plan import plan as plan_of

#: seconds between two looks before and after it is ready, and between two views
TICK_S, SLOW_TICK_S, VIEW_S = 0.1, 0.25, 0.2
#: seconds between two looks at the process tree once it serves
SERVING_LOOK_S = 5.0
#: seconds for what the server leaves behind when it ends by itself
AFTER_S = 5.0


class Session:
    """One launch, from its first process to its finished record."""

    def __init__(
        self,
        asked: Asked,
        known: Known,
        folder: Folder,
        record: Record,
        screen: Screen,
        usual: Mapping[str, float],
    ) -> None:
        self.asked, self.known, self.folder, self.screen = asked, known, folder, screen
        self.record = record
        plan = known.plan
        launch = known.launch.without_secrets() if known.launch else None
        hints = Hints(launch, None, asked.plan.version)
        if plan is not None:
            hints = replace(hints, machine=plan.machine, model=plan.model)
        self.watch = Watch(plan, hints, usual)
        self.container = containers.of_command(asked.launching.argv, record.id)
        self.server = self._server()
        self.terminal = Terminal() if asked.host is None else Terminal(-1)
        self.signals = Signals(self._pass_on)
        self.sampler = Sampler(folder.gpu_samples)
        self.outcome: Outcome | None = None
        self.why = ""
        self.asked_at: float | None = None
        self.replanned: Plan | None = None
        self.hung = False
        self.answer: tuple[str | None] | None = None
        self.viewed = 0.0
        self.oom = oom.kills()

    def _server(self) -> Server:
        launching, endpoint = self.asked.launching, self.known.endpoint
        argv = launching.argv
        if self.container is not None:
            argv, endpoint = self.container.argv, self.container.endpoint(endpoint)
        base: Mapping[str, str] = {} if self.asked.host else os.environ
        env = launching.environment(base)
        start = Start(argv, env, None, secrets_of(argv, {**os.environ, **env}), self.asked.separate)
        kept: dict[str, Any] = {
            "show": self.screen.show, "feed": self.watch.feed, "keep": self.folder.keep_traces,
        }  # fmt: skip
        if self.asked.host is not None:
            return remote.RemoteServer(
                self.asked.host, start, self.record.id, self.folder.log, endpoint, grace_s=self.asked.grace_s,
                **kept,
            )  # fmt: skip
        return Server(start, self.record.id, self.folder.log, endpoint, stdin=self.asked.stdin, **kept)

    def run(self) -> Result:
        if self.container is not None:
            self.record = replace(self.record, container=shlex.join(self.container.tool))
        self.record = replace(self.record, started_at=time.time())
        self.folder.write(self.record)
        with self.signals:
            try:
                self._start()
                code = self._follow()
            except UllageError as error:
                self._fail(error)
                raise
            finally:
                ended = self._end()
            return self._finish(code, ended)

    def _start(self) -> None:
        self.watch.begin()
        self.server.start()
        self.terminal.lend(self.server.pid)
        self.sampler.start()

    def _fail(self, error: UllageError) -> None:
        with suppress(StoreError):
            self.folder.write(replace(self.record, outcome="crashed", why=error.line, ended_at=time.time()))

    # while it runs

    def _follow(self) -> int | None:
        """Until it ends by itself (its exit code), or is to be ended (None)."""
        while True:
            code = self.server.poll()
            self._watch()
            if code is not None:
                return code
            self._pause_with_it()
            if self._enough():
                return None
            self._answered()
            if self.watch.ready_s is None:
                self._starting()
            self._view()
            time.sleep(TICK_S if self.watch.ready_s is None else SLOW_TICK_S)

    def _watch(self) -> None:
        """Read what has come. A fault of ours in it must never end the user's server."""
        try:
            self.watch.step()
            self._keep_events()
        except Exception as error:
            if not self.watch.closed:
                self.watch.closed = True
                self.screen.say(f"the log is not followed any more, a fault of ullage: {error!r}")

    def _starting(self) -> None:
        if self._ready():
            self._now_ready()
        elif self.asked_at is None:
            self._doomed()
            self._silent()

    def _ready(self) -> bool:
        if self.server.endpoint is not None:
            return self.server.healthy(0.5)
        run = self.watch.run
        return run is not None and run.ready is not None

    def _now_ready(self) -> None:
        seconds = self.watch.ready_s = round(self.watch.elapsed_s, 3)
        where = f" at {self.server.endpoint.where}" if self.server.endpoint else ""
        self.watch.closed = True  # what it serves is no part of the start
        self.server.look_every_s = SERVING_LOOK_S
        self.record = replace(self.record, ready_s=seconds)
        self.folder.add_events([Event(at_s=seconds, kind="healthy", text=f"ready{where}")])
        self._save()
        self.server.sync()
        self.screen.view(None)
        self.screen.say(f"ready{where} after {seconds:.0f} s; record: {self.folder.name}")
        if self.asked.request:
            threading.Thread(target=self._ask, name="request", daemon=True).start()

    def _ask(self) -> None:
        self.answer = (self.server.answers(),)

    def _answered(self) -> None:
        """What came of the request, once."""
        if self.answer is None:
            return
        (refused,), self.answer = self.answer, None
        seconds = round(self.watch.elapsed_s, 3)
        if refused is None:
            self.record = replace(self.record, answered_s=seconds)
            self._save()
        text = (
            "a request of one token was answered"
            if refused is None
            else f"a request is not answered: {refused}"
        )
        self.folder.add_events(
            [Event(at_s=seconds, kind="answered" if refused is None else "refused", text=text)]
        )
        self.screen.say(text)

    def _doomed(self) -> None:
        doom = self.watch.doom
        if doom is None or self.outcome is not None or self.why:
            return
        self.why = f"{doom.text}: {doom.formula} ({doom.phase}: {doom.cause}; {doom.source} in the log)"
        at = round(self.watch.elapsed_s, 3)
        self.folder.add_events(
            [Event(at_s=at, kind="doomed", phase=doom.phase, name=doom.cause, text=self.why)]
        )
        self.screen.say(f"this start cannot succeed: {self.why}")
        if not self.asked.keep_going:
            self.outcome = "doomed"
            self.screen.view(None)
            self._replan(doom)

    def _replan(self, doom: Doom) -> None:
        """The plan again with the figures that this start has shown: what would start instead."""
        known = {name: value for name, value in doom.readings.items() if name not in self.asked.plan.readings}
        asked = replace(self.asked.plan, readings={**self.asked.plan.readings, **known})
        with suppress(UllageError):
            self.replanned = plan_of(asked)

    def _silent(self) -> None:
        """A start that says nothing for long: what is known of it, once."""
        if self.hung or self.server.silent_s < self.asked.hang_after_s:
            return
        self.hung = True
        found = health.hang(
            self.watch.open_phase, self.server.silent_s, self.watch.last, self.watch.elapsed_s,
            self.server.found(), self.folder.path / "stacks.txt", self.asked.launching.argv[0],
        )  # fmt: skip
        at = round(self.watch.elapsed_s, 3)
        ranks = "; ".join(f"{rank or 'server'}: {text}" for rank, (_, text) in found.ranks.items())
        self.folder.add_events([Event(at_s=at, kind="hang", phase=found.phase, text=ranks)])
        self.screen.view(None)
        self.screen.hang(found)

    def _enough(self) -> bool:
        """True if it is to be ended: doomed, or asked to stop and out of time."""
        if self.outcome == "doomed" or self.signals.insisted:
            return True
        return self.asked_at is not None and time.monotonic() - self.asked_at > self.asked.grace_s

    def _pass_on(self, number: int) -> None:
        """A signal that ullage got: on to the server, as it would have come without ullage."""
        if number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT) and self.asked_at is None:
            self.asked_at = time.monotonic()
        self.server.pass_on(
            number, everyone=number in (signal.SIGINT, signal.SIGQUIT, signal.SIGWINCH, signal.SIGTSTP)
        )
        if number == signal.SIGTSTP:
            self._pause()

    def _pause_with_it(self) -> None:
        """Ctrl-Z stopped the server: the shell is to see that its job has stopped."""
        if self.terminal.held and self.server.stopped():
            self._pause()

    def _pause(self) -> None:
        self.screen.view(None)
        self.terminal.take_back()
        os.kill(os.getpid(), signal.SIGSTOP)
        self.terminal.lend(self.server.pid)
        self.server.pass_on(signal.SIGCONT, everyone=True)

    def _view(self) -> None:
        now = time.monotonic()
        if self.watch.ready_s is None and now - self.viewed >= VIEW_S:
            self.viewed = now
            self.screen.view(self.watch.view())

    def _keep_events(self) -> None:
        events = list(self.watch.events())
        if events:
            self.folder.add_events(events)

    def _save(self) -> None:
        with suppress(StoreError):
            self.folder.write(self.record)

    # when it is over

    def _end(self) -> Ended:
        """Nothing of it is left after this, or what is left is told."""
        grace = AFTER_S if self.signals.got or self.outcome == "doomed" else min(AFTER_S, self.asked.grace_s)
        grace = 0.0 if self.signals.insisted or self._out_of_time() else grace
        ended = self.server.stop(grace)
        if self.container is not None:
            tool = (
                [*remote.prefix(self.asked.host), *self.container.tool]
                if self.asked.host
                else self.container.tool
            )
            try:
                containers.end(tool, self.record.id, grace)
            except UllageError as error:
                self.screen.say(error.line)
        self.terminal.take_back()
        self.sampler.stop()
        self.screen.view(None)
        return ended

    def _out_of_time(self) -> bool:
        return self.asked_at is not None and time.monotonic() - self.asked_at > self.asked.grace_s

    def _finish(self, code: int | None, ended: Ended) -> Result:
        self._watch_rest()
        code = code if code is not None else self.server.wait(1.0)
        shown = 128 - code if code is not None and code < 0 else code
        diagnosis = self._diagnose()
        end = self._ending(shown, diagnosis)
        outcome = outcome_of(end)
        notes = tuple(notes_of(end, outcome, ended, self.server.log_fault))
        for note in notes:
            self.screen.say(note)
        self.record = replace(
            self.record, outcome=outcome, exit_code=shown, ended_at=time.time(), notes=notes,
            why=self.why or (diagnosis.summary if diagnosis and outcome in ("crashed", "hang") else ""),
            stages=dict(self.watch.began),
            version=(diagnosis.version if diagnosis else None) or self.record.version,
            engine=(diagnosis.engine if diagnosis else None) or self.record.engine,
            diagnosis=self.screen.why_object(diagnosis) if diagnosis else None,
            observed={n: r.value.value for n, r in diagnosis.observed.items()} if diagnosis else {},
            labels={**self.record.labels, **({"left": "yes"} if ended.left else {})},
        )  # fmt: skip
        if self.replanned is not None:
            self.screen.planned(self.replanned)
        elif diagnosis is not None and outcome in ("crashed", "hang"):
            self.screen.diagnosed(diagnosis)
        try:
            self.folder.write(self.record)
        except StoreError as error:
            self.screen.say(error.line)
        self.folder.unlock()
        return Result(
            self.record, WILL_NOT if outcome == "doomed" else shown if shown is not None else 137, diagnosis
        )

    def _watch_rest(self) -> None:
        try:
            self.watch.close()
            self._keep_events()
        except Exception as error:
            self.screen.say(f"the end of the log was not followed, a fault of ullage: {error!r}")

    def _ending(self, code: int | None, diagnosis: Diagnosis | None) -> Ending:
        host, after = self.asked.host, oom.kills()
        lost = host is not None and remote.lost(code) and self.signals.got is None
        killed = after - self.oom if after is not None and self.oom is not None else 0
        there = remote.end(host, self.record.id) if lost and host else None
        return Ending(
            code=code, decided=self.outcome, asked=self.signals.got is not None, typed=self.terminal.held,
            ready=self.watch.ready_s is not None, hung=self.hung,
            diagnosed=diagnosis.outcome if diagnosis else None, lost=host if lost else None, there=there,
            oom_kills=killed,
        )  # fmt: skip

    def _diagnose(self) -> Diagnosis | None:
        """What ``ullage why`` says of the log."""
        gpu = self.asked.plan.gpu if self.asked.plan.gpu and ":" not in self.asked.plan.gpu else None
        command = self.asked.launching.text if self.known.launch is not None else None
        try:
            return why([str(self.folder.log)], asked=WhyAsked(
                command, gpu, self.asked.plan.version, self.asked.plan.model_dir, self.asked.plan.readings,
            ))  # fmt: skip
        except UllageError as error:
            self.screen.say(error.line)
        except Exception as error:
            self.screen.say(f"no diagnosis, a fault of ullage: {error!r}")
        return None
