"""Acceptance from what a server printed or exported, in the meaning of its release."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import sqrt

from packaging.version import Version

from ullage.core.errors import InputError
from ullage.core.run import Run, Served
from ullage.spec.acceptance import Acceptance, Where, Width, meaning, of_length, of_positions, to_length
from ullage.spec.prometheus import Scrape

_POSITIONS = re.compile(r"[Pp]er-position acceptance rate: ([\d., ]{3,400})")
_NORMAL = 1.645


def of_rate(
    rate: float, engine: str, release: Version | None, width: Width, source: str, where: Where = "log"
) -> Acceptance:
    """Acceptance from a rate in the meaning of the engine's release. Raises InputError where it prints none."""
    if rate > 1:
        rate /= 100.0
    row = meaning(engine, "rate", release, where)
    if row is None:
        raise InputError(f"this release of {engine} states no acceptance rate", where=source)
    length = to_length(rate, row, width)
    return of_length(length, width, f"{source}: {rate:g} in the meaning of {row.source}")


def of_run(run: Run, width: Width) -> Acceptance | None:
    """Acceptance of a run by its statistics lines; None where they show none. The mean over the lines, with the
    limits of that mean; per position where the engine prints it."""
    served = [event for event in run.all(Served) if event.acceptance_length is not None]
    if not served or run.engine is None:
        return None
    row = meaning(run.engine, "length", _release(run))
    lengths = [to_length(event.acceptance_length or 0.0, row, width) if row else 0.0 for event in served]
    lengths = [length for length in lengths if 1 <= length <= width.steps + 1]
    if not lengths:
        return None
    mean, half = _mean(lengths)
    lines = (
        f"{served[0].source} and {len(served) - 1} lines like it" if len(served) > 1 else str(served[0].source)
    )
    rates = _positions([event.text for event in served], width.steps)
    if rates:
        found = of_positions(rates, width, lines)
        return Acceptance(
            mean, max(1.0, mean - half), min(width.steps + 1, mean + half), width, lines, found.positions
        )
    return of_length(mean, width, lines, (mean - half, mean + half))


def _release(run: Run) -> Version | None:
    from ullage.core.versions import parse_release

    return parse_release(run.version)


def _mean(values: Sequence[float]) -> tuple[float, float]:
    """(mean, half of its 90 % band)."""
    mean = sum(values) / len(values)
    if len(values) < 2:
        return mean, 0.05 * (mean - 1)
    deviation = sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))
    return mean, _NORMAL * deviation / sqrt(len(values))


def _positions(texts: Sequence[str], depth: int) -> tuple[float, ...]:
    """Mean rates per position over the lines; () where they are not printed, or not falling."""
    rows = []
    for text in texts:
        match = _POSITIONS.search(text)
        words = [word.strip() for word in match[1].split(",")] if match else []
        values = [float(word) for word in words if re.fullmatch(r"\d(?:\.\d+)?", word)]
        if values and len(values) >= depth:
            rows.append(values[:depth])
    if not rows:
        return ()
    means = [min(1.0, sum(column) / len(rows)) for column in zip(*rows, strict=True)]
    for index in range(1, len(means)):
        means[index] = min(means[index], means[index - 1])
    return tuple(means)


def of_scrape(scrape: Scrape, width: Width, release: Version | None, source: str) -> Acceptance:
    """Acceptance from counters (accepted / drafts, and per position) or gauges. Raises InputError where neither
    says it."""
    drafts = scrape.counters.get("spec_decode_num_drafts", 0.0)
    if drafts > 0:
        return _of_counters(scrape, drafts, width, source)
    length = scrape.gauge("spec_accept_length")
    if length is not None:
        return of_length(min(length, width.steps + 1), width, source)
    rate = scrape.gauge("spec_accept_rate")
    if rate is not None and scrape.engine is not None:
        return of_rate(rate, scrape.engine, release, width, source)
    raise InputError("no drafts are counted yet", where=source, hint="scrape again under load")


def _of_counters(scrape: Scrape, drafts: float, width: Width, source: str) -> Acceptance:
    found = [scrape.positions[at] / drafts for at in sorted(scrape.positions)]
    if found:
        rates = [min(1.0, max(0.0, rate)) for rate in found[:64]]
        for index in range(1, len(rates)):
            rates[index] = min(rates[index], rates[index - 1])
        return of_positions(rates, width, source)
    accepted = scrape.counters.get("spec_decode_num_accepted_tokens", 0.0)
    return of_length(1 + accepted / drafts, width, source)
