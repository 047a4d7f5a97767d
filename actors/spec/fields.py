"""Checks of single values of a specification: names, durations, paths, functions, commands."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..times import Duration, seconds
from ..user_code import is_coroutine_function
from .model import Alert, Condition, EngineName, Hook, Task
from .names import folded, name_problem
from .schema import Finding, Path, clipped, note, short, where

_HEADER = r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}"
_PATH = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*(?:@[^\0]+)?:[^\W\d]\w*(?:\.[^\W\d]\w*)*")

Bodies = Callable[[str], Callable[..., Any]]


def kind_of(func: Callable[..., Any]) -> EngineName:
    """The engine a function runs on: "loop" for a function that returns a coroutine, "thread" for a plain function."""
    while isinstance(func, functools.partial):
        func = func.func
    if is_coroutine_function(func):
        return "loop"
    called = getattr(type(func), "__call__", None)  # noqa: B004 - the check is about the method itself
    return "loop" if is_coroutine_function(called) else "thread"


class Fields:
    """The findings so far, and the checks of single values, whose types are right."""

    def __init__(self, bodies: Bodies | None) -> None:
        self.findings: list[Finding] = []
        self.finder = self._bodies = bodies
        self._known_bodies: dict[object, tuple[str | None, EngineName | None]] = {}

    def bad(self, path: Path, message: str, suggestion: str | None = None) -> None:
        """Note a finding. Raises Enough after `MOST_FINDINGS`."""
        note(self.findings, Finding(where(path), message, suggestion))

    # -- functions and commands

    def body(self, spec: Task | Hook | Condition | Alert, at: Path, engine: EngineName | None = None) -> None:
        """Check that exactly one of `run`, `command` and (for a task) `receive` is given, its form, and its engine."""
        message = isinstance(spec, Task)
        kinds = ("run", "command", "receive") if message else ("run", "command")
        given = [name for name in kinds if getattr(spec, name) is not None]
        if len(given) != 1:
            have = f"both {' and '.join(given)}" if given else f"neither {' nor '.join(kinds)}"
            one_of = "a function, a command, or the name of a message" if message else "a function, or a command"
            self.bad(at, f"{_titled(spec)} has {have}", f"give exactly one: {one_of}")
        self.command(spec.command, spec.shell, at)
        if spec.run is None:
            if spec.command is not None and engine not in (None, "command", "ray"):
                self.bad((*at, "engine"), f"engine {engine!r} cannot run a command", "remove engine")
            return
        kind = self.function(spec.run, (*at, "run"))
        if engine == "command":
            self.bad((*at, "engine"), 'engine "command" cannot run a function', "remove engine")
        elif engine in ("thread", "process") and kind == "loop":
            self.bad((*at, "engine"), f'engine "{engine}" cannot run an async function', "remove engine")
        elif engine == "loop" and kind == "thread":
            self.bad(
                (*at, "engine"),
                'engine "loop" cannot run a plain function: it would block every other actor',
                'remove engine, or make it "async def"',
            )

    def command(self, command: list[str] | str | None, shell: bool, at: Path) -> None:
        """Check the form of a command: a list of arguments, or a text for a shell."""
        if command is None:
            if shell:
                self.bad((*at, "shell"), "is for commands, and this has none", "remove it")
            return
        here = (*at, "command")
        if isinstance(command, str):
            if not shell:
                self.bad(
                    here,
                    "is one text, which only a shell can split",
                    f"write a list of arguments, as {clipped(repr(command.split()), 300)}, or add shell = true",
                )
            if not command.strip():
                self.bad(here, "is empty")
        else:
            if shell:
                self.bad((*at, "shell"), "a shell takes one text, and command is a list", "remove shell")
            if not command or not command[0]:
                self.bad(here, "names no program")
        if any("\0" in part for part in command):
            self.bad(here, "holds a NUL byte, which no command line can")

    def function(self, body: object, at: Path) -> EngineName | None:
        """Check the form of a function or its path. Returns its engine, if known."""
        key = body if isinstance(body, str) else id(body)
        if key not in self._known_bodies:
            self._known_bodies[key] = self._look_at(body)
        problem, kind = self._known_bodies[key]
        if problem is not None:
            self.bad(at, problem)
        return kind

    def _look_at(self, body: object) -> tuple[str | None, EngineName | None]:
        func = body
        if isinstance(body, str):
            if self._bodies is None:
                if ":" in body and not _PATH.fullmatch(body):
                    return f'{short(body)} is no import path; write it as "package.module:function"', None
                return ("is empty", None) if not body.strip() else (None, None)
            try:
                func = self._bodies(body)
            except LookupError as error:
                return str(error.args[0] if error.args else error), None
        if not callable(func):
            return f"must be a function or its import path, not {type(body).__name__} ({short(body)})", None
        if inspect.isgeneratorfunction(func) or inspect.isasyncgenfunction(func):
            return (
                "is a generator: calling it would run nothing; return the value instead of yielding it",
                None,
            )
        return None, kind_of(func)

    # -- values

    def names(self, names: Sequence[str], at: Path, what: str, *, keyed: bool = False) -> None:
        """Check names, and that they differ from one another. keyed: they are the keys of a table."""
        seen: dict[str, str] = {}
        for index, name in enumerate(names):
            here = (*at, name) if keyed else (*at, index, "name")
            if problem := name_problem(name):
                self.bad(here, f"the name {short(name)} {problem}")
            same = folded(name)
            if same not in seen:
                seen[same] = name
            elif seen[same] == name:
                if name:
                    self.bad(here, f"there are two {what}s named {short(name)}", "give each its own name")
            else:
                self.bad(
                    here,
                    f"the {what}s {short(seen[same])} and {short(name)} differ in case or composition only",
                    "give each its own name",
                )

    def environment(self, env: dict[str, str], at: Path) -> None:
        """Check that variables can be set in an environment."""
        for key, value in env.items():
            if not key or "=" in key or "\0" in key:
                self.bad((*at, key), f"{short(key)} cannot be the name of an environment variable")
            if "\0" in value:
                self.bad((*at, key), "holds a NUL byte, which no environment can")

    def secrets(self, names: Sequence[str], told: Mapping[str, object], at: Path) -> None:
        """Check that secrets are names without values, since the journal holds the specification. told: its values."""
        for index, name in enumerate(names):
            if not name or "=" in name or "\0" in name:
                self.bad((*at, index), f"{short(name)} cannot be the name of an environment variable")
            elif name in names[:index]:
                self.bad((*at, index), f"{short(name)} is listed twice", "remove it")
            elif name in told:
                self.bad(
                    (*at, index), f"the value of {short(name)} is in this specification, which is journaled",
                    "remove the value here: it comes from the program's environment, or Runtime(secrets=...)",
                )  # fmt: skip

    def headers(self, names: Sequence[str], at: Path) -> None:
        """Check names of HTTP headers, which differ in more than case."""
        for index, name in enumerate(names):
            if not re.fullmatch(_HEADER, name):
                self.bad((*at, index), f"{short(name)} cannot be the name of a header", 'write it as "X-Event-Id"')
            elif name.lower() in (one.lower() for one in names[:index]):
                self.bad((*at, index), f"{short(name)} is listed twice: headers ignore case", "remove it")

    def folder(self, path: str | None, at: Path) -> None:
        """Check that a text can be a path."""
        if path is not None and (not path.strip() or "\0" in path):
            self.bad(at, f"{short(path)} is no path")

    def at_least(self, at: Path, value: int | None, least: int, suggestion: str | None = None) -> None:
        """Check the bounds of a count."""
        if value is not None and not least <= value <= 2**53:
            bound = f"at least {least}" if value < least else "at most 2**53"
            self.bad(at, f"must be {bound}, not {value}", suggestion)

    def duration(self, at: Path, value: Duration | None) -> float | None:
        """Read a duration. Returns seconds; None for None, and for a value that is no duration."""
        if value is None:
            return None
        try:
            return seconds(value)
        except ValueError as error:
            self.bad(at, str(error))
            return None

    def limit(self, at: Path, value: Duration | None) -> None:
        """Check that a limit is a duration above 0."""
        if self.duration(at, value) == 0:
            self.bad(at, "a limit of 0 is over before anything starts", "leave it out for no limit of its own")


def _titled(spec: Task | Hook | Condition | Alert) -> str:
    if isinstance(spec, Task):
        return f"task {short(spec.name)}"
    return "an alert" if isinstance(spec, Alert) else f"a {type(spec).__name__.lower()}"
