"""One experiment, here or on a host over ssh: build, start, wait until it is ready, load it, end it, see that
all is free."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ullage.core.errors import InputError, UllageError
from ullage.core.secrets import HIDDEN, masked
from ullage.lab import containers, facts, gpu_samples, processes, records, remote
from ullage.lab import endpoint as endpoints
from ullage.lab.campaign import benchmark, child, explain, far, gpu_sets
from ullage.lab.campaign.benchmark import Point
from ullage.lab.campaign.experiment import Stage, Told
from ullage.lab.campaign.job import Given, Job, Stop, Tell
from ullage.lab.gpu_samples import Sampler
from ullage.lab.records import Folder, Record, Store
from ullage.lab.remote import RemoteServer
from ullage.lab.server import Server, Start, secrets_of
from ullage.lab.watch import Watch
from ullage.planning.plan import engine_of

#: seconds for the first real request, which may compile something
ANSWER_S = 120.0
#: seconds that a port of an earlier server may still be held
PORT_S = 10.0


class Crashed(Exception):
    """The experiment failed: why, and whether the server's log can say more."""

    def __init__(self, why: str, *, diagnose: bool = True) -> None:
        self.why, self.diagnose = why, diagnose
        super().__init__(why)


class Stopped(Exception):
    """Somebody asked to end."""


class Lost(Exception):
    """The machine of the experiment cannot be reached any more: nobody's fault of what was tried."""


class Seams(Struct, frozen=True):
    """What reaches the machine beyond processes: asked once per experiment, replaced in tests."""

    ask_gpus: gpu_sets.Ask = gpu_samples.ask


def perform(job: Job, tell: Tell, stop: Stop, seams: Seams | None = None) -> Given:
    """Run ``job``. Whatever happens, nothing of it is left running when this returns or raises."""
    seams = seams or Seams()
    before = gpu_sets.used(seams.ask_gpus()) if job.host is None else {}
    began = time.time()
    run = _Run(job, tell, stop)
    try:
        given = run.through()
    finally:
        unclean = run.end()
    busy = gpu_sets.wait_free(seams.ask_gpus, before, job.gpus, job.seconds.free) if before else []
    took = round(time.time() - began, 3)
    given = replace(given, took_s=took, notes=tuple(run.notes), unclean="; ".join([*unclean, *busy]))
    run.finish(given)
    return given


