"""``comm plan`` and its neighbours from a command line to words and JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ullage.cli.comm import command
from ullage.core.errors import InputError
from ullage.planning.comm import needs

FOUNDING = (
    "python3 -m sglang.launch_server --model-path moonshotai/Kimi-K2.5 --tp 8 --trust-remote-code"
    " --speculative-algorithm EAGLE3 --speculative-num-steps 2 --speculative-eagle-topk 1"
    " --speculative-num-draft-tokens 3"
)
NCCL_TESTS = Path(__file__).parent / "nccl_tests"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ULLAGE_HOME", str(tmp_path))
    return tmp_path


def run(*words: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(command, list(words), input=stdin, standalone_mode=False)


def answer(*options: str, launch: str = FOUNDING, gpu: str = "8x RTX PRO 6000", version: str = "0.5.9") -> Any:
    found = run("plan", "--no-hub", "--json", "--gpu", gpu, "--engine-version", version, *options, "--", launch)
    assert found.exception is None, found.exception
    return json.loads(found.output)


def test_the_founding_case() -> None:
    found = answer("--batch", "1", "--phase", "decode")
    assert (found["all_reduces"], found["all_reduce_bytes"]) == (122, 43008)
    (verify,) = found["forwards"]
    assert (verify["verify"], verify["batch"], verify["rows"]) == (True, 1, 3)
    by_id = {one["id"]: one for one in found["backends"]}
    assert by_id["nccl"]["runs"]
    assert by_id["torch_symm_mem"]["message"] == "KeyError: 12"
    first = found["try"][0]
    assert first["change"] == {"$NCCL_P2P_LEVEL": "SYS"}
    assert first["gain_us"]["high"] == pytest.approx(122 * (246 - 29.5), rel=0.02)


def test_what_the_log_shows() -> None:
    shm, p2p = (answer("--via", via, "--batch", "1", "--phase", "decode") for via in ("SHM", "P2P/IPC"))
    slow, quick = (one["forwards"][0]["collectives"][0]["call_us"]["value"] for one in (shm, p2p))
    assert round(slow) == 246
    assert 25 <= quick <= 34
    assert shm["try"][0]["gain_us"]["value"] == pytest.approx(122 * (slow - quick), rel=0.01)
    assert p2p["try"] == []
    assert shm["nccl_memory"]["bytes"]["value"] == 0


def test_a_measured_figure_replaces_the_models(tmp_path: Path) -> None:
    found = answer("--measured", str(NCCL_TESTS / "v2.13-group.txt"), "--batch", "1", "--phase", "decode")
    main = found["forwards"][0]["collectives"][0]
    assert main["measured"]
    assert 26.1 <= main["call_us"]["value"] <= 27.9
    assert not any("P2P_LEVEL" in str(one["change"]) for one in found["try"])


def test_what_is_imported_is_kept_and_used(home: Path) -> None:
    text = (NCCL_TESTS / "v2.13-group.txt").read_text()
    imported = run("import", "-", stdin=text)
    assert imported.return_value == 0
    assert "kept:" in imported.output
    assert len(list((home / "comm").glob("*.json"))) == 1
    assert answer("--batch", "1")["forwards"][0]["collectives"][0]["measured"]
    assert not answer("--batch", "1", "--no-store")["forwards"][0]["collectives"][0]["measured"]


def test_an_outlier_is_named_on_import() -> None:
    text = (NCCL_TESTS / "v2.17-mpirun-timestamps.txt").read_text()
    found = json.loads(run("import", "-", "--json", "--no-store", stdin=text).output)
    assert "try NCCL_P2P_LEVEL=SYS" in found["outliers"][0]["text"]


def test_the_custom_kernel_runs_on_nvlink_and_eager_costs() -> None:
    launch = "vllm serve Qwen/Qwen3-32B -tp 8"
    graph = answer(launch=launch, gpu="8x H100", version="0.24.0")
    eager = answer(launch=f"{launch} --enforce-eager", gpu="8x H100", version="0.24.0")
    off = answer(launch=f"{launch} --disable-custom-all-reduce", gpu="8x H100", version="0.24.0")
    runs = [next(b["id"] for b in one["backends"] if b["runs"]) for one in (graph, eager, off)]
    assert runs == ["custom", "custom", "torch_symm_mem"]  # which vLLM keeps on by itself
    assert eager["try"][0]["change"] == {"--enforce-eager": False}
    assert eager["forwards"][0]["total_us"]["value"] > 4 * graph["forwards"][0]["total_us"]["value"]


def test_a_topology_file(tmp_path: Path) -> None:
    names = [f"GPU{n}" for n in range(8)]
    rows = ["\t" + "\t".join(names) + "\tCPU Affinity\tNUMA Affinity"]
    rows += [f"{a}\t" + "\t".join("X" if a == b else "PIX" for b in names) + "\t0-63\t0" for a in names]
    path = tmp_path / "topo.txt"
    path.write_text("\n".join(rows))
    assert answer("--topology", str(path))["links"]["fabric"] == "switch"


def test_what_bench_measures_for_a_launch() -> None:
    found = needs(f"NCCL_PROTO=LL {FOUNDING}")
    assert found.ranks == 8
    assert {43008, 14336, 8 * 43008, 32 * 43008} <= set(found.sizes)
    assert found.environment == {"NCCL_PROTO": "LL"}
    with pytest.raises(InputError, match="no all-reduce"):
        needs("vllm serve Qwen/Qwen3-32B")


def test_one_gpu_has_no_collectives() -> None:
    found = run("plan", "--no-hub", "--gpu", "H100", "--", "vllm serve Qwen/Qwen3-32B")
    assert found.return_value == 0
    assert "No all-reduce at all" in found.output


def test_an_unknown_model_is_said(tmp_path: Path) -> None:
    found = run("plan", "--no-hub", "--gpu", "8x H100", "--", "vllm serve nobody/knows-this -tp 8")
    assert found.return_value == 3
    assert "--model-dir" in found.output


def test_words_name_figures_bands_and_sources() -> None:
    found = run("plan", "--no-hub", "--gpu", "8x RTX PRO 6000", "--engine-version", "0.5.9", "--", FOUNDING)
    for words in ("122 all-reduces of 42 KiB", "VERIFY PASS, BATCH 1", "PREFILL OF", "“KeyError: 12”",
                  "WHAT TO TRY FIRST", "NCCL_P2P_LEVEL=SYS", "sglang 0.5.9 and vllm 0.33.0"):  # fmt: skip
        assert words in found.output


@pytest.mark.parametrize(
    "words",
    [("plan", "--measured", "none.txt", "--", "vllm serve m"), ("plan", "--", "ls"), ("plan", "--via", "x", "--", "vllm serve m"), ("import", "none.txt"),
     ("plan", "--topology", "none.txt", "--", "vllm serve m"), ("bench", "--set", "PATH=x", "--python", "none")],
)  # fmt: skip
def test_bad_input_is_one_clear_line(words: tuple[str, ...]) -> None:
    from ullage.core.errors import UllageError

    found = run(*words)
    assert isinstance(found.exception, UllageError)
    assert "\n" not in found.exception.line
