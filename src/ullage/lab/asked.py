"""What ``ullage run`` is asked, who shows it, and what comes out."""

from __future__ import annotations

from typing import Any, Protocol

from msgspec import Struct

from ullage.core.report import Diagnosis, Plan
from ullage.lab.health import Hang
from ullage.lab.launching import Launching
from ullage.lab.records import Record
from ullage.lab.view import View
from ullage.planning.plan import Asked as PlanAsked

#: exit code of a launch that was refused, or stopped because it was doomed
WILL_NOT = 1


class Asked(Struct, frozen=True):
    """What a person asks. ``plan`` is as for ``ullage plan``; ``host``: run it there, over ssh."""

    launching: Launching
    plan: PlanAsked
    host: str | None = None
    name: str | None = None
    keep_going: bool = False
    preflight: bool = True
    request: bool = False
    hang_after_s: float = 300.0
    grace_s: float = 30.0
    separate: bool = False
    stdin: int | None = None


class Screen(Protocol):
    """Who shows it. ``show`` gets the server's output unchanged and is called from another thread."""

    def say(self, text: str) -> None: ...
    def planned(self, plan: Plan) -> None: ...
    def show(self, stream: int, data: bytes) -> None: ...
    def view(self, view: View | None) -> None: ...
    def hang(self, found: Hang) -> None: ...
    def diagnosed(self, found: Diagnosis) -> None: ...
    def plan_object(self, plan: Plan) -> dict[str, Any]: ...
    def why_object(self, found: Diagnosis) -> dict[str, Any]: ...


class Result(Struct, frozen=True):
    """``code`` is what ullage exits with."""

    record: Record
    code: int
    diagnosis: Diagnosis | None = None
