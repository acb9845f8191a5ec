"""``ullage spec``: the founding case, its options, its JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ullage.cli.group import cli

LAUNCH = (
    "python -m sglang.launch_server --model-path moonshotai/Kimi-K2.5 --tp 8 --mem-fraction-static 0.88"
    " --cuda-graph-max-bs 128"
)
EAGLE3 = (
    f"{LAUNCH} --speculative-algorithm EAGLE3 --speculative-draft-model-path lightseekorg/kimi-k2.5-eagle3-mla"
    " --speculative-num-steps 2 --speculative-eagle-topk 1 --speculative-num-draft-tokens 3"
)
BOX = ["--gpu", "8x RTX PRO 6000", "--engine-version", "0.5.9", "--no-hub"]
SMALL = ["--gpu", "H100", "--engine-version", "0.11.0", "--no-hub"]
VLLM = "vllm serve Qwen/Qwen3-8B --max-model-len 8192"


def spec(*words: str, launch: str = EAGLE3) -> Result:
    return CliRunner().invoke(cli, ["spec", *words, launch], standalone_mode=False)


def answer(*words: str, launch: str = EAGLE3) -> dict[str, object]:
    found = spec(*words, "--json", launch=launch)
    assert found.exception is None, found.exception
    return json.loads(found.stdout)  # type: ignore[no-any-return]


FOUNDING = [*BOX, "--accept-length", "2.04-2.28", "--measured", "batch=1,tok_s=89.5"]


def test_founding_case_cannot_pay_at_246_us() -> None:
    found = spec(*FOUNDING, "--allreduce-us", "246")
    assert found.return_value == 1
    text = " ".join(found.stdout.split())
    assert "It cannot pay at batch 1" in text and "3 rows give at most 3" in text
    assert "122 all-reduces of 42 KiB at 246 µs take 30.0" in text
    first = answer(*FOUNDING, "--allreduce-us", "246")["batches"][0]  # type: ignore[index]
    needed = first["break_even_length"]
    assert needed["low"] < 3.69 < needed["high"] and needed["value"] > 3.3
    assert first["allreduce"]["count"] == 122 and first["allreduce"]["bytes"] == 43_008
    assert 80 < first["allreduce"]["allowed_us"]["1"] < 125


def test_founding_case_with_both_runs_measured_needs_about_3_69() -> None:
    """The round of the run with EAGLE-3, by its 54.1 tok/s and the middle of its heads' lengths."""
    words = [*FOUNDING, "--measured", "batch=1,tok_s=54.1,accept=2.16", "--allreduce-us", "246"]
    first = answer(*words)["batches"][0]  # type: ignore[index]
    assert first["break_even_length"]["value"] == pytest.approx(3.69, abs=0.2)
    assert first["verdict"] == "cannot"


def test_founding_case_pays_at_32_us() -> None:
    found = answer(*FOUNDING, "--allreduce-us", "32")
    first = found["batches"][0]  # type: ignore[index]
    assert first["verdict"] == "pays"
    assert first["tok_s"]["with"]["low"] < 137 < 153 < first["tok_s"]["with"]["high"] + 10
    assert first["tok_s"]["without"]["value"] == pytest.approx(89.5, rel=0.02)


def test_founding_case_is_told_what_hosts_of_its_kind_show() -> None:
    usual = answer(*FOUNDING, "--allreduce-us", "246")["usual_allreduce"]
    assert 20 < usual["us"]["value"] < 40  # type: ignore[index]
    assert usual["tok_s"]["low"] < 145 < usual["tok_s"]["high"]  # type: ignore[index]


def test_the_json_is_whole() -> None:
    found = answer(*BOX, "--accept", "0.645,0.393", "--batch", "1,16")
    assert found["schema"] == "ullage.spec/1"
    assert found["width"] == {"depth": 2, "topk": 1, "verify_rows": 3}
    assert found["cap"] == 3 and found["experts"] == {"num": 384, "per_token": 8}
    assert [item["batch"] for item in found["batches"]] == [1, 16]  # type: ignore[attr-defined]
    assert len(found["depths"]) == 10  # type: ignore[arg-type]
    assert {m["name"] for m in found["memory"]} >= {"draft weights"}  # type: ignore[attr-defined]
    first = found["batches"][0]  # type: ignore[index]
    for step in (first["decode"], first["round"]):
        assert step["us"]["low"] <= step["us"]["value"] <= step["us"]["high"]
        assert sum(e["us"] for e in step["entries"]) == pytest.approx(step["us"]["value"], abs=2)
    assert first["experts_touched"]["decode"] == 8


def test_a_launch_without_drafts_can_be_asked_about() -> None:
    found = answer(*SMALL, "--method", "eagle3", "--depth", "3", "--accept-length", "2.3", launch=VLLM)
    assert found["batches"][0]["verdict"] == "pays"  # type: ignore[index]
    assert found["memory"] == []


def test_it_stops_paying_where_compute_does() -> None:
    """A dense model: rows cost nothing until the matrices are bound by compute."""
    words = ["--method", "eagle3", "--depth", "5", "--accept-length", "2.0", "--context", "64"]
    found = answer(*SMALL, *words, launch=VLLM)
    (only,) = found["pays_at"]  # type: ignore[misc]
    assert only["from"] == 1 and 8 < only["to"] < 512


