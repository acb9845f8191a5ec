"""A GGUF file's header: shapes and exact bytes of the one file that llama.cpp's tools and both engines read.

Read: the GGUF specification (ggml-org/ggml, docs/gguf.md), gguf-py constants. Everything read is bounded; a
file
that is not what it should be is one InputError with its place.
"""

from __future__ import annotations

import re
import struct
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from ullage.core.errors import InputError
from ullage.core.model import Checkpoint, Model, TensorGroup
from ullage.models.config import from_config
from ullage.models.headers import Tensor
from ullage.models.named import Gathered
from ullage.models.tensors import num_bytes

#: a header holds the vocabulary: a large one takes 20 MB
MOST_HEADER_BYTES = 256 << 20
MOST_TENSORS, MOST_KEYS, MOST_NAME, MOST_PARTS = 1 << 20, 1 << 16, 1 << 16, 1024
#: ggml_type -> the name that models/stored knows
_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 10: "Q2_K", 11: "Q3_K", 12:
    "Q4_K",
    13: "Q5_K", 14: "Q6_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S",
    22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 30: "BF16",
    39: "MXFP4",
}  # fmt: skip
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
#: general.architecture -> model_type, where they differ
_KINDS = {
    "qwen2moe": "qwen2_moe", "qwen3moe": "qwen3_moe", "gemma3": "gemma3_text", "deepseek2": "deepseek_v3",
    "glm4moe": "glm4_moe", "gpt-oss": "gpt_oss", "mistral3": "mistral", "minimax-m2": "minimax_m2",
    "granitemoe": "granitemoe", "command-r": "cohere", "internlm2": "internlm2",
}  # fmt: skip
#: a key of config.json <- the key of the file behind its architecture's name
_KEYS = {
    "num_hidden_layers": "block_count", "hidden_size": "embedding_length", "intermediate_size":
    "feed_forward_length",
    "num_attention_heads": "attention.head_count", "num_key_value_heads": "attention.head_count_kv",
    "max_position_embeddings": "context_length", "num_experts": "expert_count", "vocab_size": "vocab_size",
    "num_experts_per_tok": "expert_used_count", "moe_intermediate_size": "expert_feed_forward_length",
    "n_shared_experts": "expert_shared_count", "first_k_dense_replace": "leading_dense_block_count",
    "kv_lora_rank": "attention.kv_lora_rank", "q_lora_rank": "attention.q_lora_rank",
    "sliding_window": "attention.sliding_window",
}  # fmt: skip
#: a tensor's name in the file -> as the hub's checkpoints spell it, after "model.layers.{}."
_NAMES = {
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "attn_qkv": "self_attn.qkv_proj", "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm", "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj", "ffn_gate_inp":
    "mlp.gate",
    "ffn_gate_exps": "mlp.experts.gate_proj", "ffn_up_exps": "mlp.experts.up_proj",
    "ffn_down_exps": "mlp.experts.down_proj", "ffn_gate_shexp": "mlp.shared_experts.gate_proj",
    "ffn_up_shexp": "mlp.shared_experts.up_proj", "ffn_down_shexp": "mlp.shared_experts.down_proj",
    "exp_probs_b": "mlp.gate.e_score_correction_bias", "attn_q_a": "self_attn.q_a_proj",
    "attn_q_b": "self_attn.q_b_proj", "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_b": "self_attn.kv_b_proj", "attn_k_b": "self_attn.kv_b_proj.k", "attn_v_b":
    "self_attn.kv_b_proj.v",
    "attn_q_a_norm": "self_attn.q_a_layernorm", "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    "attn_sinks": "self_attn.sinks",
}  # fmt: skip
_TOP = {"token_embd": "model.embed_tokens", "output": "lm_head", "output_norm": "model.norm"}
_PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")


class Header(Struct, frozen=True):
    """``keys`` hold the numbers, words and truths of the header, and the length of each list; no list
    itself."""

    keys: dict[str, object]
    tensors: tuple[tuple[str, Tensor], ...]


class _Short(Exception):
    """The bytes end before the header does."""


def from_gguf(path: str | Path) -> Model:
    """The model in a .gguf file; of a split one, in all its parts. Raises InputError naming the file where it
    cannot be read as what it should be."""
    first = Path(path)
    headers = [read_header(part) for part in _parts(first)]
    gathered = Gathered()
    for header in headers:
        gathered.add((_named(name), tensor) for name, tensor in header.tensors)
    groups = gathered.groups()
    config = _config(headers[0].keys, {name for header in headers for name, _ in header.tensors}, str(first))
    model = from_config(config, id=first.name, source=str(first))
    size = sum(num_bytes(group) for group in groups)
    return replace(
        model, checkpoint_bytes=size, parameters=_elements(groups), quantization="gguf",
        checkpoint=Checkpoint(config, {"gguf": "file"}, groups),
    )  # fmt: skip


def read_header(path: Path) -> Header:
    """The header of one file; a little is read first, more where it is not enough."""
    try:
        with path.open("rb") as stream:
            size = 1 << 20
            while True:
                stream.seek(0)
                data = stream.read(size)
                try:
                    return _header(_Bytes(data, str(path)))
                except _Short:
                    if len(data) < size or size >= MOST_HEADER_BYTES:
                        raise InputError("its header is cut off, or larger than any", where=str(path)) from None
                    size *= 4
    except OSError as error:
        raise InputError(f"cannot be read: {error}", where=str(path)) from error


