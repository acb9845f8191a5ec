"""Launch commands in every form in which people paste them, and in those in which nobody should."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ullage import engines
from ullage.core.errors import CommandError, InputError, UllageError
from ullage.core.launch import Launch
from ullage.engines.runtime.command import read, split

FLAGS = "--model-path org/m --tp 8 --mem-fraction-static 0.88"
LAUNCH = f"python3 -m sglang.launch_server {FLAGS}"

COMPOSE = """
services:
  cache:
    image: redis:7
    command: ["redis-server", "--maxmemory", "1gb"]
  llm:
    image: lmsysorg/sglang:v0.5.9-cu129
    environment:
      - NCCL_P2P_LEVEL=SYS
      - SGLANG_LOG_MS=1
    entrypoint: python3 -m sglang.launch_server
    command: >-
      --model-path org/m
      --tp 8
      --mem-fraction-static 0.88
"""
KUBERNETES = """
apiVersion: apps/v1
kind: Deployment
spec:
  template:
    spec:
      containers:
      - name: llm
        image: lmsysorg/sglang:v0.5.9
        command: ["python3", "-m", "sglang.launch_server"]
        args:
          - --model-path
          - $(MODEL)
          - --tp=8
          - "--mem-fraction-static"
          - "0.88"
        env:
        - name: MODEL
          value: org/m
        - {name: NCCL_P2P_LEVEL, value: SYS}
        - name: HF_TOKEN
          valueFrom: {secretKeyRef: {name: hf, key: token}}
"""
SCRIPT = """
    image: lmsysorg/sglang:v0.5.9
    env: [{name: NCCL_P2P_LEVEL, value: SYS}]
    command: ["/bin/sh", "-c"]
    args:
      - |
        export SGLANG_LOG_MS=1
        python3 -m sglang.launch_server \\
          --model-path org/m --tp 8 \\
          --mem-fraction-static 0.88
"""
FRAGMENT = """
        args:
        - python3
        - -m
        - sglang.launch_server
        - --model-path
        - org/m
        - --tp 8
        - --mem-fraction-static 0.88
