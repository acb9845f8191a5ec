"""A checkpoint's folder: config.json and safetensors headers, honest and hostile."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ullage.core.errors import InputError
from ullage.models.headers import MOST_HEADER_BYTES
from ullage.models.load import MOST_CONFIG_BYTES, find, from_directory

CONFIG = {"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4}


def header(entries: dict[str, object] | str, length: int | None = None) -> bytes:
    text = (entries if isinstance(entries, str) else json.dumps(entries)).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text


def tensor(dtype: str, shape: list[int], first: int, end: int) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [first, end]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def test_a_single_file(folder: Path) -> None:
    entries = {
        "__metadata__": {"format": "pt"},
        "a.weight": tensor("BF16", [4, 8], 0, 64),
        "b.weight": tensor("F32", [2], 64, 72),
    }
    (folder / "model.safetensors").write_bytes(header(entries))
    found = from_directory(folder)
    assert (found.checkpoint_bytes, found.parameters, found.id) == (72, 34, folder.name)
    assert len(found.layers) == 2


def test_no_weights_means_unknown_and_not_nothing(folder: Path) -> None:
    found = from_directory(folder)
    assert (found.checkpoint_bytes, found.parameters) == (None, None)


def test_shards_by_their_index(folder: Path) -> None:
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    for name in names:
        (folder / name).write_bytes(header({f"{name}.weight": tensor("BF16", [8], 0, 16)}))
    (folder / "consolidated.safetensors").write_bytes(b"not read")
    index = {"metadata": {"total_size": 32}, "weight_map": {"x": names[0], "y": names[1], "z": names[1]}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert from_directory(folder).checkpoint_bytes == 32
    (folder / names[1]).unlink()
    with pytest.raises(InputError, match="1 of its 2 files are missing, model-00002"):
        from_directory(folder)
    (folder / names[0]).unlink()
    assert from_directory(folder).checkpoint_bytes is None


def test_shards_without_an_index(folder: Path) -> None:
    for name in ("a", "b", "consolidated"):
        (folder / f"{name}.safetensors").write_bytes(header({"w": tensor("F16", [8], 0, 16)}))
    assert from_directory(folder).checkpoint_bytes == 32


def test_packed_weights_count_as_the_weights_they_hold(folder: Path) -> None:
    entries = {
        "q.weight_packed": tensor("I32", [4, 2], 0, 32),
        "q.weight_scale": tensor("BF16", [4, 1], 32, 40),
        "q.weight_shape": tensor("I64", [2], 40, 56),
        "n.weight": tensor("U8", [4, 8], 56, 88),
        "n.weight_scale": tensor("F8_E4M3", [4, 1], 88, 92),
    }
    (folder / "model.safetensors").write_bytes(header(entries))
    found = from_directory(folder)
    assert (found.checkpoint_bytes, found.parameters) == (92, 64 + 64)


HOSTILE = {
    "empty": b"",
    "five bytes": b"\0\0\0\0\0",
    "length 2^60": (1 << 60).to_bytes(8, "little") + b"{}",
    "length 2^64-1": b"\xff" * 8 + b"{}",
    "length 0": bytes(8),
    "longer than the file": header("{}", length=1000),
    "just above the limit": header("{}", length=MOST_HEADER_BYTES + 1),
    "git lfs pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n",
    "no json": header("{not json"),
    "a list": header("[]"),
    "invalid utf-8": (2).to_bytes(8, "little") + b"\xff\xfe",
    "deep": header("[" * 200_000),
    "deep in an object": header('{"a":' * 100_000 + "1" + "}" * 100_000),
    "twice the same name": header('{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}'),
    "overlap": header({"a": tensor("U8", [4], 0, 4), "b": tensor("U8", [4], 2, 6)}),
    "backwards": header({"a": tensor("U8", [4], 4, 0)}),
    "negative": header({"a": tensor("U8", [4], -4, 0)}),
    "huge offset": header('{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1%s]}}' % ("0" * 400)),
    "shape and bytes disagree": header({"a": tensor("F32", [4], 0, 4)}),
    "negative shape": header({"a": tensor("F32", [-1], 0, 4)}),
    "many dimensions": header({"a": tensor("U8", [1] * 10_000, 0, 1)}),
    "missing key": header({"a": {"dtype": "U8"}}),
    "wrong types": header({"a": {"dtype": 4, "shape": "x", "data_offsets": None}}),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_header_is_one_clear_error(folder: Path, name: str) -> None:
    (folder / "model.safetensors").write_bytes(HOSTILE[name])
    with pytest.raises(InputError) as caught:
        from_directory(folder)
    assert "model.safetensors" in caught.value.line
    assert "\n" not in caught.value.line
    assert len(caught.value.line) < 600


def test_a_header_of_100_mb_is_not_read(folder: Path) -> None:
    path = folder / "model.safetensors"
    with path.open("wb") as stream:  # sparse: costs no disk
        stream.write((100 << 20).to_bytes(8, "little"))
        stream.truncate(101 << 20)
    with pytest.raises(InputError, match="no safetensors header"):
        from_directory(folder)


def test_a_config_of_100_mb_is_not_read(folder: Path) -> None:
    os.truncate(folder / "config.json", 100 << 20)
    with pytest.raises(InputError, match=f"at most {MOST_CONFIG_BYTES}"):
        from_directory(folder)


@pytest.mark.parametrize("text", ["", "[]", "null", "{", '{"a":' * 100_000, '{"hidden_size": NaN}', "\0\0", '{"hidden_size": 1e999}',
                                  '{"hidden_size": 1' + "0" * 5000 + "}"])  # fmt: skip
def test_a_config_that_is_none(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text)
    with pytest.raises(InputError, match=r"config\.json"):
        from_directory(folder)


def test_what_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for place in (tmp_path, tmp_path / "absent", tmp_path / "file", "", "\0"):
        with pytest.raises(InputError):
            from_directory(place)


def test_a_pipe_is_not_opened(folder: Path) -> None:
    (folder / "config.json").unlink()
    os.mkfifo(folder / "config.json")
    with pytest.raises(InputError):
        from_directory(folder)


@pytest.mark.parametrize(
    "name", ["../../outside.safetensors", "/etc/passwd", "sub/x.safetensors", "", ".", ".."]
)
def test_an_index_cannot_name_files_elsewhere(folder: Path, name: str) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(InputError, match="outside its folder"):
        from_directory(folder)


def test_a_local_folder_only_where_it_is_asked_for(folder: Path) -> None:
    assert find(str(folder)) is None
    found = find(str(folder), local=True)
    assert found is not None
    assert found.source == str(folder / "config.json")
    assert find("\0", local=True) is None


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=200), length=st.none() | st.integers(0, 1 << 64 - 1))
def test_any_bytes_give_a_model_or_an_input_error(folder: Path, data: bytes, length: int | None) -> None:
    head = (len(data) if length is None else length).to_bytes(8, "little")
    (folder / "model.safetensors").write_bytes(head + data)
    try:
        from_directory(folder)
    except InputError as error:
        assert "model.safetensors" in error.line
