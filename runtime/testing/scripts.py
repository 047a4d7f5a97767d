"""Scripts of bodies in a simulation, by the names of tasks.

| outcome | meaning |
| --- | --- |
| `Succeeds(value)` | the body returns `value`; a command exits as expected |
| `Fails(error)` | the body raises `error`; a text means a RuntimeError, or a command's last line |
| `Exits(code, output)` | a command exits with `code` |
| `Hangs()` | the body never ends by itself |
| `Dies(reason)` | the worker of the body dies |

Rules
-----
- A script is found by the most exact of its names: "job/task", "task", then patterns ("ship-*"), the last given first.
  Calls of a task have a suffix: "build.condition", "build.check", "build.cancel_hook", "build.hook"; hooks
  of workstreams and alerts have the name of the entity that they are about.
- Each task takes the outcomes in order, and the last one repeats. An outcome is taken when an attempt begins: the
  second attempt has the second one, whether the first has ended, was lost, or crashed with the runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from random import Random
from typing import Any, cast

import msgspec

from ...actors.kernel.transaction import Transaction
from ...actors.times import Duration, seconds
from ...machines.keywords import did_you_mean
from ..engines.steps import OWN
from .arguments import advice, duration, text

PARTS = ("condition", "check", "cancel_hook", "hook")
"""The suffixes of a task's name for its other calls."""
Takes = Duration | tuple[Duration, Duration]
"""How long a body runs; between the two durations of a pair, the seed decides."""


class Succeeds(msgspec.Struct, frozen=True):
    """The body returns `value`. takes: how long it runs, if that differs from its script's."""

    value: Any = None
    takes: Takes | None = None


class Fails(msgspec.Struct, frozen=True):
    """The body raises `error`: an exception (also `Permanent`, `RetryAfter`), or the text of a RuntimeError."""

    error: Exception | str = "it failed, as its script says"
    takes: Takes | None = None


class Exits(msgspec.Struct, frozen=True):
    """A command writes `output`, and exits with `code`."""

    code: int = 0
    output: str = ""
    takes: Takes | None = None


class Hangs(msgspec.Struct, frozen=True):
    """The body never ends by itself."""

    takes: Takes | None = None


class Dies(msgspec.Struct, frozen=True):
    """The worker of the body dies."""

    reason: str = "it died, as a script says"
    takes: Takes | None = None


Scripted = Succeeds | Fails | Exits | Hangs | Dies


class Script(msgspec.Struct, kw_only=True, eq=False):
    """The behaviour of a body.

    run: the function that is called instead of the body; outcomes: its results without a function. takes: how
    long it runs. heartbeat: a duration, between two heartbeats, with these `details`. stops_in: how long it needs to
    stop when it is told to; ignores_stop: it goes on, and is abandoned. late: its result is delivered even if it was
    abandoned, or its worker has died.
    """

    name: str
    run: Callable[..., Any] | None = None
    outcomes: Sequence[Scripted] = (Succeeds(),)
    takes: Takes = 0.0
    heartbeat: Duration | None = None
    details: Any = None
    stops_in: Duration = 0.0
    ignores_stop: bool = False
    late: bool = False
    taken: dict[str, int] = msgspec.field(default_factory=dict[str, int])  # the number of taken outcomes, by owner
    used: bool = False  # whether a call has used it

    def next(self, owner: str) -> Scripted:
        """Take the outcome of a call that begins now for that owner."""
        taken = self.taken.get(owner, 0)
        self.taken[owner] = taken + 1
        return self.outcomes[min(taken, len(self.outcomes) - 1)]


def script_of(
    name: str,
    run: Callable[..., Any] | None = None,
    *,
    returns: Any = None,
    outcomes: Sequence[Scripted] | Scripted | None = None,
    takes: Takes = 0.0,
    heartbeat: Duration | None = None,
    stops_in: Duration = 0.0,
    **more: Any,
) -> Script:
    """Make a script from a test's arguments. Raises TypeError and ValueError for impossible ones."""
    text(name, "the name in a script")
    said = [word for word, value in (("run", run), ("returns", returns), ("outcomes", outcomes)) if value is not None]
    if len(said) > 1:
        raise TypeError(f"the script of {name!r} has {' and '.join(said)}: give one of them")
    if run is not None and not callable(cast("object", run)):
        raise TypeError(f"run of {name!r} is a function, not {run!r:.60}; a result is given as returns=")
    _check_takes(takes, "takes")
    duration(stops_in, "stops_in")
    if heartbeat is not None and not duration(heartbeat, "heartbeat"):
        raise ValueError("heartbeat is the time between two of them, and more than 0; None is none")
    return Script(
        name=name, run=run, outcomes=_outcomes(name, returns, outcomes), takes=takes, heartbeat=heartbeat,
        stops_in=stops_in, **more,
    )  # fmt: skip


def script_of_step(
    name: str,
    run: Callable[..., Any] | None,
    *,
    returns: Any,
    outcomes: Sequence[Scripted] | Scripted | None,
    takes: Takes,
) -> Script:
    """Make the script of a step. Raises TypeError and ValueError for impossible ones."""
    script = script_of(name, run, returns=returns, outcomes=outcomes, takes=takes)
    label, sign, number = name.partition("#")
    if not label or (sign and not (number.isdecimal() and int(number) >= 1)):
        raise ValueError(f"a step is named 'ask_model', or 'ask_model#3' for one call of it, not {name!r:.80}")
    if label.startswith(OWN):
        raise ValueError(f"{name!r:.80} is a step of the library: it has no function that a script could replace")
    for one in script.outcomes:
        if isinstance(one, Exits | Dies):
            raise TypeError(f"a step Succeeds, Fails or Hangs; {type(one).__name__} is for bodies")
    return script


