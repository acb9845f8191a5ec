"""Public loads of weights, one table an engine, and what must hold of them for either."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from ullage.core.deployment import Deployment
from ullage.core.launch import Arg, Launch
from ullage.core.machine import Gpu, Machine
from ullage.core.units import GIB, Band
from ullage.models.catalogue import find

Row = dict[str, Any]
Weights = Callable[[Deployment], Band | None]


class Loads:
    """The loads of one engine (``weights_observed.toml`` beside ``test``), and its deployments."""

    def __init__(self, engine: str, test: str) -> None:
        self.engine = engine
        self.rows: list[Row] = tomllib.loads((Path(test).parent / "weights_observed.toml").read_text())["load"]

    def deployment(
        self, model: str, version: str | None = None, row: Row | None = None, **given: Any
    ) -> Deployment:
        args = {name: Arg(value, "given") for name, value in given.items()}
        row = row or {}
        capability = tuple(row["capability"]) if "capability" in row else None
        gpu = Gpu("a GPU", capability=capability, vendor=row.get("vendor", "nvidia"))
        return Deployment(Launch(self.engine, version, None, model, args), find(model), Machine(gpu))

    def of_row(self, row: Row) -> Deployment:
        return self.deployment(row["model"], row.get("version"), row, **row["settings"])

    def reached(self) -> list[Row]:
        return [row for row in self.rows if "exception" not in row and "stage" not in row]

    def check_every_row_has_an_answer(self, weights: Weights) -> None:
        assert all(weights(self.of_row(row)) is not None for row in self.rows)

    def check_known_checkpoints(self, weights: Weights) -> None:
        """Median error within 1 %, 90 % of the rows within 3 %, the band over 90 % of them."""
        rows = [row for row in self.reached() if "guessed" not in row]
        bands = [(row["gib"] * GIB, weights(self.of_row(row))) for row in rows]
        errors = sorted(abs(band.value / seen - 1) for seen, band in bands if band)
        assert len(errors) == len(rows) >= 30
        assert median(errors) < 0.01
        assert errors[int(0.9 * len(errors))] < 0.03
        assert sum(band.low <= seen <= band.high for seen, band in bands if band) >= 0.9 * len(rows)

    def check_variants(self, weights: Weights) -> None:
        """Checkpoints known by their names alone: the band still covers 80 % of them."""
        rows = [row for row in self.reached() if "guessed" in row]
        bands = [(row["gib"] * GIB, weights(self.of_row(row))) for row in rows]
        assert sum(band.low <= seen <= band.high for seen, band in bands if band) >= 0.8 * len(rows)
