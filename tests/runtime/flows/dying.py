"""The beginning of a program that kills itself at a turn of its runtime. Its arguments: folder, turn, method.

`counted(when)` begins to count the turns: before a turn is written, or when what it caused is let out.
"""

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
