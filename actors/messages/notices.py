"""Notices: what no transition tells, and somebody should hear all the same.

| event | severity | what happened | facts |
| --- | --- | --- | --- |
| stale_message | warning | something came under a fencing token that is over, and was refused | message, token |
| turn_undone | error | a mistake of ours: a turn raised, was undone, and its input fails its entity | traceback |
| hook_failed | error | a hook raised, did not exit with 0, or took too long | hook, error, error_type, traceback |
| hook_waits | warning | a hook's function is not there: it waits for a start by a program that has it | hook, error |
| inbox_unreadable | error | the commands of other processes cannot be read; it is tried again with the next | |
| leftover_stays | error | a process that outlived a killed runtime cannot be killed | pid |
| body_abandoned | warning | a body did not stop; its worker's place is given to others | attempt, worker |
| hooks_abandoned | warning | a graceful cancel was cut short, by its deadline or by force | abandoned, never_ran |
| partial_output_saved | info | a command that was stopped had written something, which is kept | path, size |
| threads_left | warning | the runtime is left, and threads of what was stopped still run | left (whose they are) |
| processes_left_behind | warning | what a command or body has started left its process group, and runs | pids |
| secret_in_result | warning | a body returned a secret that it was handed; it was masked | |
| alert | info | an alert was made, and will be told | about (the entity), level (the severity) |
| alert_suppressed | warning | an alert was above its limit: the first such one of a period | |
| alert_broken | error | an alert could not be made | |
| team_unknown | warning | who is in a team could not be found out: who approves is not in it | team, by, traceback |
| tool_settings_differ | warning | a job asks for other settings of a tool than those which held | job |
| stray_body | warning | a body ran under a fencing token that is over, and is killed | token |
| cluster_away | error | the connection to the Ray cluster was lost; it is looked for | reason |
| cluster_back | info | it is there again | |
| start_delayed | warning | there is too little of something to start what is to run; it is tried again | reason |
| worker_busy | warning | a worker cannot answer, but is seen to work: it is left alone | assigned |
| worker_given_up | critical | a worker died too often, and is not replaced any more | reason, runs |
| not_archived | warning | ended jobs could not be moved out of the journal, and stay in it | jobs, reason |
| loop_blocked | warning | the event loop did not turn: nothing of the runtime went on | seconds, stack |
| actor_failed | error | a user's actor raised | actor, message (its type), traceback |
| actor_restarted | error | it was built anew, and what it knew is lost | actor, traceback |
| actor_stopped | critical | it ended by its failure (error: as it was decided) | actor, traceback |
| actor_abandoned | critical | it did not end in time, and is left where it is | actor, message |
| event_failed | error | a machine took no event: a function of the application's raised | fired, state, traceback |
| wait_failed | error | a `Retry(wait=...)` raised, or gave no number: the default backoff is used | traceback |
| on_trouble_failed | error | `on_trouble` raised: told to everybody else | traceback |
| log_failed | error | the application's log raised: 1, 2, 4, ... times; told to everybody else | times, traceback |
| subscriber_failed | error | a function that is told of dead letters raised: 1, 2, 4, ... times | times, traceback |

Rules
-----
- Actors give notice by `kernel.notice(...)`: an effect, told when the turn that gave it is durable, in order with the
  transitions. The runtime itself gives notice at once.
- A notice changes nothing: what must survive for the runtime's own sake belongs into a record or a transition.
- It is told to the application's log, to the subscribers of `Runtime.events()`, and, unless it is only information, to
  `Runtime.on_trouble`; and kept in the journal, as a `NoticeRecord`, bounded. Telling never raises.
- Who adds a kind adds its line above, and to docs/observation.md.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Severity = Literal["info", "warning", "error", "critical"]
SEVERITIES: tuple[Severity, ...] = ("info", "warning", "error", "critical")
"""From the ordinary to what somebody must look at."""


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened and that no transition tells.

    event names its kind, text says it to people; at is UTC epoch seconds; kind is that of the entity it is about, or
    "runtime"; facts are what a program may read of it; error is what was raised, where something was.
    """

    event: str
    severity: Severity
    text: str
    at: float
    kind: str = "runtime"
    entity_id: str | None = None
    job_id: str | None = None
    facts: dict[str, Any] = {}
    error: Exception | None = None


class NoticeRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What the journal keeps of a notice above info, and of those like it that came soon after.

    Alike are those of one event about one entity with one type of error. at: UTC epoch seconds of the last of them,
    whose text and traceback these are; first_at: of the first; count: how many they are. others: whether they are about
    several entities, since so many different ones came that each had no room of its own.
    error is the type of what was raised, message that of what an actor was handling, node the one that has told it.
    """

    key: int
    event: str
    severity: Severity
    kind: str
    entity_id: str | None = None
    job_id: str | None = None
    text: str
    error: str | None = None
    message: str | None = None
    traceback: str | None = None
    first_at: float
    at: float
    count: int = 1
    others: bool = False
    node: str | None = None
