"""The stages of a start as people see them: their names, the shade and the colour that draw them."""

from __future__ import annotations

from ullage.core.run import Phase

#: of a stage that stands alone
NAMES: dict[Phase, str] = {
    "args": "arguments", "init": "start of the ranks", "weights": "weights", "profile": "profile run",
    "kv_pool": "KV pool", "graph_capture": "CUDA graphs", "warmup": "warm-up", "serving": "serving",
}  # fmt: skip
#: after "crashed" or "hangs"
WHEN: dict[Phase, str] = {
    "args": "while reading arguments and configuration",
    "init": "while starting up, before the weights",
    "weights": "while loading weights",
    "profile": "in the profile run",
    "kv_pool": "while sizing the KV pool",
    "graph_capture": "while capturing CUDA graphs",
    "warmup": "while warming up",
    "serving": "while serving",
}
_SHADES = {"weights": "█", "profile": "▒", "kv_pool": "▓", "graph_capture": "▒"}
_COLOURS = {"init": "yellow", "weights": "blue", "profile": "magenta", "kv_pool": "green",
            "graph_capture": "cyan"}  # fmt: skip


def shade(stage: str) -> str:
    """The character that fills a stage's part of a bar."""
    return _SHADES.get(stage, "░")


def colour(stage: str) -> str:
    """The terminal's colour of a stage."""
    return _COLOURS.get(stage, "white")
