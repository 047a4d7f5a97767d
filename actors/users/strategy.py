"""Supervision: the decision about a failed actor and its siblings. Pure.

Words (as in OTP)
- The *parent* supervises its children by its `Supervision`. The root supervises the actors that `runtime.spawn` made.
- A *directive* is the decision about one failure: resume (keep the actor as it is), restart (rebuild it),
  stop, or escalate (the parent fails with it, and the parent's own parent decides).
- A *strategy* names the actors that restart with the failed one: none, all its siblings, or those started after it.
- A *restart policy* belongs to the child: `permanent` is restarted however it ended by itself, `transient` only
  when it failed, `temporary` never.

Rules
- Restarts are counted per child under `one_for_one` (so that no child uses up the restarts of another), and for the
  whole family under the other two, where one failure restarts several.
- More than `intensity` restarts within `period` seconds escalate. Before each restart there is a delay, doubled from
  one restart to the next: `backoff_min`, twice that, ... up to `backoff_max`.
- The count that makes the delay grow, and the restarts counted within the period, are reset only when the
  actor has been up for `stable_after` seconds. For an actor that has not been up since its last restart, `intensity`
  applies whatever the period: even if each try takes long, the number of tries is limited.
- An actor that cannot be restarted (an instance, a temporary child) is stopped if the directive is restart.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from enum import StrEnum

from msgspec import Struct

from ...machines.keywords import KeywordsChecked
from ...machines.machine import answers_later
from ..times import number, seconds
from ..user_code import plain, shown

__all__ = ["Directive", "Restart", "RestartCount", "Strategy", "Supervision", "restart_always"]


class Directive(StrEnum):
    """The decision about one failure."""

    RESUME = "resume"
    RESTART = "restart"
    STOP = "stop"
    ESCALATE = "escalate"


class Strategy(StrEnum):
    """The actors that restart with a failed child."""

    ONE_FOR_ONE = "one_for_one"
    ONE_FOR_ALL = "one_for_all"
    REST_FOR_ONE = "rest_for_one"


class Restart(StrEnum):
    """When a child is restarted after it ended by itself."""

    PERMANENT = "permanent"
    TRANSIENT = "transient"
    TEMPORARY = "temporary"


def restart_always(error: BaseException) -> Directive:  # noqa: ARG001 - callers pass the error
    """The default decision: restart, whatever the error."""
    return Directive.RESTART


class Supervision(Struct, frozen=True, metaclass=KeywordsChecked):
    """How a parent treats failures of its children. Times are in seconds."""

    strategy: Strategy | str = Strategy.ONE_FOR_ONE
    intensity: int = 5  # restarts allowed within `period`
    period: float = 60.0
    backoff_min: float = 0.1  # before the first restart
    backoff_max: float = 30.0
    stable_after: float = 30.0  # after this time up, an actor's failures are forgotten
    decide: Callable[[BaseException], Directive] = restart_always

    def __post_init__(self) -> None:
        """Check the values. Raises an error with all findings at once."""
        findings: list[str] = []
        if self.strategy not in tuple(Strategy):
            findings.append(f"strategy={shown(self.strategy)}: allowed are {', '.join(Strategy)}")
        if type(plain(self.intensity)) is not int or self.intensity < 0:
            findings.append(f"intensity={shown(self.intensity)}: a whole number, at least 0")
        times = {name: self._time(name, findings) for name in ("period", "backoff_min", "backoff_max", "stable_after")}
        if times["period"] == 0:
            findings.append(f"period={self.period}: above 0 seconds")
        least, most = times["backoff_min"], times["backoff_max"]
        if least is not None and most is not None and least > most:
            findings.append(f"backoff_min={self.backoff_min}, backoff_max={self.backoff_max}: 0 <= min <= max")
        if not callable(self.decide) or answers_later(self.decide):
            findings.append(
                f"decide={shown(self.decide)}: a plain function of the error, which returns a Directive at once"
            )
        if findings:
            msg = "Supervision: " + "; ".join(findings)
            raise ValueError(msg)

    def _time(self, name: str, findings: list[str]) -> float | None:
        value = getattr(self, name)
        try:
            number(value)
            return seconds(value)  # a number only: these values are used in arithmetic
        except (TypeError, ValueError) as error:
            findings.append(f"{name}={error}")
            return None

    def delay(self, restarts: int) -> float:
        """Seconds to wait before restart number `restarts` (1, 2, ...) in a row."""
        # 2.0 ** 1024 overflows; no delay needs more than 63 doublings.
        return min(self.backoff_max, self.backoff_min * 2.0 ** min(max(restarts - 1, 0), 63))


class RestartCount(Struct, gc=False):
    """The restarts of one child, or of one family."""

    in_a_row: int = 0
    up_since: float = math.inf  # monotonic seconds; infinite until it is built
    recent: deque[float] | None = None  # times of restarts within the period, monotonic seconds

    def next_delay(self, supervision: Supervision, now: float) -> float | None:
        """Count one more restart at `now`. Returns the delay before it in seconds, None if the limit is exceeded."""
        recent = self.recent
        if recent is None:
            recent = self.recent = deque()
        if self.in_a_row and now - self.up_since >= supervision.stable_after:
            self.in_a_row = 0
            recent.clear()
        if self.up_since != math.inf:
            while recent and now - recent[0] >= supervision.period:
                recent.popleft()
        if len(recent) >= supervision.intensity:
            return None
        recent.append(now)
        self.in_a_row += 1
        self.up_since = math.inf
        return supervision.delay(self.in_a_row)
