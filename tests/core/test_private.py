"""What is passed on holds no host, address, user or folder; everything else stays as it was."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ullage.core.finding import Evidence
from ullage.core.private import Masker, masked


def once(text: str) -> str:
    masker = Masker()
    masker.learn(text)
    return masker.mask(text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("box-7:12:34 [0] NCCL INFO Bootstrap : Using eth0:10.1.2.3<0>",
         "host-1:12:34 [0] NCCL INFO Bootstrap : Using eth0:address-1<0>"),
        ("--dist-init-addr node01.corp.lan:5000 --host 0.0.0.0", "--dist-init-addr host-1:5000 --host 0.0.0.0"),
        ('File "/home/ada/venv/lib/python3.12/site-packages/vllm/v1/engine/core.py", line 3',
         'File "…/vllm/v1/engine/core.py", line 3'),
        ("model_path='/data/team-x/models/Kimi-K2.5'", "model_path='…/Kimi-K2.5'"),
        ("host='llm3' port=30000", "host='host-1' port=30000"),
        ("ada@llm3: client [llm4]:29500", "user-1@host-2: client [host-1]:29500"),
        ("write to ada.l@example.org, GPU-0e1fd86c-7d8a-4b1c-9d8a-0123456789ab",
         "write to mail-1, id-1"),
        ("fe80::1ff:fe23:4567:890a and 2001:db8::8a2e:370:7334", "address-1 and address-2"),
        ("https://registry.acme.io/x/y", "https://host-1/x/y"),
        ("token hf_abcdefghijklmnopqrstuvwxyz012345", "token hf_***"),
    ],
)  # fmt: skip
def test_private_details_go(text: str, shown: str) -> None:
    assert once(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "POST /v1/chat/completions HTTP/1.1 200 OK", "listens on 127.0.0.1:30000 and localhost:30001",
        "see https://huggingface.co/moonshotai/Kimi-K2.5", "sglang 0.5.9, torch 2.9.1+cu130, nccl==2.27.5",
        "tokens/s of prefill/decode in /dev/shm", "server_args.py:123 torch.cuda.is_available()",
        "21.78 - 94.08 x (1 - 0.55) = -20.56 GiB", "moonshotai/Kimi-K2.5 TP0 16:03:11", "model.layers.0.mlp.experts",
    ],
)  # fmt: skip
def test_the_rest_stays(text: str) -> None:
    assert once(text) == text


def test_a_name_has_one_number_in_the_whole_report() -> None:
    lines = (
        Evidence("/home/ada/a.log", 1, "host='llm3' up"),
        Evidence("logs/b.log", 2, "lost llm3 at 10.0.0.7"),
    )
    one, two = masked(lines, ["/home/ada/a.log", "logs/b.log"])
    assert (one.file, two.file) == ("a.log", "b.log")
    assert one.text == "host='host-1' up"
    assert two.text == "lost host-1 at address-1"


@given(st.text(max_size=300))
def test_any_text_is_masked_once(text: str) -> None:
    shown = once(text)
    again = Masker()
    again.learn(shown)
    assert again.mask(shown).count("‹") == shown.count("‹")  # never raises, whatever the text
