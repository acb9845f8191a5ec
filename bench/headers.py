"""Checkpoints of headers alone: config.json and safetensors files whose data is a hole in the file.

Made from the catalogue's shapes, so that tools that read a hub's files can be asked without one.
"""

from __future__ import annotations

import json
from math import prod
from pathlib import Path

from ullage.models import tensors
from ullage.models.catalogue import find
from ullage.models.stored import size_of

#: bytes of the tensors in one file
SHARD_BYTES = 5_000_000_000


def make(model_id: str, folder: Path) -> int:
    """The checkpoint of a model of the catalogue in ``folder``; the bytes of its tensors."""
    model = find(model_id)
    if model is None or model.checkpoint is None:
        raise SystemExit(f"{model_id} is not in the catalogue")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(model.checkpoint.config))
    side = model.checkpoint.facts.get("side")
    if side:
        (folder / "hf_quant_config.json").write_text(json.dumps(side))
    shards: list[dict[str, object]] = [{}]
    ends = [0]
    for name, dtype, shape in tensors.tensors(tensors.of_model(model)):
        size = size_of(dtype, prod(shape))
        if ends[-1] and ends[-1] + size > SHARD_BYTES:
            shards.append({})
            ends.append(0)
        shards[-1][name] = {"dtype": dtype, "shape": shape, "data_offsets": [ends[-1], ends[-1] + size]}
        ends[-1] += size
    index = {}
    for number, (shard, end) in enumerate(zip(shards, ends, strict=True), 1):
        file = (
            "model.safetensors" if len(shards) == 1
            else f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        )  # fmt: skip
        index.update(dict.fromkeys(shard, file))
        _write(folder / file, shard, end)
    if len(shards) > 1:
        text = json.dumps({"metadata": {"total_size": sum(ends)}, "weight_map": index})
        (folder / "model.safetensors.index.json").write_text(text)
    return sum(ends)


def _write(path: Path, header: dict[str, object], size: int) -> None:
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        stream.truncate(8 + len(text) + size)
