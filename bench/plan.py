"""How long ``ullage plan`` takes, as ratios in one run, and how near its KV pools are to public starts.

    python bench/plan.py [--rounds 15] [--peers]

Cold: the installed command, offline, against ``python -c pass`` of the same interpreter; both with compiled
bytecode, all in turn on one core, the best of the rounds counts. Warm: a plan in process. ``--peers`` installs
kvfit and hf-mem into a scratch environment and times them too: without a hub they can only say what they know
by heart, which is the least that any of their answers takes. Exit code 1 above 8 x.
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
PEERS = {"kvfit": ["kvfit", "--list-hardware"], "hf-mem": ["hf-mem", "--help"]}


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
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    found = {}
    for name, command in PEERS.items():
        install = [str(folder / "bin" / "pip"), "install", "-q", name]
        done = subprocess.run(install, capture_output=True, check=False)
        if done.returncode == 0:
            found[f"{name} (its start alone)"] = [str(folder / "bin" / command[0]), *command[1:]]
        else:
            print(f"{name} cannot be installed here", file=sys.stderr)
    return found


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
    given = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    with tempfile.TemporaryDirectory() as folder:
        env = environment(str(Path(folder) / "bytecode"))
        commands = cold_commands() | (peers(Path(folder) / "peers") if given.peers else {})
        seconds = best(commands, given.rounds, env)
        base = seconds["python -c pass"]
        for name, value in seconds.items():
            print(f"{value / base:6.1f} x  {name}")
        for name, launch in LAUNCHES.items():
            warm = [sys.executable, "-c", WARM, json.dumps(launch)]
            done = subprocess.run(warm, capture_output=True, text=True, env=env, check=True)
            print(f"{float(done.stdout) / base:6.2f} x  in process, with its checked changes: {name}")
    pools()
    ratios = [value / base for name, value in seconds.items() if name.startswith("ullage")]
    return int(max(ratios) > GOAL_RATIO)


if __name__ == "__main__":
    sys.exit(main())
