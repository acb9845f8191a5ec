"""The command: counts, files, refusals."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from ullage.cli import main
from ullage.planning.plan import Asked, plan

KIMI = "python -m sglang.launch_server --model-path moonshotai/Kimi-K2.5 --tp 8"
OVER = "mem-fraction-static=0.5:0.95:0.01"
FOUNDING = ["--gpu", "8x RTX PRO 6000", "--engine-version", "0.5.9", "--over", OVER]


def run(capsys: pytest.CaptureFixture[str], *words: str, command: str = KIMI) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["sweep", *words, command])
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


def rows(capsys: pytest.CaptureFixture[str], *words: str, command: str = KIMI) -> list[dict[str, Any]]:
    _, out, err = run(capsys, "--json", *words, command=command)
    assert err == ""
    found: list[dict[str, Any]] = json.loads(out)["rows"]
    return found


def test_founding_case(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, *FOUNDING, "--json", "--limit", "100", "--sort", "mem_fraction_static")
    found = json.loads(out)
    verdicts = {row["mem_fraction_static"]: row["verdict"] for row in found["rows"]}
    assert code == 0
    assert found["schema"] == "ullage.sweep/1"
    assert found["configurations"] == len(verdicts) == 46
    assert verdicts[0.55] == "fails" and verdicts[0.88] == "starts"
    at = next(row for row in found["rows"] if row["mem_fraction_static"] == 0.88)
    single = plan(Asked(f"{KIMI} --mem-fraction-static 0.88", "8x RTX PRO 6000", "0.5.9"))
    assert single.budget.kv_tokens is not None
    assert at["kv_tokens"] == single.budget.kv_tokens.value


def test_discrete_axes_are_read_as_the_command_is(capsys: pytest.CaptureFixture[str]) -> None:
    found = rows(
        capsys, "--over", "tp=4,8", "--over", "gpu=8x H200,8x B200", "--over", "kv-cache-dtype=auto,fp8_e4m3",
        "--over", "engine-version=0.5.9,0.5.12", "--over", "mem-fraction-static=0.85,0.9", "--limit", "99",
    )  # fmt: skip
    assert len(found) == 32
    for row in found[::7]:
        single = plan(Asked(
            f"{KIMI} --tp {row['tp']} --kv-cache-dtype {row['kv_cache_dtype']} --mem-fraction-static {row['mem_fraction_static']}",
            row["gpu"], row["engine_version"],
        ))  # fmt: skip
        tokens = single.budget.kv_tokens
        assert (row["verdict"], row["kv_tokens"]) == (single.verdict, tokens and int(tokens.value))
        assert row["num_gpus"] == row["tp"]


def test_switches_and_models(capsys: pytest.CaptureFixture[str]) -> None:
    found = rows(
        capsys, "--gpu", "H100", "--over", "enforce-eager=true,false", "--over", "model=Qwen/Qwen3-8B,Qwen/Qwen3-14B",
        "--over", "gpu-memory-utilization=0.9", command="vllm serve Qwen/Qwen3-8B",
    )  # fmt: skip
    assert len(found) == 4
    for row in found:
        eager = " --enforce-eager" if row["enforce_eager"] == "True" else ""
        single = plan(Asked(f"vllm serve {row['model']} --gpu-memory-utilization 0.9{eager}", "H100"))
        tokens = single.budget.kv_tokens
        assert row["kv_tokens"] == (tokens and int(tokens.value))


def test_drawn_rows_depend_on_the_seed_alone(capsys: pytest.CaptureFixture[str]) -> None:
    words = [*FOUNDING, "--over", "context-length=4k:256k:4k", "--random", "300", "--limit", "300"]
    once, again, other = (rows(capsys, *words, "--seed", seed) for seed in ("1", "1", "2"))
    assert len(once) == 300
    assert once == again != other


def test_where_and_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, *FOUNDING, "--where", "mem_fraction_static < 0.7")
    assert code == 1
    assert "46 configurations, 20 match: 0 start, 20 do not, 0 unsure" in out
    code, out, _ = run(capsys, *FOUNDING, "--where", "mem_fraction_static > 2")
    assert (code, out) == (1, "46 configurations, 0 match: 0 start, 0 do not, 0 unsure\n")


def test_front(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--gpu", "8x H100", "--engine-version", "0.5.9", "--over", "tp=1,2,4,8", "--over", OVER]
    found = rows(
        capsys,
        *words,
        "--pareto",
        "kv_tokens,-num_gpus",
        "--sort",
        "num_gpus",
        command=KIMI.replace("moonshotai/Kimi-K2.5", "Qwen/Qwen3-32B"),
    )
    assert [row["num_gpus"] for row in found] == [1, 2, 4, 8]
    assert sorted(found, key=lambda row: row["kv_tokens"]) == found


def test_csv_has_every_row(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "all.csv"
    code, out, err = run(capsys, *FOUNDING, "--csv", str(path))
    assert (code, out) == (0, "") and "46 configurations" in err
    with path.open() as stream:
        found = list(csv.DictReader(stream))
    assert len(found) == 46
    assert {row["verdict"] for row in found} >= {"starts", "fails"}
    assert all(row["kv_tokens"].lstrip("-").isdigit() for row in found)
    assert [p.name for p in tmp_path.iterdir()] == ["all.csv"]
    code, _, err = run(capsys, *FOUNDING, "--csv", str(path))
    assert code == 2 and "exists already" in err


def test_parquet_has_the_same(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from pyarrow import parquet

    run(capsys, *FOUNDING, "--over", "kv-cache-dtype=auto,fp8_e4m3", "--parquet", str(tmp_path / "a.parquet"))
    found = parquet.read_table(tmp_path / "a.parquet").to_pylist()
    told = rows(
        capsys,
        *FOUNDING,
        "--over",
        "kv-cache-dtype=auto,fp8_e4m3",
        "--limit",
        "1000",
        "--sort",
        "kv_cache_dtype,mem_fraction_static",
    )
    assert len(found) == 92
    assert [(r["mem_fraction_static"], r["verdict"], r["kv_tokens"], r["cause"]) for r in found] == [
        (r["mem_fraction_static"], r["verdict"], r["kv_tokens"], r["cause"]) for r in told
    ]


def test_nothing_is_left_of_a_file_that_fails(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, _, err = run(capsys, *FOUNDING, "--csv", str(tmp_path / "a.csv"), "--where", "nothing > 1")
    assert code == 2 and "no column nothing" in err
    assert list(tmp_path.iterdir()) == []
    code, _, err = run(capsys, *FOUNDING, "--csv", str(tmp_path / "none" / "a.csv"))
    assert code == 2 and "cannot be written" in err


@pytest.mark.parametrize(("words", "said"), [
    (["--over", "zork=1,2"], "zork"),
    (["--over", "mem-fraction-static=0.5,7"], "no share"),
    (["--over", "mem-fraction-static=abc"], "wants a number"),
    (["--over", "mem-fraction-static=0.5", "--over", "mem_fraction_static=0.6"], "varied twice"),
    (["--over", "gpu=Nonsense 9000"], "names no GPU"),
    (["--over", OVER, "--where", "__import__('os')"], "no part of a condition"),
    (["--over", OVER, "--pareto", "verdict"], "no column verdict"),
    (["--over", OVER, "--sort", "zork"], "no column zork"),
    (["--over", "mem-fraction-static=0.5:0.9:0.0000005", "--over", "context-length=1:1000000:1"], "--random"),
    (["--over", "max-running-requests=1:1000000", "--over", "context-length=1:1000"], "1,000,000,000 configurations"),
    (["--over", "tp=4,8", "--reading", "free_after_weights_gib=21.7"], "not the same for every tp"),
    (["--over", OVER, "--random", "999999999"], "configurations"),
])  # fmt: skip
def test_refused_in_one_line(capsys: pytest.CaptureFixture[str], words: list[str], said: str) -> None:
    code, out, err = run(capsys, *words)
    assert (code, out) == (2, "")
    assert said in err and err.count("\n") == 1, err


def test_without_numpy(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numpy", None)
    code, _, err = run(capsys, *FOUNDING)
    assert code == 2 and "pip install 'ullage[sweep]'" in err


def test_plan_and_help_load_no_numpy() -> None:
    import subprocess

    for words in (["--help"], ["plan", "--gpu", "H100", "vllm serve Qwen/Qwen3-8B"]):
        code = f"import sys; from ullage.cli import main\ntry: main({words!r})\nexcept SystemExit: pass\nassert 'numpy' not in sys.modules"
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
