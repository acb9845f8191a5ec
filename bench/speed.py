"""How near ullage's decode steps and speed-ups are to public measurements, beside aiconfigurator's.

    python bench/speed.py [--peer] [--python PYTHON]

Milliseconds of a decode step on three models and GPUs (and a fourth pair), as public benchmarks show them, as
``ullage plan`` predicts them, and with ``--peer`` as aiconfigurator does, which is installed into a scratch
environment. Then the published table of speculation: the error of the speed-up on the rows that the constants
were fitted with and on those held out; and the shape of its batch rows, whose acceptance is not stated: solved
from the smallest batch, held against the largest. Exit code 1 where a median is beyond its goal.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.spec.published import (  # noqa: E402
    Published,
    asked,
    batch_rows,
    by_batch,
    mean_error,
    points,
    predict,
    row_errors,
)

#: goals: median relative error of speed-ups, of decode steps
SPEEDUP, STEP = 0.15, 0.25
PEER = "aiconfigurator==0.12.0"
CONTEXT = 1024


class Measured(NamedTuple):
    """A public decode speed: tokens per second of ``batch`` requests together. ``fitted``: the constants saw
    it."""

    model: str
    gpu: str
    count: int
    engine: str
    version: str
    batch: int
    tok_s: float
    fitted: bool
    source: str
    peer: tuple[str, str, str]

    @property
    def ms(self) -> float:
        return 1e3 * self.batch / self.tok_s


_KIMI = ("moonshotai/Kimi-K2.6", "RTX PRO 6000", 8, "vllm", "0.19.0")
_WIKI = "rtx6kpro wiki, snapshot 2026-05-17"
_PEER_KIMI = ("moonshotai/Kimi-K2.5", "rtx_pro_6000_server", "vllm")
MEASURED = (
    Measured("meta-llama/Llama-3.1-8B-Instruct", "H100", 1, "sglang", "0.4.4", 1, 158.34, False,
             "arXiv 2503.01840, SGLang at batch 1", ("meta-llama/Meta-Llama-3.1-8B", "h100_sxm", "sglang")),
    Measured("Qwen/Qwen3-8B", "H200", 1, "sglang", "0.4.6", 1, 187.0, False,
             "model card of Tengyunw/qwen3_8b_eagle3", ("Qwen/Qwen3-8B", "h200_sxm", "sglang")),
    Measured("openai/gpt-oss-120b", "H100", 1, "sglang", "0.5.9", 1, 212.0, True,
             "specdrift measurements", ("openai/gpt-oss-120b", "h100_sxm", "sglang")),
    *(Measured(*_KIMI, batch, tok_s, True, _WIKI, _PEER_KIMI)
      for batch, tok_s in ((1, 92.4), (8, 350.9), (32, 957.7), (64, 1497.0), (128, 2222.6))),
    Measured("moonshotai/Kimi-K2.5", "RTX PRO 6000", 8, "sglang", "0.5.9", 1, 89.5, False,
             "founding case", ("moonshotai/Kimi-K2.5", "rtx_pro_6000_server", "sglang")),
)  # fmt: skip


def of_ullage(item: Measured) -> tuple[float, float, float]:
    """(ms, low, high) of the step by the launch and the GPU's name alone; PCIe hosts of the wiki have
    switches."""
    link = "PXB" if "wiki" in item.source else None
    flags = "--max-model-len 8192" if item.engine == "vllm" else ""
    point = Published(
        0, False, item.model, item.engine, item.gpu, "ngram", 1, item.batch, CONTEXT, item.source, item.count,
        item.version, link=link, flags=flags,
    )  # fmt: skip
    band = asked(point)[0].ledger(item.batch, CONTEXT).band_us.scaled(1e-3)
    return band.value, band.low, band.high


def install(folder: str, python: str) -> Path:
    """The peer's command in a scratch environment."""
    subprocess.run([python, "-m", "venv", folder], check=True)
    pip = Path(folder, "bin", "pip")
    subprocess.run([pip, "install", "-q", PEER], check=True, stderr=subprocess.DEVNULL)
    return Path(folder, "bin", "aiconfigurator")


