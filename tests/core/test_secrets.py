from __future__ import annotations

import pytest

from ullage.core.secrets import is_secret, masked


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
