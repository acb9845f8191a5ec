from __future__ import annotations

import pytest

from ullage.core.secrets import is_secret, masked, sealed


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("HF_TOKEN=hf_abcdefGHIJKL1234abcdefGHIJKL1234 vllm serve x", "HF_TOKEN='***' vllm serve x"),
        ("api_key='s3cret', host='127.0.0.1'", "api_key='***', host='127.0.0.1'"),
        ("{'api_key': ['token-abc123'], 'port': 1}", "{'api_key': ['***'], 'port': 1}"),
        ("admin_api_key=None, api_key=None", "admin_api_key=None, api_key=None"),
        ("vllm serve x --api-key abc --port 1", "vllm serve x --api-key *** --port 1"),
        ("vllm serve x --api-key=abc --port 1", "vllm serve x --api-key=*** --port 1"),
        ("Authorization: Bearer abcdefgh.ijk", "Authorization: Bearer ***"),
        ("token hf_abcdefGHIJKL1234abcdefGHIJKL1234 is invalid", "token hf_*** is invalid"),
        ("http://user:pass@proxy:3128/x", "http://***@proxy:3128/x"),
        ("AWS_SECRET_ACCESS_KEY=abc/def+gh", "AWS_SECRET_ACCESS_KEY='***'"),
        ("sk-proj-abcdefghijklmnop", "sk-***"),
    ],
)
def test_secrets_are_hidden(text: str, shown: str) -> None:
    assert masked(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "Prefill batch, #new-token: 6, #cached-token: 0, token usage: 0.00",
        "max_total_num_tokens=159221, chunked_prefill_size=8192",
        "GPU KV cache size: 1,277,184 tokens",
        "tokenizer_path='moonshotai/Kimi-K2.5', tokenizer_mode='auto'",
        "speculative_num_draft_tokens=4, skip_tokenizer_init=False",
        'File "/x/hf_transformers_utils.py", line 3, in get_tokenizer',
    ],
)
def test_the_fields_own_words_stay(text: str) -> None:
    assert masked(text) == text


def test_names() -> None:
    assert all(
        map(is_secret, ("api_key", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "api-key", "AWS_SECRET_ACCESS_KEY"))
    )
    assert not any(map(is_secret, ("max_total_tokens", "tokenizer", "NCCL_BUFFSIZE", "page_size")))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("vllm serve x --api-key Abc1 Def2 --port 1", "vllm serve x --api-key *** *** --port 1"),
        ("use --api-key to set one", "use --api-key *** set one"),
        ('{"aws_secret_access_key":"abc", "port": 1}', '{"aws_secret_access_key":\'***\', "port": 1}'),
        (r"{\"aws_secret_access_key\":\"abc\"}", r"{\"aws_secret_access_key\":'***'}"),
        ("Namespace(api_key=['abc', 'def'], port=1)", "Namespace(api_key=['***'], port=1)"),
        ("GET https://h/x?token=abc12&n=1 failed", "GET https://h/x?token=***&n=1 failed"),
        ("https://h/x?a=1&X-Amz-Signature=abc", "https://h/x?a=1&X-Amz-Signature=***"),
        ("x-api-key: abc", "x-api-key: '***'"),
        ("Authorization: Basic dXNlcg==", "Authorization: Basic ***"),
        ("Invalid token: abc12345", "Invalid token: ***"),
        ("token=abc12345", "token=***"),
        ("HF_XET_KEY=abcdefgh", "HF_XET_KEY='***'"),
        ("HF_TOKEN\x1b[0m=abc", "HF_TOKEN\x1b[0m='***'"),
        ("http://u:p@ss@host/x", "http://***@host/x"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc", "***"),
        ("ghp_abcdefghijklmnop1234", "***"),
    ],
)
def test_secrets_of_every_spelling(text: str, shown: str) -> None:
    assert masked(text) == shown


@pytest.mark.parametrize(
    "text",
    ["time per token: 128.55ms", "stop token: <|eot_id|>", "eos_token='<|im_end|>'", "token=128009",
     "VLLM_FUSION_PASS=1", "why? a & b"],
)  # fmt: skip
def test_what_only_looks_like_one_stays(text: str) -> None:
    assert masked(text) == text


def test_nested_values_and_names() -> None:
    given = {
        "a": [{"password": "x"}, "Bearer abcdefgh"],
        "HF_XET_KEY": "abcdefgh",
        "n": 3,
        "url": "http://u:p@h/",
    }
    assert sealed(given) == {
        "a": [{"password": "***"}, "Bearer ***"], "HF_XET_KEY": "***", "n": 3, "url": "http://***@h/",
    }  # fmt: skip