def of_peer(item: Measured, command: Path) -> float | None:
    """Milliseconds of the step by aiconfigurator; None where it has no data."""
    model, system, backend = item.peer
    experts = (
        []
        if item.count == 1 and "oss" not in model
        else ["--moe-tp-size", str(item.count), "--moe-ep-size", "1"]
    )
    done = subprocess.run(
        [command, "cli", "estimate", "--model-path", model, "--system", system, "--backend", backend,
         "--estimate-mode", "static_gen", "--tp-size", str(item.count), *experts,
         "--batch-size", str(item.batch), "--isl", str(CONTEXT), "--osl", "2"],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    found = re.search(r"TPOT:\s+([\d.]+) ms", done.stdout)
    return float(found[1]) if found else None


def steps(peer: Path | None) -> float:
    """Print the decode steps side by side; the median error of ullage."""
    errors, others = [], []
    titles = f"{'public':>7} {'ullage':>22} {'error':>6} {'peer':>7} {'error':>6}"
    print(f"{'model':<34} {'GPU':<16} {'batch':>5} {titles}")
    for item in MEASURED:
        ms, low, high = of_ullage(item)
        other = of_peer(item, peer) if peer else None
        errors.append(ms / item.ms - 1)
        shown = f"{other:>7.2f} {other / item.ms - 1:>+6.0%}" if other else f"{'-':>7} {'-':>6}"
        others += [other / item.ms - 1] if other else []
        gpu = f"{item.count}x {item.gpu}"
        ours = f"{ms:.2f} ({low:.1f} to {high:.1f})"
        print(
            f"{item.model:<34} {gpu:<16} {item.batch:>5} {item.ms:>7.2f} {ours:>22} {errors[-1]:>+6.0%} {shown}"
            f"{'  fitted' if item.fitted else ''}"
        )
    mine = median(map(abs, errors))
    print(f"median error: ullage {mine:.1%}" + (f", peer {median(map(abs, others)):.1%}" if others else ""))
    return mine


def speedups() -> float:
    """Print the errors of the published speed-ups; the median over the rows."""
    found = [predict(point) for point in points()]
    fitted = {p.row for p in points() if p.fit}
    errors = row_errors(found)
    parts = {
        name: [error for row, error in errors.items() if (row in fitted) is side]
        for name, side in (("fitted", True), ("held out", False))
    }
    inside = sum(p.speedup.low <= p.point.measured <= p.speedup.high for p in found) / len(found)
    for name, part in parts.items():
        print(f"speed-ups, {name}: {len(part)} rows, median error {median(part):.1%}, largest {max(part):.1%}")
    whole = median(errors.values())
    print(f"speed-ups, all: {len(errors)} rows, median error {whole:.1%}; the band covers {inside:.0%}")
    return whole


def batches() -> None:
    """Print the batch rows: the acceptance that the smallest batch implies, and what follows for the others."""
    for row in batch_rows():
        length, gains = by_batch(row)
        pairs = zip(row.batches, gains, row.speedups, strict=True)
        told = "  ".join(f"{b}: {ours:.2f}/{public:.2f}" for b, ours, public in pairs)
        seen = "fitted" if row.fit else "held out"
        print(
            f"row {row.row} ({row.method}, {row.gpu}), {seen}: {length:.2f} tokens a round by batch 2, mean"
            f" error {mean_error(row):.0%}; ours/public  {told}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", action="store_true", help="install aiconfigurator and compare")
    parser.add_argument("--peer-command", metavar="PATH", help="an aiconfigurator that is installed already")
    parser.add_argument("--python", default=sys.executable, help="interpreter of the scratch environment")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        peer = Path(options.peer_command) if options.peer_command else None
        if options.peer and peer is None:
            peer = install(folder, options.python)
        step = steps(peer)
    speedup = speedups()
    batches()
    return int(step > STEP or speedup > SPEEDUP)


if __name__ == "__main__":
    sys.exit(main())
