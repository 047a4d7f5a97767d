"""Does things for the main thread in another thread, so that no handler of signals interrupts them.

Rules:
- Python runs the handlers of signals in the main thread, between any two operations. One that raises would cut a frame
  in two, and one that itself sends something would wait for a lock that the code below it holds.
- So the main thread only puts what is to be done into a queue, which is one operation, and waits. If a handler raises
  meanwhile, the rest is done nevertheless; if it hands over something itself, that is done next.
- All is done in the order in which it was handed over.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from queue import SimpleQueue


class _Deed:
    """What is to be done. over: released when it is done."""

    __slots__ = ("do", "error", "over")

    def __init__(self, do: Callable[[], object]) -> None:
        self.do = do
        self.error: BaseException | None = None
        self.over = threading.Lock()
        self.over.acquire()


class SignalSafe:
    """A thread that does things for the main thread. Raises RuntimeError if no thread can be started."""

    def __init__(self) -> None:
        self._deeds: SimpleQueue[_Deed] = SimpleQueue()
        self._process = os.getpid()
        threading.Thread(target=self._work, name="callboard-sender", daemon=True).start()

    def do(self, do: Callable[[], object]) -> None:
        """Do something to its end, whatever signals come. Raises its error, or what a handler of signals raises."""
        if threading.current_thread() is not threading.main_thread() or os.getpid() != self._process:
            do()  # handlers run in the main thread only, and a process that the body has forked has not got the thread
            return
        deed = _Deed(do)
        self._deeds.put(deed)
        deed.over.acquire()
        if deed.error is not None:
            raise deed.error

    def _work(self) -> None:
        while True:
            deed = self._deeds.get()
            try:
                deed.do()
            except BaseException as error:
                deed.error = error
            deed.over.release()
            del deed
