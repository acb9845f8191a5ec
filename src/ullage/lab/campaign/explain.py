"""Why a server failed, in short, for the record of a campaign."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ullage.core.errors import UllageError
from ullage.core.secrets import masked
from ullage.lab.campaign.experiment import Told
from ullage.lab.campaign.job import Job


def diagnosis(log: Path, job: Job) -> Told | None:
    """Why the server of ``log`` failed; None where its log tells nothing."""
    from ullage.diagnose.why import Asked, why

    try:
        found = why([str(log)], asked=Asked(job.command.text, job.gpu, job.version))
    except UllageError:
        return None
    if found.cause in (None, "none") and found.outcome not in ("crashed", "hang"):
        return None
    return Told(
        found.cause, found.certainty, masked(found.summary)[:600], found.phase,
        tuple(f"line {e.line}: {masked(e.text)}"[:300] for e in found.evidence[:3]),
        tuple(_change(c.change, c.why) for c in found.fixes[:3]),
    )  # fmt: skip


def _change(change: dict[str, Any], why: str) -> str:
    words = " ".join(f"{name} {value}" for name, value in change.items())
    return masked(f"{words}: {why}" if words else why)[:300]
