"""The machine as it is: asks NVML, nvidia-smi or rocm-smi here, or nvidia-smi over ssh, within seconds.

The outside is reached through one function, ``run``: a command's words to what it prints. Nothing is changed.
"""

from __future__ import annotations

import os
import re
import selectors
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from msgspec import Struct
from msgspec.structs import replace

from ullage.core.errors import InputError
from ullage.core.machine import Machine
from ullage.core.units import KIB
from ullage.hardware import nvml, smi, topology
from ullage.hardware.devices import machine_of
from ullage.hardware.smi import Described

#: a command's words and the seconds it may take -> what it printed; None: no such command, or nothing printed
Run = Callable[[Sequence[str], float], str | None]
#: seconds that a whole probe may take here, and over ssh beside the connection's own
SECONDS = 5.0
SSH_CONNECT_S = 5
#: `nvidia-smi -q` prints 14 KiB a GPU
MOST_BYTES = 4 << 20
_HOST = re.compile(
    r"(?:[A-Za-z0-9_][\w.-]{0,64}@)?(?:[A-Za-z0-9_][\w.-]{0,252}|\[?[0-9A-Fa-f:]{2,45}\]?)", re.ASCII
)
SECTION = "ullage-section:"
_CSV = "--format=csv,noheader,nounits"
_APPS = ("nvidia-smi", f"--query-compute-apps={','.join(smi.APP_FIELDS)}", _CSV)
_HOST_FILES = ("cat", "/proc/version", "/proc/meminfo")
_REPORT = ("nvidia-smi", "-q")
_TOPOLOGY = ("nvidia-smi", "topo", "-m")
_ROCM = ("rocm-smi", "--showproductname", "--showmeminfo", "vram", "--showdriverversion", "--json")


def _query(fields: Sequence[str]) -> tuple[str, ...]:
    return ("nvidia-smi", f"--query-gpu={','.join(fields)}", _CSV)


class Printed(Struct, frozen=True):
    """What the commands printed; "" where one is absent."""

    gpus: str = ""
    apps: str = ""
    host: str = ""
    report: str = ""
    topology: str = ""
    rocm: str = ""