def test_a_poor_head_is_better_shallow() -> None:
    best = answer(*SMALL, "--method", "eagle3", "--accept", "0.5,0.02,0.001", launch=VLLM)["best_depth"]
    assert best["1"] == 1  # type: ignore[index]


def test_a_tree_has_no_other_depths() -> None:
    words = ["--method", "eagle", "--depth", "5", "--topk", "4", "--draft-tokens", "16", "--accept-length", "3"]
    found = answer(*SMALL, *words, launch=VLLM)
    assert found["depths"] == [] and any("tree" in note for note in found["notes"])  # type: ignore[union-attr]


def test_without_an_acceptance_the_usual_one_is_taken_and_said() -> None:
    found = answer(*SMALL, "--method", "eagle3", "--depth", "3", launch=VLLM)
    assert any("tokens a round" in text for text in found["assumed"])  # type: ignore[union-attr]


def test_measured_sizes_hold_for_both_steps() -> None:
    first = answer(*FOUNDING, "--allreduce-us", "14KiB=30,42KiB=246")["batches"][0]  # type: ignore[index]
    told = {e["name"]: e for e in first["decode"]["entries"]}["all-reduces"]
    assert told["certainty"] == "observed" and told["us"] == pytest.approx(122 * 30, rel=0.01)


@pytest.mark.parametrize(
    "words",
    [
        ["--accept", "0.8,0.9"], ["--accept", "x"], ["--accept-length", "9"], ["--accept-length", "nan"],
        ["--accept-length", "2@0"], ["--accept-length", "2.5-2.0"], ["--accept-rate", "0.5", "--accept", "0.4"],
        ["--measured", "batch=1"], ["--measured", "batch=1,tok_s=0"], ["--measured", "tok_s=3"],
        ["--measured", "batch=1,tok_s=3,what=4"], ["--allreduce-us", "x"], ["--allreduce-us", "12 XB=3"],
        ["--allreduce-us", "-1"], ["--batch", "0"], ["--batch", "1.5"], ["--batch", "1,,2"],
        ["--log", "no-such-file"], ["--metrics", "no-such-file"], ["--metrics", "a", "--metrics", "b", "--metrics", "c"],
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_one_line(words: list[str]) -> None:
    from ullage.core.errors import UllageError

    found = spec(*BOX, *words)
    assert isinstance(found.exception, UllageError)
    assert "\n" not in found.exception.line


def test_a_log_without_acceptance_says_so(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("nothing here\n")
    found = spec(*BOX, "--log", str(log))
    assert "shows no acceptance length" in str(found.exception)


def test_an_unknown_gpu_or_no_speculation_says_what_is_missing() -> None:
    assert "no GPU is named" in str(spec("--no-hub").exception)
    assert "does not speculate" in str(spec(*BOX, launch=LAUNCH).exception)


@pytest.mark.parametrize("number", ["99999999", "-4", "0", "true", '"x"'])
def test_a_depth_that_cannot_be_is_not_taken_in_silence(number: str) -> None:
    launch = f'{VLLM} --speculative-config \'{{"method": "eagle3", "num_speculative_tokens": {number}}}\''
    found = answer(*SMALL, launch=launch)
    assert "3 drafts a round; pass --depth" in found["assumed"]  # type: ignore[operator]


@pytest.mark.parametrize(
    ("launch", "rows"),
    [
        (f'{VLLM} --speculative-config \'{{"method": "ngram", "num_speculative_tokens": 4}}\'', 5),
        ("python -m sglang.launch_server --model-path Qwen/Qwen3-8B --speculative-algorithm NGRAM"
         " --speculative-num-draft-tokens 12", 12),
    ],
)  # fmt: skip
def test_matches_cost_no_draft_forwards_and_may_be_as_long_as_the_width(launch: str, rows: int) -> None:
    found = answer("--gpu", "H100", "--no-hub", launch=launch)
    assert found["width"]["verify_rows"] == rows and found["cap"] == rows  # type: ignore[index]
    assert not [e for e in found["batches"][0]["round"]["entries"] if e["stage"] == "draft"]  # type: ignore[index]


@pytest.mark.parametrize("sizes", ["0=5", f"{'9' * 400}=5", "5000TiB=5", "=5", "KiB=3"])
def test_sizes_that_cannot_be_are_refused(sizes: str) -> None:
    from ullage.core.errors import UllageError

    assert isinstance(spec(*BOX, "--allreduce-us", sizes).exception, UllageError)


def test_a_measurement_beyond_the_ledger_is_said_to_be() -> None:
    notes = answer(*BOX, "--accept", "0.6,0.4", "--measured", "batch=1,step_ms=900")["notes"]
    assert any("the ledger explains" in note for note in notes)  # type: ignore[union-attr]
    assert not any("explains" in note for note in answer(*FOUNDING)["notes"])  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "words", [["--accept", "0"], ["--accept", "1,1,1"], ["--accept-length", "1"], ["--accept-length", "3"]]
)
def test_the_ends_of_acceptance_have_an_answer(words: list[str]) -> None:
    gain = answer(*BOX, *words)["batches"][0]["speedup"]  # type: ignore[index]
    assert 0 < gain["low"] <= gain["value"] <= gain["high"]
