"""How long ``ullage plan`` takes, as ratios in one run, and how near its KV pools are to public starts.

    python bench/plan.py [--rounds 15] [--peers]

Cold: the installed command, offline, against ``python -c pass`` of the same interpreter; both with compiled
bytecode, all in turn on one core, the best of the rounds counts. Warm: a plan in process. ``--peers`` installs
kvfit, hf-mem, vramscout and aiconfigurator into a scratch environment, times their starts, and sets their
weights
and KV pools of public vLLM starts beside ours and the logs' truth. They read checkpoints of headers alone that
are
made here (bench/headers.py); no hub is asked. A peer that cannot answer says why. Exit code 1 above 8 x.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from statistics import median
from typing import Any

import headers

GOAL_RATIO = 8.0
ROOT = Path(__file__).parents[1]
CASES = ROOT / "tests" / "cases"
LAUNCHES = {
    "SGLang, 8 GPUs, 1 T MoE": (
        "8x RTX PRO 6000", "0.5.9", "python -m sglang.launch_server --model-path moonshotai/Kimi-K2.5 --tp 8",
    ),
    "vLLM, 1 GPU, 32 B": ("H100", "0.19.0", "vllm serve Qwen/Qwen3-32B --max-model-len 32k"),
    "vLLM, 2 GPUs, windows": ("2x H100", "0.19.0", "vllm serve google/gemma-3-27b-it -tp 2"),
}  # fmt: skip
WARM = """
import json, sys, time
from ullage.planning.plan import Asked, plan
gpu, version, command = json.loads(sys.argv[1])
times = []
for _ in range(30):
    start = time.perf_counter()
    plan(Asked(command, gpu, version))
    times.append(time.perf_counter() - start)
print(min(times[1:]))
"""
PEERS = {
    "kvfit": ["kvfit", "--list-hardware"], "hf-mem": ["hf-mem", "--help"], "vramscout": ["vramscout",
    "--list-supported"],
    "aiconfigurator": ["aiconfigurator", "--help"],
}  # fmt: skip
#: public starts that every tool can be asked about: a model with files on the hub, tensor parallelism alone
STARTS = (
    "vllm-r22-32-meta-llama-llama-3-1-8b-tp1-8192", "vllm-r22-37-meta-llama-llama-3-1-8b-tp4-8192",
    "vllm-r01-llama31-8b-090", "vllm-r01-qwen25-7b-090", "vllm-15815", "vllm-r23-qwen3-14b-0180",
    "vllm-r22-46-mistralai-mixtral-8x7b-i-tp2-8192", "vllm-r22-67-qwen-qwen3-30b-a3b-tp1-8192",
    "vllm-r22-47-moonshotai-kimi-dev-72b-tp2-8192", "vllm-r22-16-google-gemma-3-27b-it-tp1-8192",
    "vllm-r22-41-meta-llama-llama-4-scout-tp4-8192", "vllm-r02-minimax-m25-tp4",
)  # fmt: skip


def environment(folder: str) -> dict[str, str]:
    """Bytecode is kept, as an installed wheel has it; no hub is asked."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPYCACHEPREFIX": folder, "HF_HUB_OFFLINE": "1"}


def best(commands: dict[str, list[str]], rounds: int, env: dict[str, str]) -> dict[str, float]:
    """Seconds of each command, the best of the rounds, all in turn."""
    found = dict.fromkeys(commands, float("inf"))
    for _ in range(rounds + 1):
        for name, command in commands.items():
            start = time.perf_counter()
            subprocess.run(command, capture_output=True, env=env, check=False)
            found[name] = min(found[name], time.perf_counter() - start)
    return found


def cold_commands() -> dict[str, list[str]]:
    ullage = str(Path(sys.executable).with_name("ullage"))
    commands = {"python -c pass": [sys.executable, "-c", "pass"]}
    for name, (gpu, version, command) in LAUNCHES.items():
        words = ["plan", "--gpu", gpu, "--engine-version", version, "--", *shlex.split(command)]
        commands[f"ullage plan: {name}"] = [ullage, *words]
    return commands