"""

FORMS = {
    "plain": LAUNCH,
    "prompt": f"$ {LAUNCH}",
    "variables": f"NCCL_P2P_LEVEL=SYS {LAUNCH}",
    "exported": f"export NCCL_P2P_LEVEL=SYS\nexport A='b c'\n{LAUNCH}",
    "installed": f"pip install 'sglang[all]==0.5.9' && {LAUNCH}",
    "powershell": '$env:NCCL_P2P_LEVEL = "SYS"\npython -m sglang.launch_server `\n  --model-path org/m `\n  --tp 8 `\n  --mem-fraction-static 0.88',
    "cmd": "set NCCL_P2P_LEVEL=SYS\r\npython -m sglang.launch_server ^\r\n --model-path org/m ^\r\n --tp 8 --mem-fraction-static 0.88",
    "bash": "python -m sglang.launch_server \\\n  --model-path org/m \\  \n  --tp 8 `# all of them` \\\n --mem-fraction-static 0.88".replace(
        "`# all of them` ", ""
    ),
    "comments": "python -m sglang.launch_server --model-path org/m  # don't forget\n  --tp 8\n  # half of it\n  --mem-fraction-static 0.88",
    "quotes": "python -m sglang.launch_server --model-path “org/m” --tp ‘8’ —mem-fraction-static 0.88",
    "redirected": f"nohup {LAUNCH} > server.log 2>&1 &",
    "docker": f"docker run --gpus all --shm-size 32g -e NCCL_P2P_LEVEL=SYS lmsysorg/sglang:v0.5.9 {LAUNCH}",
    "docker, image alone": f"docker run --gpus all lmsysorg/sglang:v0.5.9 {FLAGS}",
    "shell in docker": f'docker run lmsysorg/sglang:v0.5.9 bash -lc "{LAUNCH}"',
    "serve": "sglang serve org/m --tp 8 --mem-fraction-static 0.88",
    "compose": COMPOSE,
    "kubernetes": KUBERNETES,
    "script": SCRIPT,
    "fragment": FRAGMENT,
    "one key": f"command: {LAUNCH}",
    "not quite yaml": f"command:\n{LAUNCH}",
}


def parse(text: str) -> Launch:
    engine = engines.of_text(text)
    assert engine is not None
    return engine.parse(text, None)


@pytest.mark.parametrize("form", FORMS)
def test_one_launch_in_many_forms(form: str) -> None:
    launch = parse(FORMS[form])
    assert launch.engine == "sglang"
    assert launch.model == "org/m"
    assert (launch.integer("tp_size"), launch.number("mem_fraction_static")) == (8, 0.88)
    assert launch.unknown == ()


@pytest.mark.parametrize(
    "form", ["variables", "exported", "powershell", "cmd", "docker", "compose", "kubernetes", "script"]
)
def test_variables_are_found(form: str) -> None:
    assert parse(FORMS[form]).env["NCCL_P2P_LEVEL"] == "SYS"


@pytest.mark.parametrize("form", ["installed", "docker", "shell in docker", "compose", "kubernetes", "script"])
def test_the_release_is_found(form: str) -> None:
    assert parse(FORMS[form]).version == "0.5.9"


@pytest.mark.parametrize(
    ("image", "release"),
    [
        ("vllm/vllm-openai:v0.10.1.1", "0.10.1.1"),
        ("vllm/vllm-openai:latest", None),
        ("localhost:5000/vllm/vllm-openai:v0.9.2-cu128@sha256:ab", "0.9.2"),
        ("rocm/vllm:rocm6.4.1_ubuntu22.04_py3.12_vllm_0.9.1", "0.9.1"),
        ("nvcr.io/nvidia/vllm:25.09-py3", None),
    ],
)
def test_the_release_of_an_image(image: str, release: str | None) -> None:
    assert parse(f"docker run --gpus all {image} --model org/m").version == release


def test_an_image_alone_in_a_manifest() -> None:
    launch = parse(
        "containers:\n- image: vllm/vllm-openai:v0.9.1\n  args: ['--model', 'org/m', '--max-model-len', '4096']\n"
    )
    assert (launch.engine, launch.version, launch.model) == ("vllm", "0.9.1", "org/m")
    assert launch.integer("max_model_len") == 4096


def test_quoted_json_survives_yaml() -> None:
    launch = parse(
        'command:\n- vllm\n- serve\n- org/m\n- --speculative-config\n- \'{"method": "eagle", "num_speculative_tokens": 3}\'\n'
    )
    assert launch.get("speculative_config") == {"method": "eagle", "num_speculative_tokens": 3}


NESTED = "command: " + "[" * 3000
BOMB = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{','.join(['*' + chr(97 + i)] * 10)}]\n" for i in range(9)
)
MERGES = "a: &a {k: 1, l: 2}\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)}\n  <<: [{','.join(['*' + chr(97 + i)] * 10)}]\n" for i in range(9)
)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " \n\t ",
        "\0",
        f"{LAUNCH} --host \0",
        f"{LAUNCH} " + "x" * (1 << 20),
        "--a " * (1 << 18),
        f'{LAUNCH} --chat-template "',
        "'" * 99_999,
        NESTED,
        "command: " + "- " * 5000,
        "command: " + "? " * 5000,
        "image: x\n" + BOMB,
        "image: x\n" + MERGES,
        "command: &a [*a]",
        "command: [1, {2: *none}]",
        "image: !!python/object/apply:os.system ['true']",
        "command: 2020-99-99\nimage: .inf",
        "image: nginx\ncommand: [nginx]",
        "args: " + "\n  -" * 60_000,
    ],
    ids=range(19),
)
def test_hostile_commands_are_refused_in_one_line(text: str) -> None:
    began = time.perf_counter()
    for engine in map(engines.get, engines.NAMES):
        with pytest.raises(CommandError) as caught:
            engine.parse(text, None)
        assert "\n" not in caught.value.line
        assert len(caught.value.line) < 400
    assert time.perf_counter() - began < 10


@settings(deadline=None, max_examples=60)
@given(st.text(alphabet="a-= \n\\'\"`^#&|;$(){}[]:,*<>!\0\t0\u201c", max_size=80))
def test_any_text_is_read_or_refused(text: str) -> None:
    for prefix in ("", "vllm serve m ", "python -m sglang.launch_server ", "command: "):
        for engine in map(engines.get, engines.NAMES):
            try:
                engine.parse(prefix + text, "0.9.1")
            except (CommandError, InputError) as error:
                assert "\n" not in error.line


WORDS = st.from_regex(r"[A-Za-z0-9_./:][A-Za-z0-9_./:=-]{0,8}", fullmatch=True)
SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        "--tp-size": st.integers(1, 64).map(str),
        "--mem-fraction-static": st.floats(0.1, 0.99).map(lambda x: f"{x:.3f}"),
        "--served-model-name": WORDS,
        "--chunked-prefill-size": st.integers(-1, 1 << 20).map(str),
        "--json-model-override-args": st.just('{"num_hidden_layers": 3}'),
        "--kv-cache-dtype": st.sampled_from(["auto", "fp8_e5m2"]),
    },
)


@settings(deadline=None, max_examples=60)
@given(SETTINGS, st.randoms(use_true_random=False))
def test_equals_sign_and_order_change_nothing(chosen: dict[str, str], random: object) -> None:
    head = "python -m sglang.launch_server --model-path m"
    pairs = list(chosen.items())
    spaced = " ".join(f"{flag} '{value}'" for flag, value in pairs)
    random.shuffle(pairs)  # type: ignore[attr-defined]
    joined = " ".join(f"{flag}='{value}'" for flag, value in pairs)
    first = engines.get("sglang").parse(f"{head} {spaced}", "0.5.9")
    second = engines.get("sglang").parse(f"{head} {joined}", "0.5.9")
    assert {name: arg.value for name, arg in first.args.items()} == {
        name: arg.value for name, arg in second.args.items()
    }


@given(st.lists(st.text(alphabet="ab\\ \"$`'#&|;\u00e4", min_size=1, max_size=6), min_size=1, max_size=5))
def test_what_a_shell_quotes_comes_back(words: list[str]) -> None:
    import shlex

    assert split(shlex.join(words)) == words


def test_a_command_of_another_program_is_read_as_far_as_it_goes() -> None:
    found = read("echo one && ./serve.sh --tp 8", lambda words: False)
    assert found.words == ("./serve.sh", "--tp", "8")


def test_errors_are_of_the_tree() -> None:
    assert issubclass(CommandError, UllageError)
