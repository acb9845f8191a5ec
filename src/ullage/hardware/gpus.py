"""GPU names as people write them -> Machine. A new GPU is a row of gpus.toml and no code."""

from __future__ import annotations

import re
from functools import cache

from msgspec import Struct
from msgspec.structs import replace

from ullage.core.machine import Gpu, Machine
from ullage.core.patterns import lazy
from ullage.core.tables import load
from ullage.core.units import GIB, MIB, Band

_COUNT = lazy(r"^\s*(\d{1,4})\s*(?:[x×*]\s*|\s(?!\s*[gm]i?b\b))(?=\S)", re.IGNORECASE)
_COUNT_AFTER = lazy(r"(?:\s*:\s*|\s+[x×*]\s*|\s*[×*]\s*|(?<=\d)x(?=\d{1,2}\s*$))(\d{1,4})\s*$", re.IGNORECASE)
_SIZE = lazy(r"(?:custom\s*:\s*)?(\d{1,4}(?:\.\d{1,4})?)\s*(?:g|gb|gib)?", re.IGNORECASE)
_MEMORY = lazy(r"(?<![\w.])(\d{1,3})\s*gi?b?(?![a-z0-9])", re.IGNORECASE)
#: memory named anywhere: "24 GB card with 23.53 GiB"
_STATED = lazy(r"(?<![\w.])(\d{1,4}(?:\.\d{1,4})?)\s*gi?b\b(?:\s+(free|before)\b)?", re.IGNORECASE)
_ASIDE = lazy(r"\([^)]*\)")
#: Words that make another product of a name; a row must have the same ones.
_APART = ("laptop", "mobile", "max-q", "super", "ti", "d", "pro", "ada", "nvl", "pcie", "vgpu")


class Row(Struct, frozen=True, forbid_unknown_fields=True):
    """A GPU of gpus.toml; the file's head says what each key means."""

    name: str
    aliases: tuple[str, ...]
    source: str
    vendor: str = "nvidia"
    memory_mib: int | None = None
    cuda_total_gib: tuple[float, float] | None = None
    cuda_usual_gib: float | None = None
    free_at_start_gib: tuple[float, float] | None = None
    capability: tuple[int, int] | None = None
    nvlink: bool | None = None
    unified_memory: bool = False

    @property
    def gpu(self) -> Gpu:
        cuda = _band(self.cuda_total_gib)
        if cuda is not None and self.cuda_usual_gib:
            cuda = replace(cuda, value=self.cuda_usual_gib * GIB)
        total = self.memory_mib * MIB if self.memory_mib else round(cuda.high) if cuda else None
        return Gpu(
            self.name,
            total_bytes=total,
            capability=self.capability,
            vendor=self.vendor,
            unified_memory=self.unified_memory,
            source=f"gpus.toml: {self.source}",
            cuda_bytes=cuda,
            free_bytes=_band(self.free_at_start_gib),
        )

    @property
    def memory_gib(self) -> float | None:
        total = self.gpu.total_bytes
        return total / GIB if total else None


class _Table(Struct, frozen=True, forbid_unknown_fields=True):
    gpu: tuple[Row, ...]


def find(text: str) -> Machine | None:
    """The machine that ``text`` names: "8x RTX PRO 6000", "h100_sxm:8", "custom:94.08", "94.08" (GiB).

    ``count`` is None where the text gives none. None where the text names no GPU that is known, or several.
    A name that holds for cards of different memory ("A100") has no total unless the text states its memory.
    """
    text = " ".join(text[:200].split())
    count, name = _counted(text)
    rows = _match(_ASIDE.sub(" ", name)) or _match(name)
    if rows:
        return Machine(
            gpu=_sized(_common(rows), name), count=count, nvlink=rows[0].nvlink if len(rows) == 1 else None
        )
    size = _SIZE.fullmatch(name)
    if size is None:
        gpu = _by_memory(name)
        return Machine(gpu=gpu, count=count) if gpu is not None else None
    if not 0.5 <= float(size[1]) <= 4096:
        return None
    total = round(float(size[1]) * GIB)
    return Machine(gpu=Gpu(f"{size[1]} GiB", total_bytes=total, vendor="", source="given"), count=count)