class _Bytes:
    """Bytes read in order; every count is checked before anything is made of it."""

    def __init__(self, data: bytes, where: str) -> None:
        self.data, self.where, self.at = data, where, 0

    def wrong(self, what: str) -> InputError:
        return InputError(f"{what} at byte {self.at}: not a GGUF file, or a broken one", where=self.where)

    def take(self, size: int) -> bytes:
        if size > MOST_HEADER_BYTES:
            raise self.wrong(f"a length of {size}")
        if self.at + size > len(self.data):
            raise _Short
        self.at += size
        return self.data[self.at - size : self.at]

    def number(self, kind: str) -> int:
        found: int = struct.unpack("<" + kind, self.take(struct.calcsize(kind)))[0]
        return found

    def count(self, most: int, what: str) -> int:
        found = self.number("Q")
        if found > most:
            raise self.wrong(f"{found} {what}")
        return found

    def text(self) -> str:
        return self.take(self.count(MOST_HEADER_BYTES, "letters")).decode("utf-8", "replace")


def _header(data: _Bytes) -> Header:
    if data.take(4) != b"GGUF":
        raise data.wrong("no GGUF at the start")
    version = data.number("I")
    if version not in (2, 3):
        raise data.wrong(f"version {version}")
    num_tensors, num_keys = data.count(MOST_TENSORS, "tensors"), data.count(MOST_KEYS, "keys")
    keys: dict[str, object] = {}
    for _ in range(num_keys):
        name = data.text()[:MOST_NAME]
        keys[name] = _value(data, data.number("I"), 0)
    return Header(keys, tuple(_tensor(data) for _ in range(num_tensors)))


def _value(data: _Bytes, kind: int, depth: int) -> object:
    """A scalar or a text; of a list its length, its numbers too where they are few (one for each layer)."""
    if kind in _SCALARS:
        found: object = struct.unpack("<" + _SCALARS[kind], data.take(struct.calcsize(_SCALARS[kind])))[0]
        return found
    if kind == _STRING:
        return data.text()[:MOST_NAME]
    if kind != _ARRAY or depth > 2:
        raise data.wrong(f"a value of type {kind}")
    inner, count = data.number("I"), data.count(1 << 27, "values in a list")
    if inner in _SCALARS:
        raw = data.take(count * struct.calcsize(_SCALARS[inner]))
        return list(struct.unpack(f"<{count}{_SCALARS[inner]}", raw)) if count <= 4096 else count
    for _ in range(count):
        if inner == _STRING:
            data.take(data.count(MOST_HEADER_BYTES, "letters"))
        else:
            _value(data, inner, depth + 1)
    return count


def _tensor(data: _Bytes) -> tuple[str, Tensor]:
    name, dims = data.text()[:512], data.number("I")
    if dims > 8:
        raise data.wrong(f"a tensor of {dims} dimensions")
    shape = tuple(data.number("Q") for _ in range(dims))[::-1]
    kind, _offset = data.number("I"), data.number("Q")
    if any(size > 1 << 40 for size in shape):
        raise data.wrong(f"a tensor of {shape}")
    if kind not in _TYPES:
        raise data.wrong(f"a tensor of type {kind}")
    return name, Tensor(_TYPES[kind], shape, (0, 0))


def _parts(path: Path) -> list[Path]:
    """The file, or all parts of a split one, the first part first."""
    found = _PART.search(path.name)
    if found is None:
        return [path]
    count = int(found[2])
    if not 1 <= count <= MOST_PARTS:
        raise InputError(f"one of {count} parts", where=str(path))
    stem = path.name[: found.start()]
    parts = [path.with_name(f"{stem}-{n:05d}-of-{count:05d}.gguf") for n in range(1, count + 1)]
    missing = [part.name for part in parts if not part.is_file()]
    if missing:
        raise InputError(
            f"{len(missing)} of its {count} parts are missing, {missing[0]} first", where=str(path)
        )
    return parts


def _config(keys: dict[str, object], names: set[str], where: str) -> dict[str, object]:
    """The config.json that a file of these keys would have."""
    arch = keys.get("general.architecture")
    if not isinstance(arch, str) or not arch:
        raise InputError(
            "no general.architecture in its header", where=where, hint="is it a language model's file?"
        )
    found: dict[str, object] = {
        "model_type": _KINDS.get(arch, arch.replace("-", "_")),
        "torch_dtype": "float16",
    }
    for name, key in _KEYS.items():
        value = keys.get(f"{arch}.{key}")
        if isinstance(value, list):  # one for each layer
            value = max((n for n in value if isinstance(n, int)), default=None)
        if isinstance(value, int) and not isinstance(value, bool):
            found[name] = value
    heads, width = keys.get(f"{arch}.attention.key_length"), keys.get(f"{arch}.attention.value_length")
    if isinstance(heads, int) and not found.get("kv_lora_rank"):
        found["head_dim"] = heads
        if isinstance(width, int) and width != heads:
            found["v_head_dim"] = width
    rope = keys.get(f"{arch}.rope.dimension_count")
    if found.get("kv_lora_rank") and isinstance(rope, int):
        found["qk_rope_head_dim"] = rope
    tokens = keys.get("tokenizer.ggml.tokens")
    if "vocab_size" not in found and isinstance(tokens, int):
        found["vocab_size"] = tokens
    if "output.weight" not in names:
        found["tie_word_embeddings"] = True
    return found


def _named(name: str) -> str:
    """A tensor's name as the hub's checkpoints spell it: "blk.3.ffn_up.weight" ->
    model.layers.3.mlp.up_proj."""
    parts = name.split(".")
    if parts[0] == "blk" and len(parts) >= 4 and parts[1].isdigit():
        stem = _NAMES.get(parts[2], parts[2])
        return ".".join(["model.layers", parts[1], stem, *parts[3:]])
    return ".".join([_TOP.get(parts[0], parts[0]), *parts[1:]])


def _elements(groups: tuple[TensorGroup, ...]) -> int:
    from math import prod

    return sum(max(1, len(g.layers)) * max(1, g.experts) * prod(g.shape) for g in groups)
