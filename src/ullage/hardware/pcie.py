"""``lspci -vvv`` -> bridges with access control services (ACS), and the PCIe links of GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec import Struct

#: more devices than any host shows
_MOST = 4096
_HEAD = re.compile(r"((?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]) (.{0,300})", re.IGNORECASE)
_LINK = re.compile(r"Speed (\d{1,3}(?:\.\d)?)GT/s.{0,40}?Width x(\d{1,2})")
_REDIRECTS = ("SrcValid+", "ReqRedir+", "CmpltRedir+")
_NVIDIA = re.compile(r"(?:VGA compatible controller|3D controller|Display controller).{0,40}?"
                     r"(?:NVIDIA|Advanced Micro Devices, Inc\. \[AMD/ATI\])")  # fmt: skip


class PciDevice(Struct, frozen=True):
    """One function on the bus. Speeds in GT/s, widths in lanes; None: not printed (lspci without root prints
    no capabilities). ``acs`` is True where its ACS control redirects or checks; ``line`` is its first line."""

    address: str
    kind: str
    line: int
    acs: bool | None = None
    acs_line: int = 0
    speed_max: float | None = None
    width_max: int | None = None
    speed: float | None = None
    width: int | None = None
    driver: str = ""
    denied: bool = False

    @property
    def gpu(self) -> bool:
        return _NVIDIA.match(self.kind) is not None

    @property
    def bridge(self) -> bool:
        return "bridge" in self.kind.lower()


def parse(text: str) -> tuple[PciDevice, ...]:
    """The devices that ``text`` lists; what is no list gives none. Never raises."""
    return tuple(_device(block) for block in _blocks(text))


def _blocks(text: str) -> Iterator[list[tuple[int, str]]]:
    block: list[tuple[int, str]] = []
    found = 0
    for number, line in enumerate(text.splitlines(), 1):
        if _HEAD.match(line):
            if block:
                yield block
            block, found = [], found + 1
            if found > _MOST:
                return
            block.append((number, line))
        elif block and len(block) < 500:
            block.append((number, line))
    if block:
        yield block


def _device(block: list[tuple[int, str]]) -> PciDevice:
    first = _HEAD.match(block[0][1])
    assert first is not None
    most: tuple[float | None, int | None] = (None, None)
    now, acs, driver = most, None, ""
    acs_line, denied = 0, False
    for number, line in block[1:]:
        words = line.strip()[:400]
        if words.startswith("LnkCap:"):
            most = _link(words)
        elif words.startswith("LnkSta:"):
            now = _link(words)
        elif words.startswith("ACSCtl:"):
            acs, acs_line = any(flag in words for flag in _REDIRECTS), number
        elif words.startswith("Kernel driver in use:"):
            driver = words.partition(":")[2].strip()[:40]
        elif "<access denied>" in words:
            denied = True
    return PciDevice(first[1].lower(), first[2].strip(), block[0][0], acs, acs_line, most[0], most[1],
                     now[0], now[1], driver, denied)  # fmt: skip


def _link(words: str) -> tuple[float | None, int | None]:
    found = _LINK.search(words)
    return (float(found[1]), int(found[2])) if found else (None, None)