def _sized(gpu: Gpu, text: str) -> Gpu:
    """The GPU with the memory that ``text`` states where that is another than the product's (a card with
    doubled memory, a Jetson of some size), or the same more exactly ("121.69 GiB unified", as CUDA reports it).
    """
    exact = _as_cuda(gpu, text)
    if exact is not None:
        return replace(gpu, cuda_bytes=Band(exact, exact - 0.01 * GIB, exact + 0.01 * GIB))
    stated = [float(number) for number, said in _STATED.findall(_ASIDE.sub(" ", text)) if not said]
    total = gpu.total_bytes
    if (
        not stated
        or len(text.split()) > 6
        or (total and any(abs(size * GIB / total - 1) < 0.2 for size in stated))
    ):
        return gpu
    size = max(stated) * GIB
    if size < 2 * GIB:
        return gpu
    return replace(
        gpu, total_bytes=round(size), cuda_bytes=Band(0.985 * size, 0.94 * size, size), free_bytes=None
    )


def _as_cuda(gpu: Gpu, text: str) -> float | None:
    """Bytes of a total in ``text`` with two decimals that CUDA may have reported for this product."""
    if gpu.cuda_bytes is None:
        return None
    low, high = 0.995 * gpu.cuda_bytes.low, 1.005 * gpu.cuda_bytes.high
    stated = (
        float(number) * GIB for number, said in _STATED.findall(text) if not said and _decimals(number) > 1
    )
    return next((size for size in stated if low <= size <= high), None)


def _decimals(number: str) -> int:
    return len(number.partition(".")[2])


def _by_memory(text: str) -> Gpu | None:
    """A GPU that no row names, by the memory in its description: the most exact figure counts, and one that is
    said to be free is free memory. None where the words are near to a product's, so that a slip of the pen is
    not taken for an unknown card."""
    stated = [(_decimals(number), float(number), bool(said)) for number, said in _STATED.findall(text)]
    sizes = [size for size in stated if not size[2]] or stated
    if not sizes or max(sizes)[1] < 0.5 or _slip(text):
        return None
    decimals, size, _ = max(sizes)
    total = round(size * GIB)
    whole = Band(total, total - 0.02 * GIB, total + 0.02 * GIB) if decimals > 1 else Band(
        0.985 * total, 0.94 * total, total
    )  # fmt: skip
    free = Band(whole.value - 0.45 * GIB, whole.low - 0.9 * GIB, whole.high)
    told = next((number * GIB for _, number, is_free in stated if is_free), None)
    if told is not None:
        free = Band(told, told - 0.02 * GIB, told + 0.02 * GIB)
    return Gpu(" ".join(text.split())[:80], total_bytes=total, vendor="", source="given",
               cuda_bytes=whole, free_bytes=free)  # fmt: skip


def _slip(text: str) -> bool:
    """True if the words beside the memory are nearly a product's name, and so most likely meant for it."""
    from difflib import get_close_matches

    wanted = _words(_STATED.sub(" ", _counted(text)[1]))
    return bool(wanted and get_close_matches(wanted, list(_spellings()), n=1, cutoff=0.8))


def suggest(text: str) -> list[str]:
    """Up to five names near to ``text``, nearest first."""
    from difflib import get_close_matches

    wanted = _words(_counted(" ".join(text[:200].split()))[1])
    spellings = {_words(alias): row.name for row in _rows() for alias in (row.name, *row.aliases)}
    near = get_close_matches(wanted, spellings, n=10, cutoff=0.5)
    near += [words for words in spellings if wanted and wanted in words]
    return list(dict.fromkeys(spellings[words] for words in near))[:5]


def names() -> list[str]:
    """Every GPU of the catalogue."""
    return [row.name for row in _rows()]


def aliases() -> list[str]:
    """Every GPU of the catalogue as people write it; some have several."""
    return [alias for row in _rows() for alias in row.aliases]