def peers(folder: Path) -> dict[str, list[str]]:
    """Peers that can be installed here; said where one cannot."""
    if not (folder / "bin" / "python").exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    found = {}
    for name, command in PEERS.items():
        if (folder / "bin" / command[0]).exists():
            found[f"{name} (its start alone)"] = [str(folder / "bin" / command[0]), *command[1:]]
            continue
        install = [str(folder / "bin" / "pip"), "install", "-q", name]
        done = subprocess.run(install, capture_output=True, check=False)
        if done.returncode == 0:
            found[f"{name} (its start alone)"] = [str(folder / "bin" / command[0]), *command[1:]]
        else:
            print(f"{name} cannot be installed here", file=sys.stderr)
    return found


def beside_peers(folder: Path) -> None:
    """Weights and KV pools of the public starts: the logs' truth, ours, and the errors of each in percent."""
    hub, tools = folder / "hub", folder / "peers"
    rows = [row for name in STARTS if (row := _start(name)) is not None]
    for model in {row["model"] for row in rows}:
        headers.make(model, hub / model)
    names = ["ullage", *PEERS]
    print("\npublic starts: errors of the KV pool / of the weights of one GPU, in percent (- : no answer)")
    print(f"{'launch':44}{'pool GiB':>9}{'weights':>9}" + "".join(f"{name:>18}" for name in names))
    errors: dict[str, list[float]] = {name: [] for name in names}
    whys: dict[str, set[str]] = {name: set() for name in names}
    for row in rows:
        answers = {"ullage": row["ours"]} | {name: _asked(tools, hub, name, row) for name in PEERS}
        cells = []
        for name, said in answers.items():
            pool, weights = said.get("pool_gib"), said.get("weights_gib")
            off = 100 * (pool / row["pool"] - 1) if pool is not None else None
            heavy = 100 * (weights / row["weights"] - 1) if weights and row["weights"] else None
            if off is not None:
                errors[name].append(off)
            if said.get("why"):
                whys[name].add(str(said["why"]))
            cells.append(f"{_percent(off):>9} /{_percent(heavy):>7}")
        shown = f"{row['name'][:43]:44}{row['pool']:9.2f}{row['weights'] or 0:9.2f}"
        print(shown + "".join(f"{cell:>18}" for cell in cells))
    for name in names:
        found = sorted(errors[name])
        said = "none"
        if found:
            said = f"{found[0]:+.0f} to {found[-1]:+.0f} %, {median(map(abs, found)):.1f} % in the median"
        because = "".join(f"; {why}" for why in sorted(whys[name]))
        print(f"  {name:16} KV pools of {len(found)}: {said}{because[:160]}")


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:+.1f}"


def _start(name: str) -> dict[str, Any] | None:
    """One public start as every tool is asked about it, with our own answer."""
    from ullage.core.units import GIB
    from ullage.planning.plan import Asked, plan

    cases = (tomllib.loads(path.read_text()) for path in sorted(CASES.glob("*/*.toml")))
    case = next((case for case in cases if case["case"]["id"] == name), None)
    if case is None:
        return None
    shown, launch, hardware = case["observed"], case["launch"], case["hardware"]
    answer = plan(
        Asked(
            launch["command"], f"{hardware.get('count', 1)}x {hardware['gpu']}", case["case"]["version"] or None
        )
    )
    gpu, model, given = answer.machine.gpu if answer.machine else None, answer.model, answer.settings
    pool = answer.budget.kv_bytes or answer.budget.pool_bytes
    if gpu is None or gpu.total_bytes is None or model is None or pool is None:
        return None
    total = shown.get("total_gib") or (gpu.cuda_bytes.value if gpu.cuda_bytes else gpu.total_bytes) / GIB
    share, tp, length = (
        given.get(k) for k in ("gpu_memory_utilization", "tensor_parallel_size", "max_model_len")
    )
    return {
        "name": name, "pool": shown["kv_gib"], "weights": shown.get("weights_gib"), "model": model.id, "gib":
        total,
        "gpu": gpu.name, "tp": tp.value if tp else 1, "share": share.value if share else 0.9,
        "context": length.value if length else 8192, "kv": "fp8" if "fp8" in launch["command"] else None,
        "ours": {
            "pool_gib": pool.value / GIB,
            "weights_gib": answer.budget.ledgers[0].of("weights") / GIB,
        },
    }  # fmt: skip