def first_plain(label: str) -> str:
    """The label of a step as records have it: the first of a name has no number."""
    return label.removesuffix("#1")


def _outcomes(name: str, returns: Any, outcomes: object) -> Sequence[Scripted]:
    if outcomes is None:
        return [Succeeds(returns)]
    several = cast("Sequence[object]", outcomes) if isinstance(outcomes, list | tuple) else [outcomes]
    if not several:
        raise ValueError(f"the script of {name!r} needs at least one outcome")
    for one in several:
        if not isinstance(one, Scripted):
            raise TypeError(f"an outcome is Succeeds, Fails, Exits, Hangs or Dies, not {one!r:.60}")
        if one.takes is not None:
            _check_takes(one.takes, f"takes of {type(one).__name__}")
        if isinstance(one, Fails) and not isinstance(cast("object", one.error), Exception | str):
            raise TypeError(f"Fails takes an exception or a text, not {one.error!r:.60}")
        if isinstance(one, Exits) and not (_is(one.code, int) and _is(one.output, str)):
            raise TypeError(f"Exits takes a code and a text, not {one.code!r:.40} and {one.output!r:.40}")
    return cast("Sequence[Scripted]", several)


def _is(value: object, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _check_takes(takes: object, what: str) -> None:
    if not isinstance(takes, tuple):
        duration(takes, what)
        return
    pair = cast("tuple[object, ...]", takes)
    if len(pair) != 2:
        raise ValueError(f"{what} is a duration, or the shortest and the longest one, not {len(pair)}: {pair!r:.60}")
    if duration(pair[0], what) > duration(pair[1], what):
        raise ValueError(f"{what} is the shortest and the longest duration, in this order, not {pair!r:.60}")


class Scripts:
    """All scripts of a simulation, by their names."""

    def __init__(self) -> None:
        self._exact: dict[str, Script] = {}
        self._patterns: list[Script] = []  # the last given first
        self.of_steps: dict[str, Script] = {}  # by the name or the label of the step
        self._names: dict[str, None] = {}  # the names of all entities so far, with and without job, in order

    def add(self, script: Script) -> None:
        """Use a script for calls of its name from now on."""
        if any(sign in script.name for sign in "*?["):
            self._patterns.insert(0, script)
        else:
            self._exact[script.name] = script

    def add_step(self, script: Script) -> None:
        """Use a script for steps of its name, or with its label ("ask_model#3"), from now on."""
        self.of_steps[script.name] = script

    def has_step(self, name: str) -> bool:
        """Whether there is a script of any call of steps of that name."""
        return any(label.partition("#")[0] == name for label in self.of_steps)

    def find_step(self, label: str) -> Script | None:
        """The script of a step, by its label, else by its name."""
        found = self.of_steps.get(label if "#" in label else f"{label}#1") or self.of_steps.get(label.partition("#")[0])
        if found is not None:
            found.used = True
        return found

    def saw(self, turn: Transaction) -> None:
        """Note the names of a turn's entities, with and without their job's id."""
        for entity in (*turn.created, *turn.before):
            record = entity.record
            for name in (getattr(record, "name", None), getattr(record, "tool", None)):
                if name and name not in self._names:
                    self._names[name] = None
                if name and (job := getattr(record, "job_id", None)):
                    self._names[f"{job}/{name}"] = None

    def for_nothing(self) -> list[str]:
        """The faults of scripts whose names no entity had, in words. Patterns have none."""
        named = [*self._names, *(f"{name}.{part}" for name in self._names for part in PARTS)]
        there = set(named)
        return [
            f"the script sim.body({one.name!r}, ...) was not used: no call in this simulation had that name; "
            f"{advice(one.name, named if did_you_mean(one.name, named) else list(self._names))}"
            for one in self._exact.values()
            if not one.used and one.name not in there
        ] + [
            f"the script sim.step_body({one.name!r}, ...) was not used: no body in this simulation called that step"
            for one in self.of_steps.values()
            if not one.used
        ]

    def find(self, job: str, name: str) -> Script | None:
        """The script of a name in a job."""
        found = self._exact.get(f"{job}/{name}") or self._exact.get(name)
        if found is None and self._patterns:
            full = f"{job}/{name}"
            found = next((one for one in self._patterns if _fits(one.name, name, full)), None)
        if found is not None:
            found.used = True
        return found

    @property
    def unused(self) -> list[str]:
        """The names of scripts that no call has used."""
        return [one.name for one in (*self._exact.values(), *self._patterns) if not one.used]


def _fits(pattern: str, name: str, full: str) -> bool:
    return fnmatchcase(full if "/" in pattern else name, pattern)


def drawn(takes: Takes, random: Random) -> float:
    """How long a call takes, in seconds."""
    if isinstance(takes, tuple):
        return random.uniform(seconds(takes[0]), seconds(takes[1]))
    return seconds(takes)
