"""The documentation of the lifecycles is what their tables say."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from callboard.machines import docs

COMMITTED = Path(__file__).parents[2] / "docs" / "lifecycles.md"


def test_the_committed_page_is_the_rendered_one() -> None:
    again = "make it again: python -m callboard.machines.docs docs/lifecycles.md"
    assert COMMITTED.read_text(encoding="utf-8") == docs.render(), again


def test_the_command_writes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    monkeypatch.setattr(sys, "argv", ["docs", str(page)])
    monkeypatch.delitem(sys.modules, "callboard.machines.docs")
    runpy.run_module("callboard.machines.docs", run_name="__main__")
    assert page.read_text(encoding="utf-8") == docs.render()