def _rows() -> tuple[Row, ...]:
    table: _Table = load("ullage.hardware", "gpus.toml", _Table)
    return table.gpu


def _band(limits: tuple[float, float] | None) -> Band | None:
    if limits is None:
        return None
    low, high = (limit * GIB for limit in limits)
    return Band((low + high) / 2, low, high)


def _counted(text: str) -> tuple[int | None, str]:
    """(count, rest) of "8x H100", "8 × H100", "2 RTX 3090", "H100:8", "H100 x8"."""
    after = _COUNT_AFTER.search(text)
    if after and not text.lower().startswith("custom"):
        return int(after[1]), text[: after.start()]
    before = _COUNT.match(text)
    return (int(before[1]), text[before.end() :]) if before else (None, text)


def _words(text: str) -> str:
    """Lower-case words without maker's names and signs: "NVIDIA H100-80GB" -> "h100 80gb"."""
    return _lines(text.replace("\n", " "))[0]


def _lines(text: str) -> list[str]:
    """``_words`` of each line, all lines in one go."""
    words = re.sub(r"[^a-z0-9.+\n]+", " ", text.lower())
    words = re.sub(r"\b(?:nvidia|amd|intel|geforce|tesla|instinct|graphics|cards?|gpus?)\b", " ", words)
    return [" ".join(line.split()) for line in re.sub(r"(\d+) (gi?b)\b", r"\1\2", words).split("\n")]


@cache
def _spellings() -> dict[str, list[Row]]:
    """Every spelling in plain words, and the rows that it stands for."""
    named = [(alias, row) for row in _rows() for alias in (row.name, *row.aliases)]
    found: dict[str, list[Row]] = {}
    for spelling, (_, row) in zip(_lines("\n".join(alias for alias, _ in named)), named, strict=True):
        rows = found.setdefault(spelling, []) if spelling else []
        if row not in rows[-1:]:
            rows.append(row)
    return found


def _hits(words: str) -> list[tuple[int, int, Row]]:
    """Where ``words`` hold a spelling; blanks, also at the joint of letters and digits, are optional."""
    hits, close = [], words.replace(" ", "")
    for spelling, rows in _spellings().items():
        if spelling.replace(" ", "") not in close:
            continue
        parts = " ?".join(map(re.escape, re.findall(r"[a-z]+|[0-9.+]+", spelling)))
        hit = re.search(rf"(?<![a-z0-9.]){parts}(?![a-z0-9])", words)
        hits += [(hit.start(), hit.end(), row) for row in rows] if hit else []
    return hits


def _match(text: str) -> list[Row]:
    """The rows whose spelling covers most of ``text``: one, or several of one name with different memory. Other
    products beside them, or a word that makes another product of the name: none."""
    words = _words(text)
    hits = _hits(words)
    if not hits:
        return []
    longest = max(end - start for start, end, _ in hits)
    best = [hit for hit in hits if hit[1] - hit[0] == longest]
    first, last = best[0][0], best[0][1]
    if any(end <= first or start >= last for start, end, _ in hits):
        return []
    rest = f"{words[:first]} {words[last:]}".split()
    if any(word in _APART for word in rest):
        return []
    return _of_memory(list({row.name: row for _, _, row in best}.values()), words)


def _of_memory(rows: list[Row], words: str) -> list[Row]:
    """Of the products of one name those whose memory ``words`` state, else all."""
    stated = [int(found) for found in _MEMORY.findall(words)]
    fitting = [
        row
        for row in rows
        if row.memory_gib and any(abs(row.memory_gib - size) <= 0.13 * size for size in stated)
    ]
    return fitting[:1] or rows


def _common(rows: list[Row]) -> Gpu:
    """The one GPU of ``rows``, or what several have in common."""
    if len(rows) == 1:
        return rows[0].gpu
    name = " or ".join(row.name for row in rows)
    return replace(rows[0].gpu, name=name, total_bytes=None, cuda_bytes=None, free_bytes=None)