def _asked(tools: Path, hub: Path, peer: str, row: dict[str, Any]) -> dict[str, Any]:
    """What a peer says of a launch, or why it says nothing."""
    if not (tools / "bin" / PEERS[peer][0]).exists():
        return {"why": "not installed"}
    keys = ("model", "gib", "gpu", "tp", "share", "context", "kv")
    command = [str(tools / "bin" / "python"), str(Path(__file__).with_name("peer_driver.py")), peer, str(hub),
               json.dumps({key: row[key] for key in keys})]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        said: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
        return said
    except (subprocess.TimeoutExpired, ValueError, IndexError):
        return {"why": "no answer"}


def pools() -> None:
    """Errors of the KV pool over the public starts whose plan knows it, in percent."""
    from ullage.core.errors import UllageError
    from ullage.core.units import GIB
    from ullage.planning.plan import Asked, plan

    errors = []
    for path in sorted(CASES.glob("*/*.toml")):
        case = tomllib.loads(path.read_text())
        shown, launch, gpu = case["observed"], case["launch"], case["hardware"].get("gpu")
        truth = shown.get("kv_gib") or shown.get("k_gib", 0) + shown.get("v_gib", 0)
        whole = launch["command"].strip() and not launch.get("command_source") and gpu
        if case["expect"]["outcome"] != "started" or not truth or not whole or shown.get("kv_tokens") == 20480:
            continue
        try:
            count = case["hardware"].get("count", 1)
            answer = plan(Asked(launch["command"], f"{count}x {gpu}", case["case"]["version"] or None))
        except UllageError:
            continue
        pool = answer.budget.kv_bytes or answer.budget.pool_bytes
        if pool is not None and pool.value > 0:
            errors.append(100 * (pool.value / GIB - truth) / truth)
    errors.sort(key=abs)
    worst = errors[int(0.9 * len(errors))]
    print(f"KV pools of {len(errors)} public starts: {median(map(abs, errors)):.1f} % off in the median, "
          f"{abs(worst):.1f} % at the 90th percentile")  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--peers", action="store_true")
    parser.add_argument(
        "--scratch", metavar="FOLDER", help="keep the peers' environment here, and use it again"
    )
    given = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    with tempfile.TemporaryDirectory() as folder:
        env = environment(str(Path(folder) / "bytecode"))
        scratch = Path(given.scratch or folder)
        commands = cold_commands() | (peers(scratch / "peers") if given.peers else {})
        seconds = best(commands, given.rounds, env)
        base = seconds["python -c pass"]
        for name, value in seconds.items():
            print(f"{value / base:6.1f} x  {name}")
        for name, launch in LAUNCHES.items():
            warm = [sys.executable, "-c", WARM, json.dumps(launch)]
            done = subprocess.run(warm, capture_output=True, text=True, env=env, check=True)
            print(f"{float(done.stdout) / base:6.2f} x  in process, with its checked changes: {name}")
        pools()
        if given.peers:
            beside_peers(scratch)
    ratios = [value / base for name, value in seconds.items() if name.startswith("ullage")]
    return int(max(ratios) > GOAL_RATIO)


if __name__ == "__main__":
    sys.exit(main())
