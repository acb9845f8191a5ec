"""The first page of help: one text, shown with and without click (whose import takes longer than the page)."""

from __future__ import annotations

COMMANDS = {
    "plan": "will this launch start, where does every GiB go, which change gives more",
    "why": "what failed first and why, and which change mends it",
    "diff": "two runs side by side: settings, environment, both ledgers",
    "sweep": "a whole space of settings planned at once: what starts, what gives most",
    "check": "this machine: GPUs, links, driver, software, known bad combinations",
    "run": "launch with foresight: preflight, progress, early stop, diagnosis, record",
    "runs": "the runs that were kept: list, show, remove",
    "ui": "the same answers in the browser, on this machine",
}
_USAGE = {
    "plan": "plan -- COMMAND",
    "why": "why LOG...",
    "diff": "diff A B",
    "sweep": "sweep -- COMMAND",
    "check": "check",
    "run": "run -- COMMAND",
    "runs": "runs",
    "ui": "ui",
}


def page() -> str:
    """Usage, commands, options and exit codes of ``ullage`` itself."""
    rows = "\n".join(f"  {_USAGE[name]:<16}  {text}" for name, text in COMMANDS.items())
    return f"""\
Usage: ullage [OPTIONS] COMMAND [ARGS]...

  Why an LLM server crashed, where every GiB went, and which change mends it:
  SGLang and vLLM. `ullage COMMAND --help` tells more.

Options:
  --version   Show the version and exit.
  -h, --help  Show this message and exit.

Commands:
{rows}

Exit codes: 0 healthy or will start; 1 a failure was found or it will not start;
2 wrong usage or unreadable input (one line on stderr); 3 cannot tell (what is
missing is named)."""
