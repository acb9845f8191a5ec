"""GPUs: present, whole, alike, and open to more than one process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from ullage.core.finding import Evidence
from ullage.core.units import gib_text
from ullage.hardware.card import Card, Said
from ullage.hardware.check.facts import Facts
from ullage.hardware.check.finding import CheckFinding, say


def rules(known: Facts) -> Iterator[CheckFinding]:
    for rule in (_absent, _on_bus, _lost, _reset, _remap, _errors, _alike, _mode, _persistence):
        yield from rule(known)


def numbers(indices: Iterable[int]) -> str:
    """ "GPU 3", "GPUs 0 to 7", "GPUs 1, 4"."""
    wanted = sorted(set(indices))
    if len(wanted) == 1:
        return f"GPU {wanted[0]}"
    whole = wanted == list(range(wanted[0], wanted[-1] + 1)) and len(wanted) > 2
    return f"GPUs {wanted[0]} to {wanted[-1]}" if whole else f"GPUs {', '.join(map(str, wanted))}"


def quote(known: Facts, said: Said) -> Evidence:
    return known.outputs.of("report").quote(said.line)


def those(known: Facts, name: str, holds: Callable[[Said], bool]) -> list[tuple[Card, Said]]:
    """The cards whose field ``name`` has a value for which ``holds`` is true."""
    found = ((card, card.first(name)) for card in known.cards)
    return [(card, said) for card, said in found if said is not None and holds(said)]


def _absent(known: Facts) -> Iterator[CheckFinding]:
    if known.refusal is None:
        return
    text = known.refusal.text.lower()
    if "version mismatch" in text:
        yield say("driver-library-mismatch", known.refusal)
    elif "not found" not in text and "no devices" not in text:
        yield say("driver-not-answering", known.refusal)


def _on_bus(known: Facts) -> Iterator[CheckFinding]:
    bus = [device for device in known.pci if device.gpu and "nvidia" in device.kind.lower()]
    lspci = known.outputs.of("lspci")
    for device in bus:
        if device.driver == "nouveau":
            yield say("nouveau-loaded", lspci.quote(device.line), address=device.address)
            return
    if bus and known.devices and len(bus) > len(known.devices) and not known.amd:
        yield say(
            "gpu-missing",
            *(lspci.quote(device.line) for device in bus[:2]),
            on_bus=len(bus),
            shown=len(known.devices),
        )


def _reset(known: Facts) -> Iterator[CheckFinding]:
    found = those(known, "gpu recovery action", lambda said: said.text.lower() not in ("none", "n/a"))
    if found:
        yield say(
            "gpu-needs-reset",
            quote(known, found[0][1]),
            gpus=numbers(c.index for c, _ in found),
            action=found[0][1].text,
        )


def _remap(known: Facts) -> Iterator[CheckFinding]:
    for name in ("remapped rows/pending", "retired pages/pending page blacklist"):
        if found := those(known, name, lambda said: said.text == "Yes"):
            yield say("gpu-rows-to-remap", quote(known, found[0][1]), gpus=numbers(c.index for c, _ in found))
    if found := those(known, "remapped rows/remapping failure occurred", lambda said: said.text == "Yes"):
        yield say("gpu-memory-worn", quote(known, found[0][1]), gpus=numbers(c.index for c, _ in found))


def _errors(known: Facts) -> Iterator[CheckFinding]:
    names = (
        "ecc errors/volatile/dram uncorrectable",
        "ecc errors/volatile/sram uncorrectable",
        "ecc errors/volatile/sram uncorrectable parity",
        "ecc errors/volatile/sram uncorrectable sec-ded",
    )
    found = [pair for name in names for pair in those(known, name, lambda said: (said.number or 0) > 0)]
    if found:
        count = sum(int(said.number or 0) for _, said in found)
        yield say(
            "gpu-ecc-errors",
            *(quote(known, said) for _, said in found[:2]),
            gpus=numbers(card.index for card, _ in found),
            count=count,
        )


_LOST = ("Unable to determine the device handle", "GPU is lost", "GPU requires reset")


def _lost(known: Facts) -> Iterator[CheckFinding]:
    """A GPU that the driver still lists and cannot reach any more."""
    for name in ("smi", "gpus", "report", "p2p_read", "topology"):
        for phrase in _LOST:
            if (said := known.outputs.of(name).find(phrase)) is not None:
                yield say("gpu-lost", said)
                return


def _alike(known: Facts) -> Iterator[CheckFinding]:
    kinds: dict[str, int] = {}
    for device in known.machine.devices if known.machine is not None else known.devices:
        size = f" ({gib_text(device.total_bytes, 0)})" if device.total_bytes else ""
        kinds[device.name + size] = kinds.get(device.name + size, 0) + 1
    if len(kinds) > 1:
        yield say(
            "gpus-differ", first_line(known), kinds=", ".join(f"{n} x {name}" for name, n in kinds.items())
        )


def first_line(known: Facts) -> Evidence | None:
    name = known.devices[0].name
    for output in ("gpus", "report", "smi", "collected", "rocm"):
        if found := known.outputs.of(output).find(name):
            return found
    return None


def _mode(known: Facts) -> Iterator[CheckFinding]:
    found = those(known, "compute mode", lambda said: said.text not in ("Default", ""))
    if found:
        said = found[0][1]
        name = "compute-prohibited" if said.text == "Prohibited" else "compute-mode"
        yield say(name, quote(known, said), gpus=numbers(c.index for c, _ in found), mode=said.text)


def _persistence(known: Facts) -> Iterator[CheckFinding]:
    off = [device.index for device in known.devices if device.persistence is False]
    if off and not known.host.wsl and not known.amd:
        lines: list[Evidence | None] = [
            quote(known, said) for _, said in those(known, "persistence mode", lambda s: s.text == "Disabled")
        ]
        boxed = (
            known.outputs.of("smi").find(known.devices[off[0]].bus_id) if off[0] < len(known.devices) else None
        )
        yield say("persistence-off", *(lines[:1] or [boxed]), gpus=numbers(off))
