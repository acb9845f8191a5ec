"""`ullage check`: what is known of a machine, and what of it stops, slows or is worth knowing.

facts.py       the saved outputs -> Facts: devices, cards, links, host, environment
findings.toml  every finding: its severity, sentence, remedy and source
gpus.py links.py host.py software.py pairs.py   the rules: Facts -> findings
pairs.toml     combinations that are known to fail, as dated rows
"""

from __future__ import annotations

from ullage.hardware.check.facts import Facts, facts
from ullage.hardware.check.finding import SEVERITIES, CheckFinding, Severity, ordered

__all__ = ["SEVERITIES", "CheckFinding", "Facts", "Severity", "facts", "findings"]


def findings(known: Facts) -> tuple[CheckFinding, ...]:
    """Everything that the rules find, the gravest first; each id once."""
    from ullage.hardware.check import cards, gpus, host, kernel, links, memory, pairs, software

    rules = (
        gpus.rules,
        memory.rules,
        cards.rules,
        links.rules,
        host.rules,
        kernel.rules,
        software.rules,
        pairs.rules,
    )
    return ordered(finding for rule in rules for finding in rule(known))
