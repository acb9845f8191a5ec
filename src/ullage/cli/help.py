"""The first page of help, and the foot of every command's page: examples, exit codes, where more is.

The first page is one text, shown with and without click (whose import takes longer than the page).
"""

from __future__ import annotations

from collections.abc import Mapping

#: when one asks -> command -> (usage, what it answers); lines of 80 columns
GROUPS: dict[str, dict[str, tuple[str, str]]] = {
    "Before a launch": {
        "plan": ("plan -- COMMAND", "will it start, where does each GiB go, what gives more"),
        "sweep": ("sweep -- COMMAND", "thousands of settings planned: what starts, what is best"),
        "spec": ("spec -- COMMAND", "does speculative decoding pay here, what would make it"),
        "comm": ("comm plan|bench", "what the all-reduces of a forward cost, on each backend"),
        "check": ("check", "this machine: GPUs, links, software, bad combinations"),
    },
    "During a launch": {
        "run": ("run -- COMMAND", "launch with foresight: preflight, progress, diagnosis"),
        "campaign": ("campaign run FILE", "a baseline and approaches, measured: what really helps"),
    },
    "After a launch": {
        "why": ("why LOG...", "what failed first and why, and which change mends it"),
        "diff": ("diff A B", "two runs side by side, and which difference decides"),
        "runs": ("runs", "the runs that were kept: list, show, remove"),
    },
    "Faces": {
        "ui": ("ui", "the same answers in the browser, on this machine"),
        "mcp": ("mcp", "the same answers as tools for a coding agent"),
        "completion": ("completion SHELL", "the completion script of bash, zsh or fish"),
    },
}
#: command -> what it answers
COMMANDS = {name: text for rows in GROUPS.values() for name, (_, text) in rows.items()}
#: what exit code 2 means, everywhere
USAGE = "wrong usage or unreadable input (one line on stderr)"


def page() -> str:
    """Usage, commands, options and exit codes of ``ullage`` itself."""
    rows = "\n\n".join(
        f"{when}:\n" + "\n".join(f"  {usage:<17}  {text}" for usage, text in commands.values())
        for when, commands in GROUPS.items()
    )
    return f"""\
Usage: ullage [OPTIONS] COMMAND [ARGS]...

  Why an LLM server crashed, where every GiB went, and which change mends it:
  SGLang and vLLM. COMMAND is a launch command as you would run it.

{rows}

Options:
  --version   Show the version and exit.
  -h, --help  Show this message and exit.

Examples:
  ullage plan --gpu "8x H100" -- vllm serve Qwen/Qwen3-32B --max-model-len 32k
  ullage why crashed.log --baseline worked.log

Exit codes:
  0  healthy, or it will start
  1  a failure was found, or it will not start
  2  {USAGE}
  3  cannot tell; what is missing is named

More: ullage COMMAND --help"""


def foot(examples: str, codes: Mapping[int | str, str], more: str) -> str:
    """What stands below the options of a command, for click: examples, exit codes (2 means the same
    everywhere), and the page of docs/ that tells more."""
    known: dict[int | str, str] = {**codes, 2: USAGE}
    order = sorted(known, key=lambda code: (isinstance(code, str), code))
    width = max(len(str(code)) for code in order)
    lines = "\n".join(f"  {code!s:<{width}}  {known[code]}" for code in order)
    shown = "\n".join(f"  {line}" for line in examples.strip("\n").splitlines())
    return f"\b\nExamples:\n{shown}\n\n\b\nExit codes:\n{lines}\n\n\b\nMore: docs/{more}"
