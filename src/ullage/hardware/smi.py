"""What ``nvidia-smi`` and ``rocm-smi`` print -> Devices. Text in, structs out; nothing is run here.

Cells that a card has no value for ("[N/A]", "[Not Supported]", "[GPU is lost]") are None.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec import DecodeError, Struct, json
from msgspec.structs import replace

from ullage.core.errors import InputError
from ullage.core.machine import Device, Process
from ullage.core.units import MIB

#: what is asked of a driver of 2022 or later (memory.reserved and compute_cap: 510), and of an older one
FIELDS = (
    "index", "uuid", "name", "memory.total", "memory.reserved", "memory.used", "memory.free", "driver_version",
    "compute_cap", "mig.mode.current", "ecc.mode.current", "persistence_mode", "pci.bus_id",
    "pcie.link.gen.max", "pcie.link.width.current", "pcie.link.width.max",
)  # fmt: skip
OLD_FIELDS = ("index", "uuid", "name", "memory.total", "memory.used", "memory.free", "driver_version")
APP_FIELDS = ("gpu_uuid", "pid", "used_memory", "process_name")
#: more than any host has
MOST_DEVICES = 256
MOST_PROCESSES = 1024
_WORDS = re.compile(r"[^\x20-\x7e]+")
_NUMBER = re.compile(r"\d{1,9}")
_ON = {"enabled": True, "disabled": False}


class Described(Struct, frozen=True):
    """The devices of one host, the driver's release and the newest CUDA that it takes."""

    devices: tuple[Device, ...] = ()
    driver: str | None = None
    cuda: str | None = None


def query(text: str, where: str = "nvidia-smi") -> Described:
    """The rows of ``--query-gpu`` with FIELDS or OLD_FIELDS, as "csv,noheader,nounits" prints them.

    None of a host without GPUs. Raises InputError with what is printed in their place.
    """
    rows = [cells for line in text.splitlines()[:4096] if (cells := _cells(line))]
    if not rows:
        said = plain(next((line for line in text.splitlines() if line.strip()), ""))
        if not said or "no devices were found" in said.lower():
            return Described()
        raise InputError(f"says {said!r} and no GPU", where=where)
    devices = {device.index: device for device in map(_device, rows[:MOST_DEVICES])}
    return Described(tuple(devices.values()), rows[0]["driver_version"] or None)


def _cells(line: str) -> dict[str, str] | None:
    cells = [plain(cell) for cell in line.split(",")]
    names = next((names for names in (FIELDS, OLD_FIELDS) if len(names) == len(cells)), None)
    if names is None or not _NUMBER.fullmatch(cells[0]) or not cells[2]:
        return None
    return dict(zip(names, cells, strict=True))


def _device(cells: dict[str, str]) -> Device:
    get = cells.get
    return Device(
        int(cells["index"]), cells["name"], cells["uuid"],
        _mib(get("memory.total")), _mib(get("memory.reserved")),
        _mib(get("memory.used")), _mib(get("memory.free")), capability_of(get("compute_cap", "")),
        _on(get("mig.mode.current")), _on(get("ecc.mode.current")), _on(get("persistence_mode")),
        get("pci.bus_id", ""), _count(get("pcie.link.gen.max")), _count(get("pcie.link.width.current")),
        _count(get("pcie.link.width.max")),
    )  # fmt: skip


def with_processes(devices: tuple[Device, ...], text: str) -> tuple[Device, ...]:
    """The devices with the processes that ``--query-compute-apps`` tells (APP_FIELDS); else ignored."""
    found: dict[str, list[Process]] = {}
    for line in text.splitlines()[:MOST_PROCESSES]:
        cells = [plain(cell) for cell in line.split(",", len(APP_FIELDS) - 1)]
        if len(cells) == len(APP_FIELDS) and _NUMBER.fullmatch(cells[1]):
            found.setdefault(cells[0], []).append(Process(int(cells[1]), cells[3], _mib(cells[2])))
    return tuple(replace(device, processes=tuple(found.get(device.uuid, ()))) for device in devices)


def report(text: str, where: str = "nvidia-smi -q") -> Described:
    """What ``nvidia-smi -q`` prints, live or from a file. Raises InputError where it is something else."""
    if not re.search(r"^Driver Version\s*:", text, re.MULTILINE):
        raise InputError("holds no report of a driver", where=where, hint="nvidia-smi -q")
    head: dict[str, str] = {}
    found: list[list[tuple[str, str]]] = []
    for path, value in _pairs(text):
        if path.startswith("GPU ") and "/" not in path:
            found.append([("bus", path[4:].strip())])
        elif found:
            found[-1].append((path.partition("/")[2], value))
        else:
            head.setdefault(path, value)
    devices = tuple(_reported(number, pairs) for number, pairs in enumerate(found[:MOST_DEVICES]))
    return Described(
        devices, head.get("Driver Version"), head.get("CUDA Version") or head.get("CUDA UMD Version")
    )


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    """As ``numbered``, without the lines."""
    return ((path, value) for _, path, value in numbered(text))


def numbered(text: str) -> Iterator[tuple[int, str, str]]:
    """(4, "GPU 00000000:06:00.0/FB Memory Usage/Total", "97887 MiB") for each line (from 1), by its indent."""
    stack: list[tuple[int, str]] = []
    for at, line in enumerate(text.splitlines()[:200_000], 1):
        name, colon, value = plain(line.rstrip(), strip=False).partition(" :")
        key, indent = name.strip(), len(name) - len(name.lstrip())
        if not key or key.startswith("=") or indent > 64:
            continue
        while stack and stack[-1][0] >= indent:
            stack.pop()
        stack.append((indent, key))
        if colon or key.startswith("GPU "):
            yield at, "/".join(part for _, part in stack), value.strip()


