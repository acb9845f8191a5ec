"""What ``nvidia-smi -q`` tells of one GPU beyond core's Device: link, clocks, errors, fabric; with its lines.

Text and XML (``-q -x``) are read; the drivers' different words for the same thing have one name here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from xml.parsers import expat

from msgspec import Struct

from ullage.core.machine import Device
from ullage.core.units import MIB
from ullage.hardware import smi

_MOST_NODES = 400_000
_MOST_DEEP = 32
#: a card at rest, or one whose owner chose its clocks
_NO_LOSS = ("/idle", "/applications clocks setting", "/display clock setting")
_NOTHING = ("N/A", "[N/A]", "", "Not Supported", "None", "Requested functionality has been deprecated")


class Said(Struct, frozen=True):
    """A value and the line (from 1) that it stands in."""

    text: str
    line: int

    @property
    def number(self) -> float | None:
        found = re.match(r"-?\d{1,12}(?:\.\d{1,6})?", self.text)
        return float(found[0]) if found else None


class Card(Struct, frozen=True):
    """One GPU of the report. ``said`` maps the report's own words, in lower case and joined by "/", to values:
    "pci/gpu link info/link width/current"."""

    index: int
    bus_id: str
    line: int
    said: dict[str, Said]

    def first(self, *names: str) -> Said | None:
        """The first of these that has a value."""
        for name in names:
            found = self.said.get(name)
            if found is not None and found.text not in _NOTHING:
                return found
        return None

    def number(self, *names: str) -> float | None:
        found = self.first(*names)
        return found.number if found else None

    def active(self) -> list[tuple[str, Said]]:
        """The reasons for which its clocks are lowered now, by the report's words."""
        heads = ("clocks event reasons/", "clocks throttle reasons/")
        return [
            (name.rpartition("/")[2], value)
            for name, value in self.said.items()
            if name.startswith(heads) and value.text == "Active" and not name.endswith(_NO_LOSS)
        ]


def cards(text: str) -> tuple[Card, ...]:
    """The GPUs of a report, text or XML; none where it is something else. Never raises."""
    if text.lstrip()[:5].startswith(("<?xml", "<!DOC", "<nvid")):
        return tuple(_cards(_xml(text)))
    return tuple(_cards(smi.numbered(text)))


def head(text: str) -> dict[str, Said]:
    """What stands before the first GPU: "driver version", "cuda version"."""
    pairs = _xml(text) if text.lstrip().startswith("<") else smi.numbered(text)
    found: dict[str, Said] = {}
    for line, path, value in pairs:
        if path.startswith("GPU "):
            break
        found.setdefault(path.lower(), Said(value, line))
    return found


def _cards(pairs: Iterator[tuple[int, str, str]]) -> Iterator[Card]:
    card: Card | None = None
    count = 0
    for line, path, value in pairs:
        if path.startswith("GPU ") and "/" not in path:
            if card is not None:
                yield card
            if count >= smi.MOST_DEVICES:
                return
            card, count = Card(count, path[4:].strip(), line, {}), count + 1
        elif card is not None and path.startswith("GPU "):
            card.said.setdefault(path.partition("/")[2].lower(), Said(value[:200], line))
    if card is not None:
        yield card


def described(text: str) -> smi.Described:
    """The report's GPUs as core's Devices, from the XML form too. None for what is no report."""
    found = head(text)
    driver, cuda = found.get("driver version"), found.get("cuda version")
    devices = tuple(_device(card) for card in cards(text) if card.said)
    return smi.Described(devices, driver.text if driver else None, cuda.text if cuda else None)


def _device(card: Card) -> Device:
    def mib(name: str) -> int | None:
        number = card.number(f"fb memory usage/{name}")
        return int(number) * MIB if number is not None else None

    def on(name: str) -> bool | None:
        value = card.first(name)
        return {"enabled": True, "disabled": False}.get(value.text.lower()) if value else None

    def whole(name: str) -> int | None:
        number = card.number(f"pci/gpu link info/{name}")
        return int(number) if number is not None else None

    name, uuid = card.first("product name"), card.first("gpu uuid")
    capability = card.first("cuda compute capability")
    return Device(
        card.index,
        smi.plain(name.text) if name else "unnamed GPU",
        smi.plain(uuid.text) if uuid else "",
        mib("total"),
        mib("reserved"),
        mib("used"),
        mib("free"),
        smi.capability_of(capability.text) if capability else None,
        on("mig mode/current"),
        on("ecc mode/current"),
        on("persistence mode"),
        card.bus_id,
        whole("pcie generation/max"),
        whole("link width/current"),
        whole("link width/max"),
    )


#: tags of the XML report -> the words of the text; a tag that is not named here is its words with blanks
_TAGS = {
    "gpu_power_readings": "gpu power readings",
    "pci_gpu_link_info": "gpu link info",
    "pcie_gen": "pcie generation",
    "max_link_gen": "max",
    "current_link_gen": "current",
    "device_current_link_gen": "device current",
    "max_device_link_gen": "device max",
    "max_host_link_gen": "host max",
    "link_widths": "link width",
    "max_link_width": "max",
    "current_link_width": "current",
    "fb_memory_usage": "FB Memory Usage",
    "bar1_memory_usage": "bar1 memory usage",
    "current_ecc": "current",
    "pending_ecc": "pending",
    "current_mig": "current",
    "pending_mig": "pending",
    "current_dm": "current",
    "product_name": "product name",
    "performance_state": "performance state",
    "uuid": "gpu uuid",
    "remapped_row_pending": "pending",
    "remapped_row_failure": "remapping failure occurred",
    "retired_pages": "retired pages",
    "pending_retirement": "pending page blacklist",
    "driver_version": "driver version",
    "cuda_version": "cuda version",
    "current_power_limit": "current power limit",
    "default_power_limit": "default power limit",
}
_REASON = re.compile(r"clocks_(?:event|throttle)_reason_(?:hw_|sw_)?(.*)")


def _words(tag: str) -> str:
    reason = _REASON.fullmatch(tag)
    if reason and not tag.endswith("s"):
        return tag.partition("_reason_")[2].replace("_", " ")
    return _TAGS.get(tag, tag.replace("_", " "))


def _xml(text: str) -> Iterator[tuple[int, str, str]]:
    """The pairs of an XML report, as ``smi.numbered`` gives those of the text. What is cut is read as far as it
    goes; entities are refused."""
    found: list[tuple[int, str, str]] = []
    stack: list[str] = []
    data: list[str] = []
    parser = expat.ParserCreate()

    def start(tag: str, attributes: dict[str, str]) -> None:
        data.clear()
        if len(stack) > _MOST_DEEP or len(found) > _MOST_NODES:
            raise ValueError
        if tag == "gpu" and len(stack) == 1:
            stack.append(f"GPU {attributes.get('id', '')[:40]}")
            found.append((parser.CurrentLineNumber, stack[-1], ""))
        else:
            stack.append(_words(tag[:80]))

    def end(tag: str) -> None:
        value = " ".join("".join(data).split())[:200]
        if value:
            found.append((parser.CurrentLineNumber, "/".join(stack[1:]), value))
        data.clear()
        stack.pop()

    def entity(*_: object) -> None:
        raise ValueError

    parser.StartElementHandler, parser.EndElementHandler = start, end
    parser.CharacterDataHandler = lambda piece: data.append(piece[:400])
    parser.EntityDeclHandler = entity
    with suppress(expat.ExpatError, ValueError):
        parser.Parse(text.encode("utf-8", "replace"), True)
    return iter(found)
