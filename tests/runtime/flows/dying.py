"""The beginning of a program that kills itself at a turn of its runtime. Its arguments: folder, turn, method.

`counted(when)` begins to count the turns: before a turn is written, or when what it caused is let out.
"""

from __future__ import annotations

from pathlib import Path

from tests.forks import Forks

DIES = """
import os, sys
from pathlib import Path
import anyio
from callboard import Runtime, Task, TaskContext, Workstream, step
from callboard.runtime.host import KernelHost as Host
folder, dies_at, when = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
turns = 0

def counted(name):
    whole = getattr(Host, name)
    def method(self, *args):
        global turns
        turns += 1
        if turns == dies_at:
            os.kill(os.getpid(), 9)
        return whole(self, *args)
    setattr(Host, name, method)
"""


def killed_at_each_turn(text: str, loop: str, when: str, folder: Path) -> str:
    """Run a program until it ends: the first time it dies at its first turn, then at its second. Returns its output."""
    program = folder / "program.py"
    program.write_text(text.replace("anyio.run(main)", f"anyio.run(main, backend={loop!r})"))
    with Forks(folder) as forks:
        for dies_at in range(1, 200):
            done = forks.run(program, folder, dies_at, when)
            if done.returncode == 0:
                break
            assert done.returncode == -9, done.stderr
    assert done.returncode == 0, "it has not ended"
    assert dies_at > 5
    return done.stdout
