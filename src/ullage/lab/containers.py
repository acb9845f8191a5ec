"""A server in a container: ``docker run`` (podman, nerdctl) such that the container can be found and ended."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from ullage.core.errors import InputError
from ullage.lab.endpoint import Endpoint

_TOOLS = ("docker", "podman", "nerdctl")
_IN_FRONT = ("sudo", "env", "exec", "-E", "-n")
_PUBLISHED = re.compile(r"(?:(?P<host>\[[0-9a-fA-F:]+\]|[\d.]+):)?(?P<outer>\d+):(?P<inner>\d+)(?:/tcp)?")
LABEL = "ullage.run"
#: seconds that a container gets to stop, and that the tool may take beyond
STOP_S, TOOL_S = 20, 30.0


class Container(Struct, frozen=True):
    """``argv`` starts it. ``tool`` are the words up to "docker". ``ports`` maps a port inside to (host, port)
    here; None: the container shares this machine's network."""

    argv: tuple[str, ...]
    tool: tuple[str, ...]
    ports: dict[int, tuple[str, int]] | None

    def endpoint(self, inside: Endpoint | None) -> Endpoint | None:
        """Where the server inside is reached from here; None where its port is not published."""
        if inside is None or self.ports is None:
            return inside
        found = self.ports.get(inside.port)
        return replace(inside, host=found[0], port=found[1], unix_socket=None) if found else None


def of_command(argv: Sequence[str], run_id: str) -> Container | None:
    """The container that ``argv`` runs, with a label to find it by; a detached one stays in front, so that it
    can be followed. None: it runs none."""
    at = next((i for i, word in enumerate(argv) if word not in _IN_FRONT and "=" not in word), len(argv))
    if at == len(argv) or argv[at].rsplit("/", 1)[-1] not in _TOOLS:
        return None
    verb = next((i for i in range(at + 1, min(at + 4, len(argv))) if argv[i] == "run"), None)
    if verb is None:
        return None
    options, rest = _options(argv[verb + 1 :])
    kept = [word for word in map(_attached, options) if word]
    words = (*argv[: verb + 1], "--label", f"{LABEL}={run_id}", *kept, *rest)
    return Container(words, tuple(argv[: at + 1]), _ports(options))


def _options(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """(options, the image and what follows). An option without "=" that is no known switch takes a value."""
    at = 0
    while at < len(words) and words[at].startswith("-"):
        alone = "=" in words[at] or words[at] in _SWITCHES or re.fullmatch(r"-[ditP]+", words[at])
        at += 1 if alone else 2
    return list(words[:at]), list(words[at:])


#: options of "docker run" that take no value (docker 28, podman 5)
_SWITCHES = frozenset({
    "--rm", "--detach", "--interactive", "--tty", "--init", "--privileged", "--read-only", "--no-healthcheck",
    "--publish-all", "--oom-kill-disable", "--sig-proxy", "--disable-content-trust", "--quiet", "-q",
    "--replace", "--rmi", "--no-hosts", "--tls-verify",
})  # fmt: skip


def _attached(word: str) -> str:
    """The option without "detach"; "" where nothing is left."""
    if word in ("-d", "--detach", "--detach=true"):
        return ""
    return word.replace("d", "") if re.fullmatch(r"-[itP]*d[itP]*", word) else word


def _value(options: Sequence[str], *names: str) -> str | None:
    for i, word in enumerate(options):
        name, equals, value = word.partition("=")
        if name in names:
            return value if equals else next(iter(options[i + 1 : i + 2]), None)
    return None


def _ports(options: Sequence[str]) -> dict[int, tuple[str, int]] | None:
    if _value(options, "--network", "--net") == "host":
        return None
    found: dict[int, tuple[str, int]] = {}
    for i, word in enumerate(options):
        name, equals, value = word.partition("=")
        if name in ("-p", "--publish"):
            text = value if equals else next(iter(options[i + 1 : i + 2]), "")
            if match := _PUBLISHED.fullmatch(text):
                host = (match["host"] or "127.0.0.1").strip("[]")
                host = "127.0.0.1" if host in ("0.0.0.0", "::") else host
                found[int(match["inner"])] = (host, int(match["outer"]))
    return found


def end(tool: Sequence[str], run_id: str, grace_s: float = STOP_S) -> str | None:
    """Stop and remove the containers of a run: what was ended, in words; None where there was none. Raises
    InputError where the tool does not answer or one is left."""
    found = _of_run(tool, run_id)
    if not found:
        return None
    _call([*tool, "stop", "-t", str(max(0, round(grace_s))), *found], grace_s + TOOL_S)
    _call([*tool, "rm", "-f", *found], TOOL_S)
    if left := _of_run(tool, run_id):
        raise InputError(f"container {', '.join(left)} could not be ended", where=tool[-1])
    return f"container {', '.join(each[:12] for each in found)} ended"


def _of_run(tool: Sequence[str], run_id: str) -> list[str]:
    text = _call([*tool, "ps", "-a", "-q", "--no-trunc", "--filter", f"label={LABEL}={run_id}"], TOOL_S)
    if text is None:
        raise InputError("does not answer", where=f"{' '.join(tool)} ps")
    return re.findall(r"(?m)^[0-9a-f]{12,64}$", text)


def _call(words: Sequence[str], seconds: float) -> str | None:
    """What a tool printed; None where it failed."""
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds, check=False, text=True,
            errors="replace",
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout if done.returncode == 0 else None