def _reported(number: int, pairs: list[tuple[str, str]]) -> Device:
    first: dict[str, str] = {}
    for path, value in pairs:
        first.setdefault(path, value)
    get, link = first.get, "PCI/GPU Link Info/"
    memory = {name: _mib(get(f"FB Memory Usage/{name}")) for name in ("Total", "Reserved", "Used", "Free")}
    sizes = [_mib(value) for path, value in pairs if path.endswith("MIG Device/FB Memory Usage/Total")]
    free = [_mib(value) for path, value in pairs if path.endswith("MIG Device/FB Memory Usage/Free")]
    return Device(
        number, get("Product Name", "") or "unnamed GPU", get("GPU UUID", ""),
        memory["Total"], memory["Reserved"], memory["Used"], memory["Free"],
        capability_of(get("CUDA Compute Capability", "")),
        _on(get("MIG Mode/Current")), _on(get("ECC Mode/Current")), _on(get("Persistence Mode")),
        get("bus", ""), _count(get(f"{link}PCIe Generation/Max")), _count(get(f"{link}Link Width/Current")),
        _count(get(f"{link}Link Width/Max")), min((s for s in sizes if s), default=None),
        min((f for f in free if f is not None), default=None), tuple(_processes(pairs)),
    )  # fmt: skip


def _processes(pairs: list[tuple[str, str]]) -> Iterator[Process]:
    pid, name = None, ""
    for path, value in pairs[:100_000]:
        key = path.rpartition("/")[2]
        if key == "Process ID":
            pid, name = _count(value), ""
        elif key == "Name" and pid is not None:
            name = value
        elif key == "Used GPU Memory" and pid is not None:
            yield Process(pid, name, _mib(value))
            pid = None


def rocm(text: str, where: str = "rocm-smi") -> Described:
    """``rocm-smi --showproductname --showmeminfo vram --showdriverversion --json``."""
    try:
        cards = json.decode(text.encode(), type=dict[str, dict[str, str | int | float | None]])
    except DecodeError as error:
        raise InputError(f"no JSON of cards: {error}", where=where) from None
    devices = []
    for key, card in list(cards.items())[:MOST_DEVICES]:
        number = key.removeprefix("card")
        if _NUMBER.fullmatch(number):
            total, used = (_bytes(card.get(f"VRAM Total {word}(B)")) for word in ("Memory ", "Used Memory "))
            free = max(0, total - used) if total is not None and used is not None else None
            name = next(
                (card[k] for k in ("Card Series", "Card series", "Card Model") if card.get(k)), "AMD GPU"
            )
            devices.append(Device(int(number), plain(str(name)), "", total, None, used, free))
    driver = cards.get("system", {}).get("Driver version")
    return Described(tuple(devices), plain(str(driver)) if driver else None)


_DRIVER = re.compile(r"Driver Version:\s*([\d.]{3,20})\s+CUDA (?:UMD )?Version:\s*([\d.]{1,8})")
_CARD = re.compile(
    r"^\|\s+(\d{1,3})\s{1,4}(\S.{0,60}?)\s+(?:(On|Off|N/A)\s+)?\|\s*([0-9A-Fa-f]{8}:[0-9A-Fa-f:.]{7,10})\s"
)
_USED = re.compile(r"\|\s*(\d{1,7})MiB\s*/\s*(\d{1,7})MiB\s*\|")
_HOLDS = re.compile(r"^\|\s+(\d{1,3})\s+\S+\s+\S+\s+(\d{1,9})\s+\S{1,3}\s+(\S.{0,80}?)\s+(\d{1,7}MiB|N/A)\s*\|")


def boxed(text: str) -> Described:
    """The devices of the box that ``nvidia-smi`` prints without arguments; none of something else.

    A name that the box cuts ends with "...": it is kept so. Never raises.
    """
    found = _DRIVER.search(text)
    devices: list[Device] = []
    held: dict[int, list[Process]] = {}
    for line in text.splitlines()[:4096]:
        if card := _CARD.match(line):
            on = {"On": True, "Off": False}.get(card[3] or "")
            devices.append(Device(int(card[1]), plain(card[2]), persistence=on, bus_id=card[4]))
        elif devices and devices[-1].total_bytes is None and (used := _USED.search(line)):
            now, total = int(used[1]) * MIB, int(used[2]) * MIB
            devices[-1] = replace(devices[-1], total_bytes=total, used_bytes=now, free_bytes=total - now)
        elif holds := _HOLDS.match(line):
            held.setdefault(int(holds[1]), []).append(Process(int(holds[2]), plain(holds[3]), _mib(holds[4])))
    named = tuple(
        replace(device, processes=tuple(held.get(device.index, ())[:MOST_PROCESSES]))
        for device in devices[:MOST_DEVICES]
    )
    return Described(named, found[1] if found else None, found[2] if found else None)


def capability_of(text: str) -> tuple[int, int] | None:
    """(12, 0) of "12.0"."""
    found = re.fullmatch(r"(\d{1,3})\.(\d{1,3})", text)
    return (int(found[1]), int(found[2])) if found else None


def plain(text: str, *, strip: bool = True) -> str:
    """Printable ASCII of bounded length: names go to screens and reports."""
    text = _WORDS.sub(" ", text[:400])[:200]
    return text.strip() if strip else text


def _mib(text: str | None) -> int | None:
    found = _NUMBER.match(text or "")
    return int(found[0]) * MIB if found else None


def _bytes(value: object) -> int | None:
    text = str(value)
    return int(text) if re.fullmatch(r"\d{1,15}", text, re.ASCII) else None


def _count(text: str | None) -> int | None:
    found = _NUMBER.match(text or "")
    return int(found[0]) if found else None


def _on(text: str | None) -> bool | None:
    return _ON.get((text or "").lower())
