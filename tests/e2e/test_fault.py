"""A fault of ullage's own is one line too, and the whole traceback on request."""

from __future__ import annotations

import pytest

from ullage import cli


def broken(words: list[str]) -> int:
    raise RuntimeError("two\nlines")


def test_a_fault_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(cli, "answer", broken)
    monkeypatch.delenv("ULLAGE_DEBUG", raising=False)
    with pytest.raises(SystemExit) as left:
        cli.main(["why", "x.log"])
    assert left.value.code == 3
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1
    assert "RuntimeError: two lines (test_fault.py:" in shown


def test_the_traceback_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "answer", broken)
    monkeypatch.setenv("ULLAGE_DEBUG", "1")
    with pytest.raises(RuntimeError, match="two"):
        cli.main(["why", "x.log"])
