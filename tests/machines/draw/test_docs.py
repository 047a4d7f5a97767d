"""The documentation of the lifecycles is what their tables say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from callboard.machines import docs
from callboard.machines.lifecycles import PUBLISHED

COMMITTED = Path(__file__).parents[3] / "docs"
AGAIN = "make it again: python -m callboard.machines.docs"


def test_the_committed_page_is_the_rendered_one() -> None:
    assert (COMMITTED / "lifecycles.md").read_text(encoding="utf-8") == docs.render(), AGAIN


def test_the_page_of_the_published_lifecycles_is_the_rendered_one_below_what_is_written_by_hand() -> None:
    by_hand, mark, made = (COMMITTED / "published-lifecycles.md").read_text(encoding="utf-8").partition(docs.MARK)
    assert mark + made == docs.render_published(), AGAIN
    assert by_hand.startswith("# ")


def test_the_command_writes_both_and_keeps_what_is_written_by_hand(tmp_path: Path) -> None:
    page = tmp_path / "published-lifecycles.md"
    found = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    for by_hand in ("", "# By hand\n\n"):
        page.write_text(f"{by_hand}{docs.MARK} and what was made before", encoding="utf-8")
        subprocess.run([sys.executable, "-m", "callboard.machines.docs", tmp_path], check=True, env=found)
        assert page.read_text(encoding="utf-8") == by_hand + docs.render_published()
    assert (tmp_path / "lifecycles.md").read_text(encoding="utf-8") == docs.render()


def test_a_page_that_is_not_there_is_begun(tmp_path: Path) -> None:
    docs.write(tmp_path)
    assert (tmp_path / "published-lifecycles.md").read_text(encoding="utf-8") == docs.render_published()


def test_the_page_names_every_state_and_every_event_that_was_published() -> None:
    page = docs.render_published()
    for machine in PUBLISHED.values():
        for row in machine.transitions:
            assert f"| {row.source} | {row.event} | {row.guard_name or ''} | {row.target} | {row.severity} |" in page
