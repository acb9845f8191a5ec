"""The campaign file: what is wrong with it is said with file, line and key."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ullage.core.errors import InputError
from ullage.core.units import duration_text
from ullage.lab.campaign import durations, file, init

OK = "launch: vllm serve m\napproaches:\n  - name: a\n    reason: b\n    flags: {seed: 3}\n"


def error(tmp_path: Path, text: str) -> str:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(InputError) as found:
        file.load(path)
    assert "\n" not in found.value.line
    return found.value.line.replace(f"{path}", "c.yaml")


def loaded(tmp_path: Path, text: str) -> file.Loaded:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    return file.load(path)


@pytest.mark.parametrize(("text", "words"), [
    ("", "c.yaml:1: must hold a mapping"),
    ("launch: ls -l\n", "c.yaml:1: launch: starts neither SGLang nor vLLM"),
    (OK + "    resons: 3\n", "c.yaml:6: approaches[0].resons: is no key of a campaign file (hint: did you mean reason?)"),
    (OK.replace("    reason: b\n", ""), "c.yaml:3: approaches[0].reason: is missing"),
    (OK + "repeats: two\n", "c.yaml:6: repeats: expected a whole number"),
    (OK + "repeats: 0\n", "c.yaml:6: repeats: expected a whole number >= 1"),
    (OK + "launch: x\n", "c.yaml:6: launch: is given twice"),
    (OK + "where: {kind: moon}\n", "c.yaml:6: where.kind: value 'moon' is none of: local"),
    (OK + "where: {kind: ssh}\n", "c.yaml:6: where.hosts: is missing"),
    (OK + "limits:\n  start: soon\n", "c.yaml:7: limits.start: not a length of time: 'soon'"),
    (OK + "goals: [output_thruput]\n", "near: output_throughput"),
    (OK + "goals: [{metric: x}]\nbenchmark: {kind: command, command: c, metrics: {x: {json: y}}}\n", "which way is better"),
    (OK + "benchmark: {kind: command}\n", "c.yaml:6: benchmark.command: is missing"),
    (OK + "benchmark: {kind: command, command: c, metrics: {x: {regex: '(a)(b)'}}}\n", "has 2 groups"),
    (OK + "benchmark: {kind: command, command: c, metrics: {x: {regex: '(a'}}}\n", "not a regular expression"),
    (OK + "space: {flags: {seed: [1]}}\n", "approaches or a space, not both"),
    ("launch: vllm serve m\nspace: {flags: {seed: [1, 1]}, trials: 3}\n", "space.flags.seed: a value stands there twice"),
    ("launch: vllm serve m\nspace: {flags: {seed: {low: 3, high: 1}}, trials: 3}\n", "low is above high"),
    ("launch: vllm serve m\nspace: {flags: {seed: [1]}}\n", "space.trials: is missing"),
    ("launch: vllm serve m\nspace: {flags: {f: {low: 0.1, high: 1.0}}, sampler: grid}\n", "a grid needs a step"),
    (OK.replace("flags: {seed: 3}", "env: {1x: 3}"), "approaches[0].env: expected text matching regex"),
    (OK.replace("flags: {seed: 3}", "flags: {seed: {a: 3}}"), "c.yaml:5: approaches[0].flags"),
    (OK.replace("flags: {seed: 3}", "also: [x]"), "changes nothing"),
    (OK.replace("name: a", "name: baseline"), "is taken"),
    (OK.replace("name: a", "name: '<b>'"), "approaches[0].name: expected text matching regex"),
    (OK + "x: !!python/object/apply:os.system [ls]\n", "c.yaml:6: not YAML: could not determine a constructor"),
    (OK + "x: [", "c.yaml:6: not YAML"),
    ("a: &a [x,x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b,*b]\n"
     "d: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: [*d,*d,*d,*d,*d,*d,*d,*d,*d,*d]\n", "unfolds to more than"),
    ("a: &a [*a]\n", "YAML"),
    (OK + "storage: mysql://x\n" + "x: 1\n", "x: is no key"),
    ("launch: vllm serve m\nspace: {flags: {seed: [1], a: [2]}, trials: 2}\ngoals: [output_throughput, median_ttft_ms]\n", "nsga2"),
])  # fmt: skip
def test_faults_name_the_place(tmp_path: Path, text: str, words: str) -> None:
    assert words in error(tmp_path, text)


def test_files_that_are_none(tmp_path: Path) -> None:
    for path, words in ((tmp_path / "no", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(InputError, match=words):
            file.load(path)
    path = tmp_path / "binary"
    path.write_bytes(b"launch: x\n\xff\xfe")
    with pytest.raises(InputError, match=r"binary:2: is not UTF-8"):
        file.load(path)
    path.write_bytes(b"x" * (2 << 20))
    with pytest.raises(InputError, match="larger than 1 MiB"):
        file.load(path)


@given(st.text(max_size=300))
def test_any_text_is_one_line_or_a_campaign(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    try:
        file.load(path)
    except InputError as found:
        assert "\n" not in found.line


def test_goals_have_direction_and_unit(tmp_path: Path) -> None:
    found = loaded(tmp_path, OK + "goals: [p99_itl_ms, {metric: output_throughput}]\n")
    assert [(t.metric, t.better, t.unit) for t in found.targets] == [
        ("p99_itl_ms", "lower", "ms"), ("output_throughput", "higher", "tok/s"),
    ]  # fmt: skip
    assert loaded(tmp_path, OK).targets[0].metric == "output_throughput"
    own = (
        OK
        + "benchmark: {kind: command, command: c, metrics: {score: {json: s, better: lower, unit: points}}}\n"
    )
    assert loaded(tmp_path, own).targets[0] == file.Target("score", "lower", "points")


@pytest.mark.parametrize(("text", "seconds"), [
    ("90s", 90), ("20m", 1200), ("1h30m", 5400), (45, 45), ("1.5h", 5400), ("2 h", 7200), ("250ms", 0.25),
])  # fmt: skip
def test_durations(text: str | float, seconds: float) -> None:
    assert durations.seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "-3s", "0", "0s", "90", "1000d", "3 parsecs", True])
def test_no_durations(text: str | bool) -> None:
    with pytest.raises(ValueError):
        durations.seconds(text)


def test_duration_words() -> None:
    assert duration_text(4000) == "1 h 06 min"
    assert duration_text(250.4) == "4 min 10 s"
    assert duration_text(12) == "12 s"


def test_the_schema_is_that_of_the_structs_and_takes_what_is_taken(tmp_path: Path) -> None:
    import jsonschema
    import yaml

    kept = Path(file.__file__).with_name("schema.json").read_bytes()
    assert kept == file.schema(), "run: python tools/campaign_schema.py"
    schema = json.loads(kept)
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(yaml.safe_load(OK), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(yaml.safe_load(OK + "repeats: two\n"), schema)


@pytest.mark.parametrize("launch", [
    "vllm serve Qwen/Qwen3-8B --max-model-len 32k", "HF_HUB_OFFLINE=1 python -m sglang.launch_server --model-path m --tp 8",
    "docker run --gpus all -p 8000:8000 vllm/vllm-openai:v0.20.2 --model m",
])  # fmt: skip
def test_init_writes_a_file_that_loads(tmp_path: Path, launch: str) -> None:
    found = loaded(tmp_path, init.text(launch, "8x H100", "0.20.2"))
    assert found.campaign.launch.strip() == launch
    assert found.campaign.gpu == "8x H100"
    assert len(found.campaign.approaches) == 2
    assert [t.metric for t in found.targets] == ["output_throughput", "median_ttft_ms"]


def test_the_examples_load() -> None:
    paths = sorted((Path(__file__).parents[3] / "examples").glob("campaign*.yaml"))
    assert paths
    for path in paths:
        assert file.load(path).campaign.launch
