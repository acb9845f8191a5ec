"""Every output of outputs.toml, asked of this machine or over ssh through the seam of probe.py."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Sequence

from ullage.core.errors import InputError
from ullage.hardware.environment import Installed
from ullage.hardware.listed import of_list
from ullage.hardware.outputs import MOST_BYTES, Outputs, Saved, catalogue
from ullage.hardware.probe import SECTION, Run, parts, run, ssh

#: seconds that `check` may take for all commands, and for one: `nvidia-smi -q` without persistence mode wakes
#: each card anew
CHECK_SECONDS = 60.0
ONE_SECONDS = 20.0


def outputs(run: Run = run) -> Outputs:
    """What every command of outputs.toml prints here; those that are absent or silent are left out."""
    until, texts = time.monotonic() + CHECK_SECONDS, dict[str, Saved]()
    for row in catalogue().values():
        seconds = min(ONE_SECONDS, until - time.monotonic())
        text = run(row.words, seconds) if row.words and seconds > 0 else None
        if text and not _silent(text) and not (row.name == "gpus_old" and "gpus" in texts):
            texts[row.name] = Saved(" ".join(row.words) if len(row.words) < 5 else row.words[0], text)
    return Outputs(texts, "this machine")


_NO_SUCH = re.compile(
    r"(?:\S*/)?(?:cat|ls|df): .*: (?:No such file or directory|Permission denied|Invalid argument)|"
    r"System has not been booted with systemd|Failed to connect to (?:the )?bus"
)


def _silent(text: str) -> bool:
    """True if a command says only that there is nothing, or that it may not."""
    lines = [line for line in text.splitlines() if line.strip()]
    refused = "Operation not permitted" in text or "not a valid field" in text
    return not lines or all(_NO_SUCH.match(line) for line in lines) or (refused and len(lines) < 3)


def outputs_ssh(host: str, run: Run = run) -> Outputs:
    """The same of the machine that ssh reaches as ``host``, without a prompt. Raises InputError as
    ``probe_ssh`` does."""
    asked = "".join(
        f"echo {SECTION}{row.name}; timeout {ONE_SECONDS:.0f} {_quoted(row.words)} 2>&1; "
        for row in catalogue().values()
        if row.words
    )
    told = parts(ssh(host, f"PATH=$PATH:/usr/lib/wsl/lib:/usr/sbin:/sbin; {asked}", CHECK_SECONDS, run))
    texts = {
        name: Saved(catalogue()[name].file, text[:MOST_BYTES])
        for name, text in told.items()
        if name in catalogue()
        and not _silent(text)
        and "command not found" not in text[:200]
        and not text.startswith("timeout: failed to run")
    }
    return Outputs(texts, f"{host} (over ssh)")


def packages_ssh(host: str, python: str, run: Run = run) -> Installed:
    """The environment at the path ``python`` of ``host``, by the heads of its METADATA files. Raises
    InputError."""
    folder = shlex.quote(re.sub(r"/bin/python[\d.]*$", "", python))
    script = (
        f"echo {SECTION}packages; for f in {folder}/lib/python3*/site-packages/*.dist-info/METADATA; do "
        'test -f "$f" && sed -n "/^\r*$/q; /^\\(Name\\|Version\\): /p" "$f"; done'
    )
    text = parts(ssh(host, script, CHECK_SECONDS, run)).get("packages", "")
    pairs = re.findall(r"^Name: (\S{1,80})\nVersion: (\S{1,60})", text, re.MULTILINE)
    if not pairs:
        raise InputError(
            "holds no Python environment there",
            where=f"ssh {host}: {python[:100]}",
            hint="--python VENV as the other machine names it",
        )
    listed = "\n".join(f"{name}=={version}" for name, version in pairs)
    return of_list(Saved(f"{host}: METADATA", listed), f"{python} on {host}")


def _quoted(words: Sequence[str]) -> str:
    return " ".join(map(shlex.quote, words))
