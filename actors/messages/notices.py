"""Notices: events without a transition that people should know.

| event | severity | what happened | facts |
| --- | --- | --- | --- |
| stale_message | warning | a message with the fencing token of an ended call was refused | message, token |
| turn_undone | error | a fault of Callboard: a turn raised and was undone, and its entity fails | traceback |
| hook_failed | error | a hook raised, did not exit with 0, or took too long | hook, error, error_type, traceback |
| hook_waits | warning | a hook's function cannot be found: it waits for a program that has the function | hook, error |
| inbox_unreadable | error | the commands of other processes cannot be read; the next command triggers a retry | |
| progress | info | how far a running body is; told to readers of events only | done, of, text |
| leftover_stays | error | a process that outlived a killed runtime cannot be killed | pid |
| body_abandoned | warning | a body did not stop; its slot is released | attempt, worker |
| hooks_abandoned | warning | a graceful cancel was cut short, by its deadline or by force | abandoned, never_ran |
| partial_output_saved | info | the output of a stopped command was kept | path, size |
| threads_left | warning | the runtime was left, and threads of stopped bodies still run | left (the bodies) |
| processes_left_behind | warning | processes of a command or body left its process group, and still run | pids |
| secret_in_result | warning | a body returned one of its secrets; the secret was masked | |
| alert | info | an alert was created, and will run | about (the entity), level (the severity) |
| alert_suppressed | warning | an alert exceeded its limit, for the first time in a period | |
| alert_broken | error | an alert could not be created | |
| team_unknown | warning | a team's members could not be read: `by` counts as no member | team, by, traceback |
| tool_settings_differ | warning | a job sets other values for a tool than those in force | job, setting (of the tool) |
| stray_body | warning | a body of an ended call was found, and is killed | token |
| cluster_away | error | the connection to the Ray cluster was lost; reconnecting | reason |
| cluster_back | info | the cluster is connected again | |
| start_delayed | warning | a call cannot start for want of a resource; the start is retried | reason |
| worker_busy | warning | a worker cannot answer, but was observed to work: it is not stopped | assigned |
| worker_given_up | critical | a worker died too often, and is not replaced any more | reason, runs |
| not_archived | warning | ended jobs could not be moved out of the journal, and stay in it | jobs, reason |
| not_shared | warning | what bodies show cannot be written for, or read from, other processes | tries (in a row) |
| loop_blocked | warning | the event loop did not turn: the runtime stood still | seconds, stack |
| actor_failed | error | a user's actor raised | actor, message (its type), traceback |
| actor_restarted | error | a user's actor was rebuilt, and its state was lost | actor, traceback |
| actor_stopped | critical | its failure stopped a user's actor (error: its parent decided so) | actor, traceback |
| actor_abandoned | critical | a user's actor did not end in time, and was abandoned | actor, message |
| event_failed | error | a machine refused an event: a function of the application raised | fired, state, traceback |
| wait_failed | error | a `Retry(wait=...)` raised, or gave no number: the default backoff is used | traceback |
| on_trouble_failed | error | `on_trouble` raised; other receivers get this | traceback |
| log_failed | error | the application's log raised 1, 2, 4, ... times; other receivers get this | times, traceback |
| subscriber_failed | error | a subscriber of dead letters raised 1, 2, 4, ... times | times, traceback |

Rules
-----
- Actors give notice by `kernel.notice(...)`: an effect, emitted when the turn is durable, in order with the
  transitions. The runtime itself emits notices at once.
- A notice changes nothing: data that the runtime needs after a restart belongs in a record or a transition.
- A notice goes to the application's log, to the subscribers of `Runtime.events()`, and, above info, to
  `Runtime.on_trouble`; the journal keeps it as a `NoticeRecord`, bounded. Emitting a notice never raises.
- A new kind needs a line above, and in docs/observation.md.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Severity = Literal["info", "warning", "error", "critical"]
SEVERITIES: tuple[Severity, ...] = ("info", "warning", "error", "critical")
"""Severities, from information to faults that need a person."""


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """An event that no transition reports.

    event: its kind; text: the message for people; at: UTC epoch seconds; kind: the kind of the entity that it is about,
    or "runtime"; facts: values for programs; error: the exception, if there is one.
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
    """The journal's record of a notice above info, and of similar ones that followed soon.

    Similar notices have one event, one entity, one type of error, and the same hook, team or setting. at: UTC epoch
    seconds of the last one, which gives text and traceback; first_at: of the first; count: their number. others:
    whether they are about several entities, because there were too many different ones to store each alone.
    error is the type of the exception, message the type of the message that an actor handled, node the emitting node.
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
