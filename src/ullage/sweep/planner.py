"""Blocks of rows to tables of answers: the programs of each group, grown where a row takes a new path."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from ullage.core.units import GIB
from ullage.planning.cautions import ranks
from ullage.planning.plan import Asked
from ullage.sweep.axes import Axis, Value
from ullage.sweep.evaluate import Rows, run
from ullage.sweep.follow import FIGURES, WORDS, follow
from ullage.sweep.groups import Group, Setting, group
from ullage.sweep.program import Answer, Astray, Node, Program
from ullage.sweep.space import Block, drawn, point
from ullage.sweep.table import Table

#: groups whose programs are kept
MOST_GROUPS = 64
#: paths of one program; beyond, it is begun anew, so that memory stays bounded
MOST_PATHS = 20_000
#: rows tried before a large space is begun
SCOUTED = 256
_CONTEXT = ("max_model_len", "context_length")


class Planner:
    """Plans blocks. ``followed`` counts the plans that were made one by one."""

    def __init__(self, asked: Asked, discrete: Sequence[Setting], numeric: Sequence[Setting]) -> None:
        self.asked = asked
        self.discrete = discrete
        self.numeric = numeric
        self.followed = 0
        self.known: OrderedDict[tuple[int, ...], tuple[Group, Program]] = OrderedDict()
        self.words: dict[str, list[str]] = {
            **{s.axis.name: [str(value) for value in s.axis.values] for s in discrete if not s.axis.numeric},
            "verdict": ["starts", "unsure", "fails"], "fails_at": [], "cause": [],
        }  # fmt: skip

    def scout(self) -> list[Setting]:
        """The numeric settings in the order in which they are best gone through, tried on a few rows of the
        first group: those by which rows part first, then those with fewer values."""
        named = [replace(s.axis, name=s.name) for s in self.numeric]
        for block in drawn([Axis(s.axis.name, s.axis.values[:1]) for s in self.discrete], named, SCOUTED, 0):
            self.plan(block)
        splits = Counter[str]()
        for _, program in self.known.values():
            splits += program.splits()
        return sorted(self.numeric, key=lambda s: (-splits[s.name], len(s.axis.values)))

    def plan(self, block: Block) -> Table:
        """The rows of ``block`` with their answers."""
        known, program = self._group(block.group)
        try:
            return self._plan(block, known, program)
        except Astray:
            self.known[block.group] = known, Program()
            return self._plan(block, known, Program(), singly=True)

    def _plan(self, block: Block, known: Group, program: Program, *, singly: bool = False) -> Table:
        if program.num_paths > MOST_PATHS:
            program = Program()
            self.known[block.group] = known, program
        whole = {s.name: s.axis.whole for s in self.numeric}

        def grow(place: int) -> None:
            self.followed += 1
            follow(program, known.deployment, point(block, place, whole), known.problems, singly=singly)

        size = len(block)
        found: dict[str, NDArray[Any]] = {name: np.empty(size) for name in FIGURES}
        found |= {name: np.empty(size, dtype=np.int16) for name in WORDS}
        for rows, answer in run(program, block.inputs, block.shape, grow):
            self._put(found, rows, answer)
        return Table(self._columns(block, known, found), self.words)

    def _group(self, places: tuple[int, ...]) -> tuple[Group, Program]:
        found = self.known.get(places)
        if found is None:
            values: list[Value] = [s.axis.values[i] for s, i in zip(self.discrete, places, strict=True)]
            found = self.known[places] = group(self.asked, self.discrete, values), Program()
            if len(self.known) > MOST_GROUPS:
                self.known.popitem(last=False)
        self.known.move_to_end(places)
        return found

    def _put(self, found: dict[str, NDArray[Any]], rows: Rows, answer: Answer) -> None:
        """The answers of one leaf into the columns of the block."""
        places = rows.places
        everything = places.size == len(found["verdict"])
        for name in FIGURES:
            value = answer[name]
            number = rows.value(value.number) if isinstance(value, Node) else np.nan if value is None else value
            if everything:
                found[name].reshape(rows.shape)[...] = number
            else:
                found[name][places] = number
        for name in WORDS:
            found[name][slice(None) if everything else places.reshape(-1)] = self._word(name, answer[name])

    def _word(self, name: str, word: object) -> int:
        if word is None:
            return -1
        known = self.words[name]
        if word not in known:
            known.append(str(word))
        return known.index(str(word))

    def _columns(self, block: Block, known: Group, found: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Settings first, then the answers in the units that people read."""
        size = len(block)
        columns: dict[str, NDArray[Any]] = {}
        for s, place in zip(self.discrete, block.group, strict=True):
            value = s.axis.values[place]
            columns[s.axis.name] = np.full(size, value if s.axis.numeric else place)
        for s in self.numeric:
            values = np.broadcast_to(block.inputs[s.name], block.shape).reshape(-1)
            columns[s.axis.name] = values.astype(np.int64) if s.axis.whole else values
        tokens = found["kv_tokens"]
        columns |= {
            "verdict": found["verdict"], "kv_tokens": tokens, "low_tokens": found["low_tokens"],
            "high_tokens": found["high_tokens"], "kv_gib": found["kv_bytes"] / GIB,
            "bytes_per_token": found["bytes_per_token"], "requests": self._requests(block, known, tokens),
            "num_gpus": np.full(size, ranks(known.deployment), dtype=np.int32),
            "fails_at": found["fails_at"], "cause": found["cause"],
        }  # fmt: skip
        return columns

    def _requests(self, block: Block, known: Group, tokens: NDArray[Any]) -> NDArray[Any]:
        """How many requests of the whole context the pool holds at once."""
        launch, model = known.deployment.launch, known.deployment.model
        length: Any = next((block.inputs[name] for name in _CONTEXT if name in block.inputs), None)
        if length is None:
            length = next((n for name in _CONTEXT if (n := launch.integer(name))), None)
        if length is None:
            length = (model.max_context if model else None) or np.nan
        length = np.broadcast_to(np.asarray(length, dtype=float), block.shape).reshape(-1)
        with np.errstate(all="ignore"):
            return np.asarray(np.where(length > 0, np.maximum(tokens, 0) / length, np.nan))
