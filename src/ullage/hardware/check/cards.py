"""Each card's PCIe link, clocks and power: what it could do, and what it does now."""

from __future__ import annotations

from collections.abc import Iterator

from ullage.core.finding import Evidence
from ullage.hardware.card import Card
from ullage.hardware.check.facts import Facts
from ullage.hardware.check.finding import CheckFinding, say
from ullage.hardware.check.gpus import numbers, quote

#: a power limit below this share of the default costs speed
POWER_SHARE = 0.9
_LINK = "pci/gpu link info/"
_WORKING = ("P0", "P1", "P2")
_LOWERS = ("hw slowdown", "hw thermal slowdown", "hw power brake slowdown", "sw thermal slowdown")


def rules(known: Facts) -> Iterator[CheckFinding]:
    for rule in (_width, _generation, _bar1, _clocks, _counters, _power):
        yield from rule(known)


def _width(known: Facts) -> Iterator[CheckFinding]:
    devices = [d for d in known.devices if d.pcie_width and d.pcie_width_max]
    narrow = [d for d in devices if (d.pcie_width or 0) < (d.pcie_width_max or 0) and not shares_memory(known)]
    if narrow:
        one = narrow[0]
        effect = (
            "all-reduces and loading pay for it"
            if len(known.devices) > 1
            else "only loading pays for it with one GPU"
        )
        lines: list[Evidence | None] = [
            quote(known, said)
            for card in known.cards
            if card.index in [d.index for d in narrow]
            if (said := card.first(f"{_LINK}link width/current")) is not None
        ]
        yield say(
            "pcie-width",
            *(lines or [known.outputs.of("gpus").find(f"{one.index}, ")]),
            now=one.pcie_width,
            gpus=numbers(d.index for d in narrow),
            most=one.pcie_width_max,
            effect=effect,
            severity="slows" if len(known.devices) > 1 else "worth knowing",
        )
    slots: dict[str, list[int]] = {}
    for device in devices:
        slots.setdefault(f"generation {device.pcie_generation or '?'} x{device.pcie_width_max}", []).append(
            device.index
        )
    if len(slots) > 1:
        yield say(
            "pcie-differs", kinds="; ".join(f"{numbers(gpus)} {kind}" for kind, gpus in sorted(slots.items()))
        )


def shares_memory(known: Facts) -> bool:
    """A GPU on the host's own die has no slot: what it prints of PCIe means nothing."""
    return known.machine is not None and known.machine.gpu is not None and known.machine.gpu.unified_memory


def _generation(known: Facts) -> Iterator[CheckFinding]:
    if shares_memory(known):
        return
    slots = [
        (card, most, host)
        for card in known.cards
        if (most := card.number(f"{_LINK}pcie generation/device max"))
        and (host := card.number(f"{_LINK}pcie generation/host max"))
        and host < most
    ]
    if slots:
        card, most, host = slots[0]
        said = card.first(f"{_LINK}pcie generation/host max")
        yield say(
            "pcie-generation",
            quote(known, said) if said else None,
            gpus=numbers(c.index for c, _, _ in slots),
            most=int(most),
            host=int(host),
            severity="slows" if len(known.devices) > 1 else "worth knowing",
        )
    slow = [card for card in known.cards if _runs_slow(card)]
    if slow:
        now, most_said = (slow[0].first(f"{_LINK}pcie generation/{n}") for n in ("current", "max"))
        yield say(
            "pcie-generation-now",
            quote(known, now) if now else None,
            gpus=numbers(c.index for c in slow),
            now=now.text if now else "?",
            most=most_said.text if most_said else "?",
        )


def _runs_slow(card: Card) -> bool:
    """At rest a link sleeps at generation 1, so only a card that works counts."""
    state, busy = card.first("performance state"), card.number("utilization/gpu") or 0
    now, most = card.number(f"{_LINK}pcie generation/current"), card.number(f"{_LINK}pcie generation/max")
    return state is not None and state.text in _WORKING and busy >= 10 and bool(now and most and now < most)


def _bar1(known: Facts) -> Iterator[CheckFinding]:
    small = [
        (card, size)
        for card in known.cards
        if (size := card.number("bar1 memory usage/total"))
        and size <= 256
        and (card.number("fb memory usage/total") or 0) > 4096
    ]
    if small and len(known.devices) > 1 and not known.host.wsl:
        said = small[0][0].first("bar1 memory usage/total")
        yield say(
            "bar1-small",
            quote(known, said) if said else None,
            gpus=numbers(c.index for c, _ in small),
            size=f"{small[0][1]:.0f} MiB",
        )


def _clocks(known: Facts) -> Iterator[CheckFinding]:
    found = [(card, name, said) for card in known.cards for name, said in card.active() if name in _LOWERS]
    if found:
        reasons = ", ".join(dict.fromkeys(name.replace("hw ", "").replace("sw ", "") for _, name, _ in found))
        yield say(
            "clocks-lowered",
            *(quote(known, said) for _, _, said in found[:2]),
            gpus=numbers(card.index for card, _, _ in found),
            reasons=reasons,
        )


def _counters(known: Facts) -> Iterator[CheckFinding]:
    names = ("hw thermal slowdown", "hw power braking", "sw thermal slowdown")
    found = [
        (card, name, said)
        for card in known.cards
        for name in names
        if (said := card.first(f"clocks event reasons counters/{name}")) is not None
        and (said.number or 0) > 1e6
    ]
    if found:
        reasons = ", ".join(
            dict.fromkeys(f"{name} {(said.number or 0) / 1e6:.0f} s" for _, name, said in found[:3])
        )
        yield say(
            "clocks-were-lowered",
            *(quote(known, said) for _, _, said in found[:2]),
            gpus=numbers(card.index for card, _, _ in found),
            reasons=reasons,
        )


def _power(known: Facts) -> Iterator[CheckFinding]:
    heads = ("gpu power readings/", "power readings/")
    low = []
    for card in known.cards:
        now = card.first(
            *(f"{head}current power limit" for head in heads), *(f"{head}power limit" for head in heads)
        )
        usual = card.number(*(f"{head}default power limit" for head in heads))
        if now is not None and now.number and usual and now.number < POWER_SHARE * usual:
            low.append((card, now, usual))
    if low:
        _, said, usual = low[0]
        share = f"{(said.number or 0) / usual:.0%}"
        yield say(
            "power-limit-low",
            quote(known, said),
            gpus=numbers(c.index for c, _, _ in low),
            now=f"{said.number:.0f}",
            usual=f"{usual:.0f}",
            usual_whole=int(usual),
            share=share,
        )
