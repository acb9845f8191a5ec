"""GGUF headers: shapes, exact bytes, and files that are not what they say."""

from __future__ import annotations

import contextlib
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ullage.core.errors import InputError
from ullage.models.load import from_gguf
from ullage.models.stored import size_of
from ullage.planning.plan import Asked, plan

F32, F16, Q4_K, Q6_K = 0, 1, 12, 14


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def key(name: str, value: int | str | list[str]) -> bytes:
    if isinstance(value, str):
        return text(name) + struct.pack("<I", 8) + text(value)
    if isinstance(value, list):
        return text(name) + struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(text, value))
    return text(name) + struct.pack("<II", 4, value)


def tensor(name: str, shape: tuple[int, ...], kind: int) -> bytes:
    dims = b"".join(struct.pack("<Q", n) for n in reversed(shape))
    return text(name) + struct.pack("<I", len(shape)) + dims + struct.pack("<IQ", kind, 0)


KEYS: dict[str, int | str | list[str]] = {
    "general.architecture": "qwen3moe", "qwen3moe.block_count": 2, "qwen3moe.embedding_length": 512,
    "qwen3moe.attention.head_count": 8, "qwen3moe.attention.head_count_kv": 2, "qwen3moe.attention.key_length": 64,
    "qwen3moe.attention.value_length": 64, "qwen3moe.context_length": 4096, "qwen3moe.expert_count": 4,
    "qwen3moe.expert_used_count": 2, "qwen3moe.expert_feed_forward_length": 256, "qwen3moe.feed_forward_length": 1024,
    "tokenizer.ggml.tokens": [f"t{n}" for n in range(1024)],
}  # fmt: skip
TENSORS: list[tuple[str, tuple[int, ...], int]] = [("token_embd.weight", (1024, 512), Q4_K), ("output.weight", (1024, 512), Q6_K)] + [
    (f"blk.{n}.{name}.weight", shape, kind)
    for n in range(2)
    for name, shape, kind in (
        ("attn_q", (512, 512), Q4_K), ("attn_k", (128, 512), Q4_K), ("attn_v", (128, 512), Q6_K),
        ("attn_output", (512, 512), Q4_K), ("attn_norm", (512,), F32), ("ffn_norm", (512,), F32),
        ("ffn_gate_inp", (4, 512), F32), ("ffn_gate_exps", (4, 256, 512), Q4_K), ("ffn_up_exps", (4, 256, 512), Q4_K),
        ("ffn_down_exps", (4, 512, 256), Q6_K),
    )
]  # fmt: skip


def made(path: Path, tensors: list[tuple[str, tuple[int, ...], int]] = TENSORS) -> Path:
    body = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(KEYS))
    body += b"".join(key(name, value) for name, value in KEYS.items())
    path.write_bytes(body + b"".join(tensor(*row) for row in tensors) + bytes(64))
    return path


def test_shapes_and_exact_bytes(tmp_path: Path) -> None:
    model = from_gguf(made(tmp_path / "tiny-Q4_K_M.gguf"))
    assert (model.model_type, model.num_layers, model.hidden_size, model.vocab_size) == (
        "qwen3_moe",
        2,
        512,
        1024,
    )
    assert (model.num_experts, model.experts_per_token, model.max_context) == (4, 2, 4096)
    assert [(layer.kind, layer.kv_heads, layer.head_dim) for layer in model.layers] == [("full", 2, 64)] * 2
    names = {F32: "F32", Q4_K: "Q4_K", Q6_K: "Q6_K"}
    elements = dict.fromkeys(TENSORS, 1)
    for row in TENSORS:
        for n in row[1]:
            elements[row] *= n
    assert model.checkpoint_bytes == sum(size_of(names[row[2]], elements[row]) for row in TENSORS)
    assert model.checkpoint is not None
    parts = {group.part for group in model.checkpoint.tensors}
    assert {"experts", "attention", "embedding", "head", "norms", "router"} <= parts


def test_a_split_file_is_read_whole(tmp_path: Path) -> None:
    whole = from_gguf(made(tmp_path / "one.gguf"))
    first = made(tmp_path / "m-00001-of-00002.gguf", TENSORS[:5])
    with pytest.raises(InputError, match="1 of its 2 parts are missing"):
        from_gguf(first)
    made(tmp_path / "m-00002-of-00002.gguf", TENSORS[5:])
    assert from_gguf(first).checkpoint_bytes == whole.checkpoint_bytes


def test_a_plan_reads_the_file_that_the_command_names(tmp_path: Path) -> None:
    path = made(tmp_path / "tiny.gguf")
    found = plan(Asked(f"vllm serve {path} --tokenizer x/y", "24GB", "0.19.0"))
    assert found.model is not None and found.model.source == str(path)
    assert found.budget.ledgers and found.budget.ledgers[0].of("weights") > 0


@pytest.mark.parametrize(
    "data",
    [
        b"", b"GGUF", b"GGML" + bytes(60), b"GGUF" + struct.pack("<IQQ", 9, 1, 1),
        b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 1), b"GGUF" + struct.pack("<IQQ", 3, 1, 1 << 60),
        b"GGUF" + struct.pack("<IQQQ", 3, 1, 1, 1 << 62),
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("a") + struct.pack("<I", 77),
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("a") + struct.pack("<IIQ", 9, 8, 1 << 60),
        b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + text("t") + struct.pack("<I", 4_000_000),
        b"GGUF" + struct.pack("<IQQ", 3, 0, 0),
    ],
)  # fmt: skip
def test_a_hostile_file_is_one_line(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(data)
    with pytest.raises(InputError) as raised:
        from_gguf(path)
    assert "x.gguf" in raised.value.line and "\n" not in raised.value.line


@given(st.binary(max_size=400))
def test_no_bytes_are_a_traceback(data: bytes) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.gguf"
        path.write_bytes(b"GGUF" + struct.pack("<I", 3) + data)
        with contextlib.suppress(InputError):
            from_gguf(path)
