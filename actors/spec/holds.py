"""Checks of the approvals and waits of a specification.

Rules:
- A clause is exactly one of: a person, people, people of a team. A team has a function that returns its members.
- No person is named twice (`person` in `names.py` compares names), and a team has one function.
- A wait is a duration above 0, or a point in time with its zone. It must end before the deadline of its workstream.
"""

from __future__ import annotations

from ..times import Duration, moment, seconds
from .fields import Fields
from .model import Approval, Clause, Task, Workstream
from .names import person
from .schema import Path, short


def protection_findings(checker: Fields, spec: Task | Workstream, at: Path) -> None:
    """Check the hold and the wait of a task or a workstream."""
    if spec.hold is not None:
        approval_findings(checker, spec.hold, (*at, "hold"))
    if spec.wait is not None:
        _wait(checker, spec.wait, (*at, "wait"))
    if isinstance(spec, Workstream) and spec.deadline is not None:
        waits = [(spec.wait, (*at, "wait"))]
        waits += [(task.wait, (*at, "tasks", index, "wait")) for index, task in enumerate(spec.tasks)]
        for wait, path in waits:
            _before_deadline(checker, spec.deadline, wait, path)


def approval_findings(checker: Fields, rule: Approval, at: Path) -> None:
    """Check an approval."""
    checker.at_least((*at, "people"), rule.people, 1, "leave it out if the clauses are enough")
    checker.limit((*at, "expires"), rule.expires)
    persons: set[str] = set()
    teams: dict[str, object] = {}
    for index, clause in enumerate(rule.clauses):
        here = (*at, "clauses", index)
        _clause(checker, clause, here)
        if clause.person is not None:
            if person(clause.person) in persons:
                checker.bad((*here, "person"), f"{short(clause.person)} is named twice", "a person counts once")
            persons.add(person(clause.person))
        if clause.team is not None and teams.setdefault(clause.team, clause.members) != clause.members:
            checker.bad((*here, "members"), f"team {short(clause.team)} has another function in another clause")


def _clause(checker: Fields, clause: Clause, at: Path) -> None:
    if clause.person is None and clause.people is None and clause.team is None:
        checker.bad(at, "the clause names no person, people or team", "give person, people or team")
    if clause.person is not None and (clause.people is not None or clause.team is not None):
        checker.bad(at, "a clause is about one person, or about people", "write two clauses: both must be met")
    for name in ("person", "team"):
        value = getattr(clause, name)
        if value is not None and not value.strip():
            checker.bad((*at, name), "is empty")
    checker.at_least((*at, "people"), clause.people, 1)
    if clause.team is None:
        if clause.members is not None:
            checker.bad((*at, "members"), "lists a team's members, and no team is named", "add team, or remove it")
    elif clause.members is None:
        checker.bad(at, f"team {short(clause.team)} has no function for its members", 'add members = "module:function"')
    else:
        checker.function(clause.members, (*at, "members"))


def _wait(checker: Fields, wait: Duration, at: Path) -> None:
    try:
        if moment(wait, 0.0) == 0.0:
            checker.bad(at, "a wait of 0 never waits", "leave it out")
    except ValueError as error:
        checker.bad(at, str(error))


def _before_deadline(checker: Fields, deadline: Duration, wait: Duration | None, at: Path) -> None:
    try:
        if wait is not None and seconds(wait) >= seconds(deadline):
            checker.bad(at, f"the wait ends after the deadline ({deadline})", "raise the deadline")
    except ValueError:
        return  # a point in time, or reported already
