"""SGLang's command line, read as its own parser reads it."""

from __future__ import annotations

import itertools

import pytest
from packaging.version import Version

from ullage.core.errors import CommandError
from ullage.core.tables import load
from ullage.engines.runtime.flags import FlagRow, FlagTable
from ullage.engines.sglang import ENGINE
from ullage.engines.sglang.args import defaults, owns_command

SERVE = "python -m sglang.launch_server --model-path a/b"


def values(command: str, version: str | None = "0.5.9") -> dict[str, object]:
    return {name: arg.value for name, arg in ENGINE.parse(command, version).args.items()}


def test_types_and_origins() -> None:
    launch = ENGINE.parse(f"{SERVE} --tp-size 8 --mem-fraction-static 0.55 --enable-dp-attention", "0.5.9")
    assert launch.model == "a/b"
    assert launch.integer("tp_size") == 8
    assert launch.number("mem_fraction_static") == 0.55
    assert launch.flag("enable_dp_attention")
    assert launch.args["tp_size"].origin == "given"
    assert launch.args["tp_size"].source == "--tp-size"
    assert not launch.unknown


@pytest.mark.parametrize(
    ("written", "name", "value"),
    [
        ("--tp 8", "tp_size", 8),
        ("--tensor-parallel-size=8", "tp_size", 8),
        ("--mem-fraction 0.9", "mem_fraction_static", 0.9),
        ("--max-running -1", "max_running_requests", -1),
        ("--cuda-graph-bs 1 2 4", "cuda_graph_bs", [1, 2, 4]),
        ("--lora-paths a=b c=d", "lora_paths", ["a=b", "c=d"]),
        ("--json-model-override-args '{\"a\": [1, 2]}'", "json_model_override_args", '{"a": [1, 2]}'),
        ("--tp-size TP", "tp_size", "TP"),
    ],
)
def test_spellings(written: str, name: str, value: object) -> None:
    assert values(f"{SERVE} {written}")[name] == value


def test_equals_sign_means_the_same() -> None:
    assert values(f"{SERVE} --tp-size=4 --dtype=half") == values(f"{SERVE} --tp-size 4 --dtype half")


def test_an_ambiguous_beginning_is_unknown() -> None:
    assert ENGINE.parse(f"{SERVE} --max 3", "0.5.9").unknown == ("--max",)


def test_a_flag_of_another_release_is_unknown_there() -> None:
    command = f"{SERVE} --cuda-graph-max-bs 16 --tp 2"
    assert ENGINE.parse(command, "0.5.9").integer("cuda_graph_max_bs") == 16
    newest = ENGINE.parse(command, "0.5.23")
    assert newest.unknown == ("--cuda-graph-max-bs",)
    assert newest.integer("tp_size") == 2


def test_where_the_release_is_not_known_every_flag_is() -> None:
    assert values(f"{SERVE} --cuda-graph-max-bs 16", None)["cuda_graph_max_bs"] == 16


def test_a_renamed_setting_is_found_under_its_old_name() -> None:
    found = values(f"{SERVE} --cuda-graph-max-bs 16", "0.5.15")
    assert found["cuda_graph_max_bs_decode"] == found["cuda_graph_max_bs"] == 16


def test_positional_model_environment_continuation_comment() -> None:
    launch = ENGINE.parse(
        "NCCL_P2P_LEVEL=SYS CUDA_VISIBLE_DEVICES=0,1 sglang serve org/model \\\n  --tp 2  # two cards\n  --dp 2",
        "0.5.23",
    )
    assert launch.model == "org/model"
    assert launch.env == {"NCCL_P2P_LEVEL": "SYS", "CUDA_VISIBLE_DEVICES": "0,1"}
    assert (launch.integer("tp_size"), launch.integer("dp_size")) == (2, 2)


def test_docker_gives_the_variables_and_the_release() -> None:
    launch = ENGINE.parse(
        "docker run --gpus all -e SGLANG_LOG_MS=1 -p 30000:30000 lmsysorg/sglang:v0.5.8-cu129 "
        "python3 -m sglang.launch_server --model org/model --port 30000",
        None,
    )
    assert launch.version == "0.5.8"
    assert launch.env == {"SGLANG_LOG_MS": "1"}
    assert launch.integer("port") == 30000


def test_a_shell_script_in_quotes() -> None:
    launch = ENGINE.parse("bash -c 'cd /srv && A=1 python -m sglang.launch_server --model-path m --tp 4'", None)
    assert (launch.model, launch.integer("tp_size"), launch.env) == ("m", 4, {"A": "1"})


@pytest.mark.parametrize("command", [f"{SERVE} --chat-template 'x", "", f"{SERVE} --tp eight", f"{SERVE} --tp"])
def test_what_cannot_be_read_is_said_in_one_line(command: str) -> None:
    with pytest.raises(CommandError) as caught:
        ENGINE.parse(command, "0.5.9")
    assert "\n" not in caught.value.line


def test_owns_command() -> None:
    assert owns_command(["python3", "-m", "sglang.launch_server", "--model", "m"])
    assert owns_command(["/opt/bin/sglang", "serve", "m"])
    assert owns_command(["python", "/src/sglang/python/sglang/launch_server.py"])
    assert not owns_command(["vllm", "serve", "m"])
    assert not owns_command(["sglang", "generate"])


def test_defaults_are_dated() -> None:
    assert defaults(Version("0.5.9"))["max_prefill_tokens"] == 16384
    assert "mem_fraction_static" not in defaults(Version("0.5.9"))
    assert defaults(Version("0.5.9"))["tp_size"] == 1


def test_spans_of_a_flag_do_not_overlap() -> None:
    rows: dict[str, list[FlagRow]] = {}
    for row in load("ullage.engines.sglang", "flags.toml", FlagTable).flag:
        rows.setdefault(row.name, []).append(row)
    assert len(rows) > 500
    for name, spans in rows.items():
        for earlier, later in itertools.pairwise(sorted(spans, key=lambda row: Version(row.since.lstrip("≤")))):
            assert earlier.until is not None, name
            assert Version(earlier.until) <= Version(later.since), name


@pytest.mark.parametrize("release", ["0.4.0", "0.4.6.post5", "0.5.3", "0.5.9", "0.5.14", "0.5.23"])
def test_a_spelling_means_one_setting(release: str) -> None:
    seen: dict[str, str] = {}
    for row in load("ullage.engines.sglang", "flags.toml", FlagTable).flag:
        if row.span.holds(Version(release)):
            for spelling in row.spelled:
                assert seen.setdefault(spelling, row.name) == row.name