class _Run:
    """An experiment while it goes on."""

    def __init__(self, job: Job, tell: Tell, stop: Stop) -> None:
        self.job, self._tell, self.stop = job, tell, stop
        self.steps: list[tuple[Stage, float]] = []
        self.repeats: list[dict[str, float]] = []
        self.notes: list[str] = []
        self.server: Server | None = None
        self.ready_s: float | None = None
        self.middle: list[float] = []
        self.load_s: float | None = None
        self.folder: Folder | None = None
        self.record = Record(id=records.new_id(), name="", command="")
        self.env = _environment(job)
        self.launch = engine_of(job.command.text).parse(job.command.text, job.version)
        self.endpoint = endpoints.of_launch(self.launch, self.env)
        self.container: containers.Container | None = None
        self.sampler: Sampler | None = None

    def tell(self, stage: Stage) -> None:
        self.steps.append((stage, time.time()))
        self._tell(stage, self.name)

    @property
    def name(self) -> str:
        return self.folder.name if self.folder else ""

    def through(self) -> Given:
        """Every step; what it gave."""
        try:
            self._open()
            self.tell("starting")
            self._build()
            self._start()
            self.tell("measuring")
            self._measure()
            return self._given("done")
        except Stopped:
            return self._given("stopped", "stopped before it was done")
        except Lost:
            return self._given("lost", f"the connection to {self.job.host} was lost")
        except Crashed as crash:
            told = self._diagnosis() if crash.diagnose else None
            return replace(self._given("crashed", crash.why), told=told)
        except InputError as error:
            return self._given("crashed", error.line)

    def _given(self, end: Any, why: str = "") -> Given:
        middle = sum(self.middle) / len(self.middle) if self.middle else None
        return Given(
            end=end, run=self.name, repeats=tuple(self.repeats), measured_at=middle, ready_s=self.ready_s,
            place=self.job.host or os.uname().nodename, why=masked(why), notes=tuple(self.notes),
            steps=tuple(self.steps),
        )  # fmt: skip

    def _open(self) -> None:
        """The run's record, before anything of it exists."""
        job = self.job
        self.folder = Store(Path(job.root) if job.root else None).create(
            _slug(f"{job.campaign}-{job.experiment}")
        )
        self.record = Record(
            id=self.record.id, name=self.folder.name, command=masked(job.command.text),
            engine=self.launch.engine,
            version=self.launch.version, cwd=str(Path.cwd()), created_at=time.time(),
            environment=facts.kept_environment(self.env, job.command.env),
            where=f"ssh:{job.host}" if job.host else "here",
            command_key=facts.key(masked(job.command.text), "here" if job.host is None else f"ssh:{job.host}"),
            versions=facts.versions(job.command.words, bool(job.host)),
            hardware=facts.hardware(None, here=not job.host),
            labels={"campaign": job.campaign, "experiment": job.experiment, "attempt": str(job.attempt)},
        )  # fmt: skip
        self.folder.keep_traces(processes.traces(self.record.id))
        self.folder.write(self.record)

    def _build(self) -> None:
        if self.job.command.build is None:
            return
        words = ("/bin/sh", "-c", self.job.command.build)
        done = self._beside(words, self.env, self.job.seconds.build, self._asked)
        self._file("build.log", done.text)
        if done.how == "stopped":
            raise Stopped
        if done.how == "timeout":
            raise Crashed(f"the build did not end within {self.job.seconds.build:.0f} s", diagnose=False)
        if done.code:
            raise Crashed(f"the build failed: {benchmark.failed(words, done.code, done.text)}", diagnose=False)

    def _start(self) -> None:
        watch = Watch()
        self._port_free()
        self.server = self._hosted(watch)
        watch.begin()
        self.server.start()
        self.sampler = Sampler(self.folder.gpu_samples) if self.job.host is None and self.folder else None
        if self.sampler is not None:
            self.sampler.start()
        self.record = replace(self.record, started_at=self.server.started_at)
        began = time.monotonic()
        waited = self.server.wait_ready(self.job.seconds.start, lambda: self._early(watch))
        self.ready_s = round(time.monotonic() - began, 3) if waited == "ready" else None
        watch.closed = True
        if waited == "exited":
            raise self._ended("before it was ready")
        if waited == "timeout":
            raise Crashed(f"the server was not ready within {self.job.seconds.start:.0f} s")
        if waited == "stopped":
            if watch.doom is not None and not self._asked():
                raise Crashed(f"stopped early, it could not succeed: {watch.doom.text}")
            raise Stopped
        self._answers()

    def _hosted(self, watch: Watch) -> Server:
        """The server, here, in a container or on the job's host."""
        assert self.folder is not None
        words, command = self.job.command.words, self.job.command
        hidden = secrets_of(words, self.env)
        if self.job.host is not None:
            start = Start(words, _own_environment(self.job), secrets=hidden)
            return RemoteServer(
                self.job.host, start, self.record.id, self.folder.log, self.endpoint,
                feed=watch.feed, keep=self.folder.keep_traces, grace_s=self.job.seconds.stop,
            )  # fmt: skip
        if command.contained:
            self.container = containers.of_command(words, self.record.id)
        if self.container is not None:
            words, self.endpoint = self.container.argv, self.container.endpoint(self.endpoint)
            self.record = replace(self.record, container=shlex.join(self.container.tool))
            self.folder.write(self.record)
        return Server(Start(words, self.env, secrets=hidden), self.record.id, self.folder.log, self.endpoint,
                      feed=watch.feed, keep=self.folder.keep_traces)  # fmt: skip

    def _ended(self, when: str) -> Exception:
        """What it means that the server is gone."""
        code = self._server().poll()
        if self.job.host is not None and remote.lost(code):
            return Lost()
        how = f"was ended by signal {-code}" if code is not None and code < 0 else f"ended with code {code}"
        return Crashed(f"the server {how} {when}")

    def _beside(self, words: Sequence[str], env: Mapping[str, str], timeout_s: float, watch: Callable[[], bool],
                cwd: str | None = None) -> child.Ran:  # fmt: skip
        """A command run to its end where the server is."""
        if self.job.host is None:
            return child.run(words, env, self.record.id, timeout_s, watch, cwd)
        assert self.folder is not None
        own = {name: value for name, value in env.items() if os.environ.get(name) != value}
        return far.run(self.job.host, words, own, self.record.id, self.folder.path, timeout_s, watch)

    def _early(self, watch: Watch) -> bool:
        watch.step()
        return self._asked() or watch.doom is not None

    def _asked(self) -> bool:
        return self.stop() > 0

    def _port_free(self) -> None:
        """Another server's port is let go, or it is said who has it."""
        if self.endpoint is None or self.endpoint.unix_socket or self.job.host is not None:
            return
        until = time.monotonic() + PORT_S
        while not processes.port_free(self.endpoint.port):
            if time.monotonic() >= until or self._asked():
                raise Crashed(f"port {self.endpoint.port} is in use by another process", diagnose=False)
            time.sleep(0.2)

    def _answers(self) -> None:
        """A health route says little: one real request must be answered."""
        assert self.server is not None
        said = _patiently(
            lambda: self._server().answers(min(ANSWER_S, self.job.seconds.benchmark)), self._asked
        )
        if said is not None:
            if self._asked():
                raise Stopped
            raise Crashed(f"the server says that it is ready, and answers no request: {said}")

    def _server(self) -> Server:
        assert self.server is not None
        return self.server

    def _measure(self) -> None:
        where = self.endpoint
        if where is None:
            raise Crashed("the launch opens no port to load", diagnose=False)
        target = benchmark.point(self.launch, where.host, where.port)
        for i in range(-self.job.benchmark.warmup, self.job.repeats):
            found = self._once(target, i)
            if i >= 0:
                self.repeats.append(found)

    def _once(self, target: Point, index: int) -> dict[str, float]:
        assert self.folder is not None
        name = f"benchmark-{index + 1}" if index >= 0 else f"warmup-{-index}"
        folder = str(self.folder.path) if self.job.host is None else f"{far.FOLDER}/{self.record.id}"
        load = benchmark.load(self.job.benchmark, self.job.command, target, f"{folder}/{name}.json")
        env = {**self.env, **{k: str(v) for k, v in self.job.benchmark.env.items() if v is not None}}
        words = (
            load.words
            if self.job.host is None or load.result is None
            else far.with_result(load.words, load.result)
        )
        began = time.time()
        try:
            done = self._beside(words, env, self.job.seconds.benchmark, self._gone, folder)
        except InputError as error:
            raise Crashed(f"the benchmark {error.line}", diagnose=False) from None
        self._file(f"{name}.log", done.text)
        if index >= 0:
            self.middle.append((began + time.time()) / 2)
            self.load_s = done.took_s
        return self._figures(load, done)

    def _figures(self, load: benchmark.Load, done: child.Ran) -> dict[str, float]:
        if self._asked():
            raise Stopped
        if self._server().poll() is not None:
            raise self._ended("under load")
        if done.how == "timeout":
            raise Crashed(f"the benchmark did not end within {self.job.seconds.benchmark:.0f} s")
        text, written = done.text, None
        if load.result is not None:
            text, written = (
                (done.text, _read(Path(load.result))) if self.job.host is None else far.result_of(done.text)
            )
        if done.code:
            raise Crashed(f"the benchmark failed: {benchmark.failed(load.words, done.code, text)}")
        if load.result is not None and not written:
            raise Crashed(f"the benchmark wrote no result: {benchmark.failed(load.words, 0, text)}")
        try:
            found = benchmark.read(self.job.benchmark, text, written)
        except InputError as error:
            raise Crashed(error.line) from None
        missing = [name for name in self.job.metrics if name not in found]
        if missing:
            raise Crashed(f"the benchmark's result has no {', '.join(missing)}", diagnose=False)
        return found

    def _gone(self) -> bool:
        return self._asked() or self._server().poll() is not None

    def _file(self, name: str, text: str) -> None:
        """Something beside the record; a full disk loses it, no more."""
        if self.folder is not None and text:
            for secret in secrets_of(self.job.command.words, self.env):
                text = text.replace(secret, HIDDEN)
            with suppress(OSError):
                (self.folder.path / name).write_text(masked(text[-(1 << 20) :]))

    def _diagnosis(self) -> Told | None:
        """What the server's log says of the failure, once the server has ended."""
        if self.server is None or self.folder is None:
            return None
        self._stop()
        return explain.diagnosis(self.folder.log, self.job)

    def _stop(self) -> list[str]:
        """End the server; what could not be freed."""
        if self.server is None:
            return []
        grace = 0.5 if self.stop() > 1 else self.job.seconds.stop
        unclean = self._contained(grace)
        ended = self.server.stop(grace)
        if ended.killed:
            self.notes.append(f"{len(ended.killed)} processes did not end when asked and were killed")
        left = [f"process {process.pid} could not be ended" for process in ended.left]
        return [*unclean, *left, *(f"port {port} is still held" for port in ended.ports_held)]

    def _contained(self, grace_s: float) -> list[str]:
        """End the container: its processes are not ours."""
        container, self.container = self.container, None
        if container is None:
            return []
        try:
            containers.end(container.tool, self.record.id, grace_s)
        except UllageError as error:
            return [error.line]
        return []

    def end(self) -> list[str]:
        """Whatever happened: the server is ended."""
        if self.sampler is not None:
            self.sampler.stop()
        return list(dict.fromkeys(self._stop()))

    def finish(self, given: Given) -> None:
        """The run's record, complete."""
        if self.folder is None:
            return
        code = self.server.poll() if self.server else None
        outcome: records.Outcome = "crashed" if given.end == "crashed" else "stopped"
        with suppress(UllageError):  # a full disk: what counts is kept by the campaign
            self.folder.write(replace(
                self.record, outcome=outcome, ready_s=given.ready_s, ended_at=time.time(), why=given.why,
                exit_code=128 - code if code is not None and code < 0 else code, notes=given.notes,
                labels={**self.record.labels, "left": "yes" if given.unclean else "no",
                        **({"load_s": f"{self.load_s:.3f}"} if self.load_s is not None else {})},
            ))  # fmt: skip
        self.folder.unlock()


def _environment(job: Job) -> dict[str, str]:
    """This process's environment with the launch's own, and the GPUs that it may see."""
    env = {name: value for name, value in os.environ.items() if name not in job.command.env}
    return {**env, **_own_environment(job)}


def _own_environment(job: Job) -> dict[str, str]:
    """The variables of the launch itself, and the GPUs that it may see."""
    env = {name: value for name, value in job.command.env.items() if value is not None}
    if job.gpus is not None and not job.command.contained:
        env["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, job.gpus))
    return env


def _patiently(ask: Callable[[], str | None], stop: Callable[[], bool]) -> str | None:
    """``ask`` in a thread of its own, so that a signal does not wait for its answer."""
    import threading

    found: list[str | None] = []
    thread = threading.Thread(target=lambda: found.append(ask()), daemon=True)
    thread.start()
    while thread.is_alive() and not stop():
        thread.join(0.1)
    return found[0] if found else "it was stopped"


def _read(path: Path) -> str | None:
    try:
        with path.open("rb") as stream:
            return stream.read(benchmark.MOST_BYTES).decode("utf-8", "replace")
    except OSError:
        return None


def _slug(text: str) -> str:
    return text.replace("/", "-")[:40]
