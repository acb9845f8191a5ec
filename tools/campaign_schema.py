"""Writes the JSON schema of a campaign file for editors, made from the structs that read it."""

from __future__ import annotations

from pathlib import Path

from ullage.lab.campaign import file


def main() -> None:
    Path(file.__file__).with_name("schema.json").write_bytes(file.schema())


if __name__ == "__main__":
    main()
