"""``nvidia-smi topo -m`` -> how the GPUs and network cards of a host are linked."""

from __future__ import annotations

from msgspec import Struct

from ullage.core.errors import InputError
from ullage.core.patterns import lazy

#: kinds of link from near to far, as nvidia-smi's own legend tells them (NV: NV#); SOC is old for SYS
DISTANCES = ("NV", "C2C", "PIX", "PXB", "PHB", "NODE", "SYS")
#: more columns than any host has
_MOST = 256
_ANSI = lazy(r"\x1b\[[0-9;?]*[A-Za-z]")
_LINK = lazy(r"X|NV\d{1,3}|C2C|PIX|PXB|PHB|NODE|SYS|SOC|N/A")
_GPU = lazy(r"GPU\d{1,3}")
_CPUS = lazy(r"\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*")


class Topology(Struct, frozen=True):
    """The links of one host: ``links[a][b]`` between GPUs ("X" on the diagonal), ``nic_links[a][n]`` from a GPU
    to a network card. ``numa`` is each GPU's NUMA node, ``cpus`` the processors near it; None: not printed."""

    gpus: tuple[str, ...]
    links: tuple[tuple[str, ...], ...]
    nics: tuple[str, ...] = ()
    nic_links: tuple[tuple[str, ...], ...] = ()
    numa: tuple[int | None, ...] = ()
    cpus: tuple[str | None, ...] = ()

    @property
    def pairs(self) -> tuple[str, ...]:
        """The link of each pair of GPUs, once."""
        size = range(len(self.gpus))
        return tuple(self.links[a][b] for a in size for b in size if a < b)

    @property
    def nvlink_mesh(self) -> bool:
        """Each GPU reaches each other one by NVLink: what custom all-reduce of more than two ranks asks for."""
        return bool(self.pairs) and all(link.startswith("NV") for link in self.pairs)

    @property
    def worst_link(self) -> str | None:
        """The farthest link between two GPUs; of NVLinks the one of fewest lanes. None for one GPU."""
        return max(self.pairs, key=_distance, default=None)

    @property
    def p2p_hints(self) -> tuple[str, ...]:
        """What the links mean for peer-to-peer copies, in words."""
        kinds = set(self.pairs)
        hints = []
        if kinds & {"SYS", "NODE", "PHB"}:
            worst = self.worst_link
            hints.append(
                f"some pairs meet in the CPU ({worst}): whether they copy directly is the platform's and NCCL's"
                " choice; look for 'via SHM' in its log, and try NCCL_P2P_LEVEL=SYS"
            )
        if self.pairs and not self.nvlink_mesh:
            partly = any(link.startswith("NV") for link in kinds)
            hints.append("NVLink joins some pairs only" if partly else "no NVLink: copies go over PCIe")
        return tuple(hints)

    def of(self, numbers: tuple[int, ...]) -> Topology:
        """The topology of the GPUs with these numbers only, in this order; unknown ones are left out."""
        at = [index for n in numbers for index, gpu in enumerate(self.gpus) if gpu == f"GPU{n}"]
        return Topology(
            tuple(self.gpus[i] for i in at), tuple(tuple(self.links[i][j] for j in at) for i in at),
            self.nics, tuple(self.nic_links[i] for i in at), tuple(self.numa[i] for i in at),
            tuple(self.cpus[i] for i in at),
        )  # fmt: skip


def parse(text: str, where: str = "nvidia-smi topo -m") -> Topology:
    """The topology that ``text`` prints. Raises InputError for anything else.

    Columns are GPUs and network cards (NIC0 or mlx5_0), then CPU and NUMA affinity, in any of the layouts of
    drivers 418 to 595; colour and what stands around the table do not matter.
    """
    lines = [_ANSI.sub("", line) for line in text.splitlines()[:4096]]
    start, columns = _header(lines)
    if not columns:
        raise InputError("holds no matrix of GPUs", where=where, hint="nvidia-smi topo -m")
    rows = _rows(lines[start + 1 :], columns)
    gpus = tuple(name for name in columns if _GPU.fullmatch(name))
    nics = tuple(name for name in columns if not _GPU.fullmatch(name))
    absent = [name for name in gpus if name not in rows]
    if absent:
        raise InputError(f"the row of {absent[0]} is missing or cut", where=where)
    at = {name: index for index, name in enumerate(columns)}
    cells = {name: rows[name][: len(columns)] for name in gpus}
    places = [_place(rows[name][len(columns) :]) for name in gpus]
    return Topology(
        gpus, tuple(tuple(cells[a][at[b]] for b in gpus) for a in gpus),
        nics, tuple(tuple(cells[a][at[n]] for n in nics) for a in gpus),
        tuple(node for _, node in places), tuple(cpus for cpus, _ in places),
    )  # fmt: skip


def _header(lines: list[str]) -> tuple[int, list[str]]:
    """Where the line of column names is, and the names of devices in it."""
    for number, line in enumerate(lines):
        names = line.partition("CPU Affinity")[0].split()
        if names and _GPU.fullmatch(names[0]) and (len(names) < 2 or not _LINK.fullmatch(names[1])):
            distinct = len(set(names)) == len(names) <= _MOST
            return number, names if distinct else []
    return 0, []


def _rows(lines: list[str], columns: list[str]) -> dict[str, list[str]]:
    """Each GPU's cells, with what follows them; a row that is cut or holds other words is left out."""
    found: dict[str, list[str]] = {}
    for line in lines:
        name, *cells = line.split() or [""]
        links = cells[: len(columns)]
        if name in columns and len(links) == len(columns) and all(map(_LINK.fullmatch, links)):
            found.setdefault(name, ["SYS" if cell == "SOC" else cell for cell in links] + cells[len(columns) :])
    return found


def _place(rest: list[str]) -> tuple[str | None, int | None]:
    """(CPU affinity, NUMA node) of the cells behind the links."""
    cpus = rest[0] if rest and _CPUS.fullmatch(rest[0]) else None
    node = rest[1] if cpus and len(rest) > 1 else ""
    return cpus, int(node) if node.isascii() and node.isdigit() and len(node) < 5 else None


def _distance(link: str) -> tuple[int, int]:
    """Larger is farther; what is not known is farthest."""
    if link.startswith("NV"):
        return 0, -int(link[2:])
    return DISTANCES.index(link) if link in DISTANCES else len(DISTANCES), 0
