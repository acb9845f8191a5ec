"""A Llama of 5 MB with random weights and a byte-level tokenizer, written with the standard library alone: enough
for a real engine to load, serve and be measured, without a network."""

from __future__ import annotations

import json
import random
import struct
from array import array
from collections.abc import Iterator
from pathlib import Path

#: CPU attention kernels refuse heads smaller than this at the first request
HEAD_DIM = 64
SPECIAL = ("<s>", "</s>", "<pad>", "<unk>")
Tensor = tuple[str, tuple[int, ...], float]


def write(folder: Path, *, layers: int = 4, hidden: int = 256, vocab: int = 512, max_len: int = 4096,
          head_dim: int = HEAD_DIM, seed: int = 0) -> Path:  # fmt: skip
    """The model in ``folder``; what is there already is kept, so that a session makes it once."""
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / "model.safetensors").exists():
        return folder
    heads, kv_heads, inner = hidden // HEAD_DIM, 2, 2 * hidden
    _json(folder / "config.json", {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "dtype": "bfloat16",
        "hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers, "head_dim": head_dim,
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "vocab_size": vocab,
        "max_position_embeddings": max_len, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "tie_word_embeddings": False, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2,
    })  # fmt: skip
    _json(folder / "generation_config.json", {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2})
    _tokenizer(folder, vocab, max_len)
    tensors = list(_llama(layers, hidden, inner, heads * head_dim, kv_heads * head_dim, vocab))
    _safetensors(folder / "model.safetensors", tensors, seed)
    return folder


def _llama(layers: int, hidden: int, inner: int, q: int, kv: int, vocab: int) -> Iterator[Tensor]:
    """Names and shapes; the number is the spread of the values, 0 for a norm (all ones)."""
    yield "model.embed_tokens.weight", (vocab, hidden), 1.0
    for layer in range(layers):
        at = f"model.layers.{layer}"
        for name, rows, columns in (
            ("self_attn.q_proj", q, hidden), ("self_attn.k_proj", kv, hidden), ("self_attn.v_proj", kv, hidden),
            ("self_attn.o_proj", hidden, q), ("mlp.gate_proj", inner, hidden), ("mlp.up_proj", inner, hidden),
            ("mlp.down_proj", hidden, inner),
        ):  # fmt: skip
            yield f"{at}.{name}.weight", (rows, columns), columns**-0.5
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield f"{at}.{name}.weight", (hidden,), 0.0
    yield "model.norm.weight", (hidden,), 0.0
    yield "lm_head.weight", (vocab, hidden), hidden**-0.5


def _safetensors(path: Path, tensors: list[Tensor], seed: int) -> None:
    """Eight bytes of length, the header as JSON, then the tensors in bfloat16. Values repeat a strip of noise from
    a different place in each tensor: drawing each of them would take seconds."""
    noise = random.Random(seed)
    strip = [noise.gauss(0.0, 1.0) for _ in range(1 << 13)]
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    blobs, at = [], 0
    for index, (name, shape, spread) in enumerate(tensors):
        count = 1
        for side in shape:
            count *= side
        unit = _bfloat16([value * spread for value in strip] if spread else [1.0])
        start = 2 * (index * 37 % len(strip)) if spread else 0
        blob = (unit[start:] + unit * (2 * count // len(unit) + 1))[: 2 * count]
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, at + len(blob)]}
        blobs.append(blob)
        at += len(blob)
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    path.write_bytes(struct.pack("<Q", len(head)) + head + b"".join(blobs))


def _bfloat16(values: list[float]) -> bytes:
    """The upper halves of 32-bit floats, rounded."""
    words = array("I", array("f", values).tobytes())
    return array("H", [(word + 0x8000) >> 16 & 0xFFFF for word in words]).tobytes()


def _tokenizer(folder: Path, vocab: int, max_len: int) -> None:
    """Every byte is a token: a prompt has as many tokens as characters."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    shown = {byte: chr(byte) for byte in plain} | {byte: chr(256 + i) for i, byte in enumerate(others)}
    words = [*SPECIAL, *(shown[byte] for byte in range(256))]
    words += [f"extra{i}" for i in range(vocab - len(words))]
    _json(folder / "tokenizer.json", {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "post_processor": None,
        "added_tokens": [
            {"id": i, "content": text, "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False, "special": True}
            for i, text in enumerate(SPECIAL)
        ],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": {word: i for i, word in enumerate(words)}, "merges": []},
    })  # fmt: skip
    _json(folder / "tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": max_len, "bos_token": "<s>",
        "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>", "clean_up_tokenization_spaces": False,
        "chat_template": "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:",
    })  # fmt: skip


def _json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    import sys

    print(write(Path(sys.argv[1])))
