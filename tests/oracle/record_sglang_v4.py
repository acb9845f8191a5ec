"""Record how SGLang's own code sizes the pools of DeepSeek-V4, release by release.

    python tests/oracle/record_sglang_v4.py --oracle sglang_oracle.py --wheels DIR --python VENV/bin/python \\
        --transformers5 DIR [--out tests/oracle/sglang/deepseek_v4.jsonl]

As record_sglang.py, one process a question. The oracle script's stand-in for the pipeline group lacks a size that
0.5.16..0.5.20 ask for; a copy of the script that has it is run. Nothing here is imported by ullage.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

RELEASES = (
    "0.5.12",
    "0.5.13",
    "0.5.14",
    "0.5.15",
    "0.5.16",
    "0.5.18",
    "0.5.19",
    "0.5.20",
    "0.5.21",
    "0.5.22",
    "0.5.23",
)
EAGLE = "--speculative-algorithm EAGLE --speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4"
#: GPU in MiB, capability, GiB after and before the weights, flags
QUESTIONS: tuple[tuple[int, str, float, float, str], ...] = (
    (143771, "9.0", 60.0, 138.2, "--tp 8"),
    (183359, "10.0", 101.5, 176.9, "--tp 4"),
    (97871, "9.0", 57.01, 93.61, "--tp 8 --mem-fraction-static 0.6 --page-size 256 --disable-radix-cache"),
    (143771, "9.0", 60.0, 138.2, "--tp 8 --max-running-requests 64 --swa-full-tokens-ratio 0.2 --mem-fraction-static 0.8"),
    (143771, "9.0", 60.0, 138.2, "--tp 8 --max-total-tokens 1000000"),
    (143771, "9.0", 58.3, 138.2, f"--tp 8 {EAGLE}"),
)  # fmt: skip
KEPT = ("max_total_num_tokens", "swa_max_total_num_tokens", "max_running_requests")
SHAPE = Path(__file__).parents[2] / "src/ullage/models/data/deepseek-v4-flash.toml"
#: keys of the public config.json that the classes of the releases insist on
MORE = {"num_hash_layers": 3, "hc_mult": 4, "index_topk": 512, "rope_theta": 10000, "v_head_dim": 512}
LACKS, HAS = "ps=types.SimpleNamespace(attn_dp_size=dp)", "ps=types.SimpleNamespace(attn_dp_size=dp, pp_size=1)"


def config(folder: Path) -> Path:
    """The model's config.json, with what the classes of the releases want beside its shape."""
    shape = tomllib.loads(SHAPE.read_text())["config"]
    path = folder / "config.json"
    path.write_text(json.dumps(shape | MORE))
    return path


def ask(opt: argparse.Namespace, script: Path, model: Path, release: str, question: Any) -> dict[str, Any]:
    mib, capability, free, total, flags = question
    command = [
        opt.python, str(script), "--version", release, "--wheels", opt.wheels, "--site", opt.transformers5, "--gpus", "8",
        "--gpu-mem-mib", str(mib), "--capability", capability, "--model", str(model), "--avail-gib", str(free),
        "--total-gib", str(total), "--draft-layers", "1", "--", "--trust-remote-code", *flags.split(),
    ]  # fmt: skip
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=env)
    found = json.loads(done.stdout[done.stdout.index("{") :])
    pool = found["kv"]["pool_config"]
    return {"f": found["resolved"]["mem_fraction_static"], **{k: pool[k] for k in KEPT}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("oracle", "wheels", "python", "transformers5"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--out", default=str(Path(__file__).parent / "sglang" / "deepseek_v4.jsonl"))
    opt = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="record-v4-"))
    script = folder / "oracle.py"
    script.write_text(Path(opt.oracle).read_text().replace(LACKS, HAS))
    model, rows = config(folder), []
    for release in RELEASES:
        for question in QUESTIONS:
            try:
                rows.append(
                    {"release": release, "question": question, **ask(opt, script, model, release, question)}
                )
            except (ValueError, KeyError) as error:
                print(f"{release} {question}: no answer ({error})", file=sys.stderr)
    Path(opt.out).write_text("".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows))
    print(f"{len(rows)} answers")


if __name__ == "__main__":
    main()