def run(words: Sequence[str], seconds: float) -> str | None:
    """What ``words`` print, of stdout and stderr together: at most 4 MiB, and what came within ``seconds``; the
    command and its children are then ended. None where there is no such command or it prints nothing."""
    program = shutil.which(words[0])
    if program is None or seconds <= 0:
        return None
    try:
        child = subprocess.Popen(
            [program, *words[1:]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            bufsize=0,
        )
    except OSError:
        return None
    assert child.stdout is not None
    with child.stdout:
        try:
            text = _read(child.stdout.fileno(), time.monotonic() + seconds)
        finally:
            _end(child)
    return text.decode("utf-8", "replace") or None


def _read(stream: int, until: float) -> bytes:
    text = bytearray()
    with selectors.DefaultSelector() as ready:
        ready.register(stream, selectors.EVENT_READ)
        while len(text) < MOST_BYTES and ready.select(max(0.0, until - time.monotonic())):
            piece = os.read(stream, 1 << 16)
            if not piece:
                break
            text += piece
    return bytes(text)


def _end(child: subprocess.Popen[bytes]) -> None:
    """End the command and what it started; one whose output is complete has a moment to leave by itself. One
    that a driver holds uninterruptibly is left behind rather than waited for."""
    try:
        child.wait(0.2)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            child.wait(0.5)


def probe(run: Run = run, environment: Mapping[str, str] | None = None) -> Machine | None:
    """This machine with the GPUs that CUDA shows a process of ``environment`` (this one's); None: it has none.

    Raises InputError where a tool is there and says something else.
    """
    until = time.monotonic() + SECONDS
    environment = os.environ if environment is None else environment
    binding = nvml.library()
    found = nvml.described(binding, SECONDS) if binding is not None else None
    printed = _ask(run, until, found)
    source = f"probed here ({'NVML' if found else 'nvidia-smi' if printed.gpus else 'rocm-smi'})"
    return _machine(printed, found, environment, source)


def _ask(run: Run, until: float, found: Described | None) -> Printed:
    def ask(words: Sequence[str]) -> str:
        return run(words, until - time.monotonic()) or ""

    host = ask(_HOST_FILES)
    if found is not None:
        return Printed(host=host, topology=ask(_TOPOLOGY) if len(found.devices) > 1 else "")
    gpus = ask(_query(smi.FIELDS))
    if "not a valid field" in gpus:
        gpus = ask(_query(smi.OLD_FIELDS))
    if not gpus:
        return Printed(host=host, rocm=ask(_ROCM))
    several = gpus.count("\n") > 1
    return Printed(gpus, ask(_APPS), host, ask(_REPORT), ask(_TOPOLOGY) if several else "")


def probe_ssh(host: str, run: Run = run, environment: Mapping[str, str] | None = None) -> Machine | None:
    """The machine that ssh reaches as ``host`` (a name of its configuration, or user@name), without a prompt.

    Of ``environment`` only what selects devices matters; this process's own does not hold there. None where it
    has no nvidia-smi. Raises InputError for a name that is none, and with ssh's own words where it fails.
    """
    text = ssh(host, _script(), SECONDS, run)
    return _machine(_sections(text), None, environment or {}, f"probed over ssh at {host}")


def _script() -> str:
    """The commands for the other machine's shell: a constant, nothing of the user's is in it."""
    query = " || ".join(" ".join(_query(fields)) for fields in (smi.FIELDS, smi.OLD_FIELDS))
    parts = {
        "host": " ".join(_HOST_FILES),
        "gpus": query,
        "apps": " ".join(_APPS),
        "report": " ".join(_REPORT),
        "topology": " ".join(_TOPOLOGY),
    }
    asked = "".join(f"echo {SECTION}{name}; {{ {words}; }} 2>/dev/null; " for name, words in parts.items())
    return f"PATH=$PATH:/usr/lib/wsl/lib; {asked}"


def _sections(text: str) -> Printed:
    return Printed(**{name: body for name, body in parts(text).items() if name in Printed.__struct_fields__})


def machine_from(printed: Printed, environment: Mapping[str, str], source: str) -> Machine | None:
    """The machine of saved outputs."""
    return _machine(printed, None, environment, source)


def _machine(
    printed: Printed, found: Described | None, environment: Mapping[str, str], source: str
) -> Machine | None:
    found = found or _described(printed)
    memory = _memory(printed.host)
    links = _links(printed.topology)
    machine = machine_of(found, environment, memory, links, source)
    if machine is None:
        return None
    return replace(machine, wsl="microsoft" in printed.host[:400].lower())


def ssh(host: str, script: str, seconds: float, run: Run) -> str:
    """What ``script`` prints over there. Raises InputError for a name that is none, and where ssh fails."""
    if not _HOST.fullmatch(host):
        raise InputError(f"is no host name: {host[:60]!r}", where="ssh", hint="HOST or USER@HOST")
    words = ("ssh", "-T", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={SSH_CONNECT_S}", "--", host, script)
    text = run(words, SSH_CONNECT_S + seconds)
    if text is None or SECTION not in text:
        said = " ".join((text or "").splitlines()[-1:])[:200]
        raise InputError(
            f"cannot be asked: {said or 'no answer'}", where=f"ssh {host}", hint=f"try: ssh {host} true"
        )
    return text


def parts(text: str) -> dict[str, str]:
    """The sections of a script's output by name."""
    found: dict[str, str] = {}
    for part in text.split(SECTION)[1:]:
        name, _, body = part.partition("\n")
        found.setdefault(name.strip(), body)
    return found


def _described(printed: Printed) -> Described:
    """The devices of the query, else of the report, with processes, CUDA and MIG from the others."""
    full = smi.report(printed.report) if "Driver Version" in printed.report else Described()
    if not printed.gpus.strip():
        return full if full.devices else smi.rocm(printed.rocm) if printed.rocm.strip() else full
    found = smi.query(printed.gpus)
    devices = smi.with_processes(found.devices, printed.apps)
    parts = {device.bus_id.lower(): device for device in full.devices if device.bus_id}
    devices = tuple(
        replace(device, mig_total_bytes=part.mig_total_bytes, mig_free_bytes=part.mig_free_bytes)
        if (part := parts.get(device.bus_id.lower())) and device.mig
        else device
        for device in devices
    )
    return Described(devices, found.driver, full.cuda)


def _links(text: str) -> topology.Topology | None:
    """The topology, where it is printed; a driver without `topo` (WSL) says so in words."""
    try:
        return topology.parse(text)
    except InputError:
        return None


def _memory(text: str) -> tuple[int, int] | None:
    """(total, available) of /proc/meminfo in bytes."""
    found = {name: int(size) * KIB for name, size in re.findall(r"(?m)^(Mem\w{1,20}):\s*(\d{1,12}) kB", text)}
    total, available = found.get("MemTotal"), found.get("MemAvailable")
    return (total, available) if total and available is not None else None
