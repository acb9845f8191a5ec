"""What an engine promises. Nothing above this package names an engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec import Struct

from ullage.core.deployment import Budget, Deployment, Inferred, Interval, Reading
from ullage.core.finding import Case, CauseText, Finding, Hazard
from ullage.core.launch import Arg, Launch
from ullage.core.machine import Machine
from ullage.core.model import Model
from ullage.core.problem import Problem
from ullage.core.run import Line, Phase, Run

#: the text of a file by its name
Files = Callable[[str], str]


class Hints(Struct, frozen=True):
    """What a person says beside the log. The log wins where they disagree; the disagreement is reported."""

    launch: Launch | None = None
    machine: Machine | None = None
    version: str | None = None
    model: Model | None = None


class Candidate(Struct, frozen=True):
    """A change of settings (the engine's names) that may help, before any formula has agreed to it. ``why``
    says what it costs or gives."""

    settings: dict[str, str | int | float | bool]
    why: str


class Refusal(Struct, frozen=True):
    """Why an engine refuses a launch whatever memory there is: the phase, the cause's id, a sentence."""

    phase: Phase
    cause: str
    text: str


class Cause(Protocol):
    """One fault that can stop a server. ``test`` is a pure function of the case; it returns None where the
    case does not show this fault, and never raises."""

    @property
    def id(self) -> str: ...
    @property
    def text(self) -> CauseText: ...
    def test(self, case: Case) -> Finding | None: ...


class Reader(Protocol):
    """Reads a log line by line; never raises on any text."""

    def feed(self, line: Line) -> None: ...
    def so_far(self) -> Run:
        """The run that is being read, as far as it has come; feeding goes on."""
        ...

    def finish(self) -> list[Run]:
        """The runs that the log holds, oldest first. Runs without events: not this engine's log."""
        ...


class Engine(Protocol):
    """An inference engine: how its commands are read, what its logs mean, how it budgets memory.

    Every method is a function of its arguments; none does I/O beyond the package's own data files.
    """

    name: str
    #: the setting that bounds the memory, spelled as the engine spells it
    fraction: str

    def owns_command(self, argv: Sequence[str]) -> bool:
        """True if ``argv`` starts this engine."""
        ...

    def parse(self, command: str, version: str | None, files: Files | None = None) -> Launch:
        """The launch behind a command as pasted. Raises CommandError where it cannot be read at all; an
        unknown flag is no error but goes to ``Launch.unknown``. ``files`` reads a file that the command names
        (``--config``)."""
        ...

    def problems(self, launch: Launch, files: Files | None = None) -> list[Problem]:
        """What is wrong with the flags of a launch, in the order of the command."""
        ...

    def literals(self) -> Sequence[bytes]:
        """Every phrase whose line must not be skipped in a large log."""
        ...

    def reader(self) -> Reader:
        """A new reader of this engine's logs."""
        ...

    def deployment(self, run: Run, hints: Hints) -> Deployment:
        """Launch, model, machine and readings of a run, as far as the log and the hints tell."""
        ...

    def observed(self, run: Run) -> dict[str, Reading]:
        """The figures that the log shows, by their names of cases/README: each as the first rank prints it;
        the draft worker's with "draft_" in front."""
        ...

    def disagreements(self, run: Run, hints: Hints) -> list[str]:
        """Where the hints contradict the log, one sentence each; the log wins."""
        ...

    def budget(self, deployment: Deployment) -> Budget:
        """The engine's own arithmetic, readings first, rules where there is no reading.

        The pool is computed from the inputs (free memory, weights, fraction, bytes per token); figures that
        are a result (``kv_gib``, ``kv_tokens``) only serve where the inputs are missing. A reading
        ``bytes_per_token`` (a band: value and step) is honoured, so that a change can be checked with it.
        """
        ...

    def infer(self, run: Run, deployment: Deployment) -> dict[str, Inferred]:
        """What the log does not say but its figures imply: fraction, total, weights, bytes per token, ..."""
        ...

    def contradictions(self, run: Run, deployment: Deployment) -> list[str]:
        """Observed figures that cannot all be true, one sentence each with the numbers and their lines."""
        ...

    def interval(self, run: Run | None, deployment: Deployment) -> Interval | None:
        """The values of the fraction that start, from both sides."""
        ...

    def effective(self, deployment: Deployment) -> dict[str, Arg]:
        """The settings that decide, as the release resolves them: given, its default, or worked out."""
        ...

    def refusals(self, deployment: Deployment) -> Sequence[Refusal]:
        """What the engine would refuse before any memory is counted: sizes that do not divide, lengths beyond
        the model's."""
        ...

    def candidates(self, deployment: Deployment, interval: Interval | None) -> Sequence[Candidate]:
        """Changes worth planning again, the least intrusive first; ``interval`` is that of the deployment."""
        ...

    def warnings(self, deployment: Deployment) -> list[Hazard]:
        """What is known to go wrong, or to be lost, with the launch on its machine, by dated rows with sources
        (compat.toml); those that stop it come first. What ``refusals`` already says is not said again."""
        ...

    def causes(self) -> Sequence[Cause]:
        """Every cause of this engine, those of engines/runtime included."""
        ...
