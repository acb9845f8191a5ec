"""The packages of a container image by its layers, which ``docker image save`` streams, read as they pass.

Nothing of the image is run, no container is made, and nothing is kept on disk. A large image takes minutes.
"""

from __future__ import annotations

import re
import subprocess
import tarfile
import time
from collections.abc import Callable, Iterator
from typing import IO

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ullage.core.errors import InputError
from ullage.hardware.environment import HEAD_BYTES, Installed, Package, matters, normalised, read_head
from ullage.hardware.outputs import plain

#: seconds that reading an image may take, files of it that are looked at, layers
SECONDS = 1800.0
MOST_FILES = 5_000_000
MOST_LAYERS = 512
_METADATA = re.compile(r"(?:^|/)(?:site|dist)-packages/([A-Za-z0-9][\w.]*)-(\d[\w.!+-]*)\.dist-info/METADATA$")
_REMOVED = re.compile(r"(?:^|/)\.wh\.([A-Za-z0-9][\w.]*)-(\d[\w.!+-]*)\.dist-info$")

#: the words of a command -> its output as a stream, and how to end it
Stream = Callable[[list[str]], tuple[IO[bytes], Callable[[], None]]]


class Layer(Struct):
    """What a layer adds and takes away, by normalised name."""

    adds: dict[str, Package] = {}
    removes: set[str] = set()


def stream(words: list[str]) -> tuple[IO[bytes], Callable[[], None]]:
    """Start a command; its output, and what ends it."""
    try:
        child = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        raise InputError(f"cannot be started: {error.strerror}", where=words[0]) from error
    assert child.stdout is not None

    def end() -> None:
        child.kill()
        child.wait(5)

    return child.stdout, end


def with_files(known: Installed, image: str, open_stream: Stream = stream) -> Installed:
    """``known`` (of_image) with the packages whose metadata the image's layers hold. Raises InputError."""
    output, end = open_stream(["docker", "image", "save", "--", image])
    try:
        layers, order, unread = _read(output, time.monotonic() + SECONDS)
    except (tarfile.TarError, OSError, EOFError, ValueError) as error:
        raise InputError(f"cannot be read: {error}", where=f"image {plain(image)[:100]}") from error
    finally:
        output.close()
        end()
    if not layers:
        raise InputError(
            "docker image save gives no layers",
            where=f"image {plain(image)[:100]}",
            hint="docker pull it first",
        )
    packages: dict[str, Package] = {}
    for name in order or list(layers):
        layer = layers.get(name, Layer())
        packages = {key: package for key, package in packages.items() if key not in layer.removes} | layer.adds
    notes = (f"{unread} layers are packed in a way that is not read here",) if unread else ()
    return replace(
        known, packages=known.packages | packages, notes=notes or ("by the files of the image's layers",)
    )


def _read(output: IO[bytes], until: float) -> tuple[dict[str, Layer], list[str], int]:
    """(layers by their name in the archive, their order by its manifest, how many could not be read)."""
    layers: dict[str, Layer] = {}
    order: list[str] = []
    unread = 0
    with tarfile.open(fileobj=output, mode="r|") as archive:
        for member in archive:
            content = archive.extractfile(member) if member.isfile() else None
            if content is None or len(layers) >= MOST_LAYERS:
                continue
            if member.name == "manifest.json":
                order = _order(content.read(1 << 20))
            elif member.name.endswith("layer.tar") or member.name.startswith("blobs/"):
                try:
                    layers[member.name] = _layer(content, until)
                except tarfile.ReadError:
                    unread += member.size > 1 << 16  # small blobs are the image's own JSON
    return layers, order, unread


def _order(manifest: bytes) -> list[str]:
    try:
        found = msgspec.json.decode(manifest, type=list[dict[str, object]])
    except msgspec.DecodeError:
        return []
    named = found[0].get("Layers") if found else None
    return [str(name) for name in named] if isinstance(named, list) else []


def _layer(content: IO[bytes], until: float) -> Layer:
    adds: dict[str, Package] = {}
    removes: set[str] = set()
    with tarfile.open(fileobj=content, mode="r|*") as layer:
        for member in _bounded(layer, until):
            if gone := _REMOVED.search(member.name):
                removes.add(normalised(gone[1]))
            found = _METADATA.search(member.name) if member.isfile() else None
            if found and matters().fullmatch(normalised(found[1])):
                text = layer.extractfile(member)
                head = text.read(HEAD_BYTES).decode("utf-8", "replace") if text is not None else ""
                adds[normalised(found[1])] = read_head(head, found[1], found[2], plain(member.name)[-120:])
    return Layer(adds, removes)


def _bounded(layer: tarfile.TarFile, until: float) -> Iterator[tarfile.TarInfo]:
    for count, member in enumerate(layer):
        if count >= MOST_FILES or time.monotonic() > until:
            raise ValueError(f"more than {MOST_FILES:,} files, or longer than {SECONDS / 60:.0f} minutes")
        yield member
