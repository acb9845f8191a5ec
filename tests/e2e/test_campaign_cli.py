"""``ullage campaign`` as a user runs it: init, dry run, wrong use."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.lab.campaign.world import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_init_dry_run_and_schema(world: World) -> None:
    launch = ["vllm", "serve", "Qwen/Qwen3-8B", "--max-model-len", "8192"]
    code, _, err = world.run("init", "--gpu", "H100", "--engine-version", "0.19.0", "--", *launch)
    assert code == 0, err
    assert (world.folder / "campaign.schema.json").is_file()
    code, out, _ = world.run("run", "--dry-run", "campaign.yaml")
    assert code == 0
    assert "shorter-batches" in out and "starts" in out and "expected:" in out
    assert not (world.folder / "campaign.db").exists()
    code, _, err = world.run("init", "--", *launch)
    assert code == 2 and "is there already" in err
    code, out, _ = world.run("run", "--dry-run", "--json", "campaign.yaml")
    assert [row["verdict"] for row in json.loads(out)["rows"]] == ["starts"] * 4


def test_wrong_use_is_2_and_one_line(world: World) -> None:
    (world.folder / "bad.yaml").write_text("launch: ls\n")
    for words in (["run", "no.yaml"], ["run", "bad.yaml"], ["status", "c.yaml"], ["report", "c.yaml"],
                  ["export", "c.yaml"], ["init", "--", "ls"], ["init"]):  # fmt: skip
        code, out, err = world.run(*words)
        assert (code, out) == (2, ""), words
        assert err.startswith("ullage: ") and err.count("\n") == 1, words
    assert not (world.folder / "c.db").exists()


def test_secrets_reach_no_record(tmp_path: Path) -> None:
    approaches = "approaches:\n  - {name: keyed, reason: x, env: {HF_TOKEN: hf_abcdefghijklmnopqrstuvwxyz}, flags: {api-key: sesame-open, max-num-seqs: 1}, build: echo $HF_TOKEN}"
    world = World(tmp_path, approaches=approaches)
    text = world.file.read_text().replace("launch: STUB", "launch: MY_API_KEY=sk-verysecretvalue123 STUB")
    world.file.write_text(text)
    code, _, err = world.run("run", world.file.name)
    assert code == 0, err
    shown = err + "".join(world.run(*words)[1] for words in (
        ["status", "c.yaml"], ["report", "c.yaml", "--html", "r.html", "--unmasked"], ["export", "c.yaml"],
    ))  # fmt: skip
    kept = [path for path in tmp_path.rglob("*") if path.is_file() and path != world.file]
    everything = shown.encode() + b"".join(path.read_bytes() for path in kept)
    for secret in (b"hf_abcdefghijkl", b"sesame-open", b"sk-verysecret"):
        assert secret not in everything, secret
    assert len(kept) > 5
    assert b'"split": [' in shown.encode() and b"build.log" in b" ".join(str(p).encode() for p in kept)


def test_a_build_runs_before_the_launch(tmp_path: Path) -> None:
    built = tmp_path / "built"
    approaches = f"""\
approaches:
  - {{name: built, reason: x, build: 'echo done > {built}'}}
  - {{name: broken, reason: x, build: 'echo no compiler; exit 4'}}"""
    world = World(tmp_path, approaches=approaches)
    code, _, err = world.run("run", world.file.name)
    assert code == 0, err
    assert built.read_text() == "done\n"
    found = {e["name"]: e for e in world.export()["experiments"]}
    assert found["built"]["stage"] == "done"
    assert "the build failed: sh ended with code 4: no compiler" in found["broken"]["why"]


def test_a_limit_for_the_whole_campaign(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.file.write_text(world.file.read_text().replace("free: 1s", "free: 1s, campaign: 500ms"))
    code, _, err = world.run("run", world.file.name)
    assert code == 3 and "limit" in err
    world.file.write_text(world.file.read_text().replace("campaign: 500ms", "campaign: 10m"))
    code, _, err = world.run("resume", world.file.name)
    assert code == 0, err
    world.nothing_left()
