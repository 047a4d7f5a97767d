"""The auditor: a clean log has no findings, and each kind of fault is found once, at its place."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from callboard.machines import CREATE, Machine, State, Transition, TransitionEvent, event_type
from callboard.machines.audit.audit import audit, audit_lines, audit_logs
from callboard.machines.audit.auditor import AuditFinding
from callboard.machines.audit.log import EPOCH


class Log:
    """Writes a log: numbers, times and severities come by themselves; any field may be given."""

    def __init__(self) -> None:
        self.entries: list[dict[str, Any]] = []
        self._numbers: dict[tuple[str, str], int] = {}

    def add(self, kind: str, entity_id: str, step: str, **fields: Any) -> Log:
        """Append a line. `step` is "-> state", a creation, or "state event state"."""
        words = step.split()
        source, trigger, target = (None, CREATE, words[1]) if words[0] == "->" else words
        number = self._numbers[kind, entity_id] = self._numbers.get((kind, entity_id), 0) + 1
        seq = len(self.entries) + 1
        self.entries.append(
            {
                "seq": seq,
                "timestamp": f"2024-01-15T10:{seq // 60 % 60:02}:{seq % 60:02}.000Z",
                "event_type": event_type(kind),
                "severity": SEVERITY.get((kind, target), "info"),
                "entity_id": entity_id,
                "entity_seq": number,
                "from_state": source,
                "to_state": target,
                "trigger": trigger,
                "attempt": 1 if target == "running" else None,
                "worker_id": "w" if target == "running" else None,
                "workstream_id": "ws" if kind in {"task", "workstream"} else None,
                "job_id": "job" if kind in {"job", "workstream", "task"} else None,
                "metadata": {},
            }
            | fields
        )
        return self

    def steps(self, kind: str, entity_id: str, *steps: str) -> Log:
        for step in steps:
            self.add(kind, entity_id, step)
        return self

    def lines(self) -> list[bytes]:
        return [msgspec.json.encode(entry) + b"\n" for entry in self.entries]

    def findings(self) -> list[AuditFinding]:
        """The findings about a log; they must be the same for structs, mappings and lines."""
        found = audit(self.entries)
        assert [f.kind for f in audit_lines(self.lines())] == [f.kind for f in found]
        return found

    def kinds(self) -> list[str]:
        return [finding.kind for finding in self.findings()]


SEVERITY = {
    ("task", "failed"): "error",
    ("task", "circuit_open"): "error",
    ("task", "retrying"): "warning",
    ("task", "timed_out"): "warning",
    ("job", "failed"): "error",
    ("workstream", "failed"): "critical",
    ("worker", "unresponsive"): "error",
    ("breaker", "open"): "error",
}

RUN = ("pending enqueue queued", "queued start running", "running succeed validating")
DONE = (*RUN, "validating validation_passed completed")


def begun() -> Log:
    """A job whose workstream is executing."""
    log = Log()
    log.steps("job", "job", "-> submitted", "submitted validate pending", "pending allocate running")
    log.steps("workstream", "ws", "-> planned", "planned tasks_created ready", "ready start executing")
    return log


def completed() -> Log:
    """A job with one task, from beginning to end."""
    log = begun().steps("task", "t1", "-> pending", *DONE)
    log.steps("workstream", "ws", "executing succeed validating", "validating validation_passed completed")
    return log.steps("job", "job", "running succeed completed")


def of_three() -> Log:
    """A job with three tasks, of which the last one waits for both others."""
    log = begun().steps("task", "t1", "-> pending").steps("task", "t2", "-> pending")
    log.add("task", "t3", "-> pending", metadata={"depends_on": 2})
    for task in ("t1", "t2", "t3"):
        log.steps("task", task, *DONE)
    log.steps("workstream", "ws", "executing succeed validating", "validating validation_passed completed")
    return log.steps("job", "job", "running succeed completed")


class TestCleanLogs:
    def test_an_empty_one(self) -> None:
        assert audit([]) == []
        assert audit_lines([]) == []

    def test_a_job_from_beginning_to_end(self) -> None:
        assert completed().findings() == []

    def test_one_that_still_goes_on(self) -> None:
        assert begun().steps("task", "t1", "-> pending", *RUN).findings() == []

    def test_retries_within_the_budget(self) -> None:
        log = begun().add("task", "t1", "-> pending", metadata={"max_attempts": 2, "max_losses": 1})
        log.steps("task", "t1", *RUN[:2])
        log.add("task", "t1", "running fail retrying", metadata={"end": "failed", "failed_attempts": 1})
        log.steps("task", "t1", "retrying requeue queued", "queued start running")
        log.add("task", "t1", "running fail failed", metadata={"end": "failed", "failed_attempts": 2})
        log.steps("workstream", "ws", "executing fail cancelling", "cancelling complete failed")
        log.entries[-2]["severity"] = "error"
        assert log.steps("job", "job", "running fail failed").findings() == []

    def test_a_cancel_before_anything_has_begun_reaches_the_tasks_in_the_same_turn(self) -> None:
        log = Log().steps("job", "job", "-> submitted", "submitted validate pending")
        log.steps("workstream", "ws", "-> planned", "planned tasks_created ready")
        log.steps("task", "t1", "-> pending").steps("task", "t2", "-> pending")
        log.steps("job", "job", "pending cancel cancelled").steps("workstream", "ws", "ready cancel cancelled")
        log.steps("task", "t1", "pending cancel cancelled").steps("task", "t2", "pending cancel cancelled")
        assert log.findings() == []

    def test_a_machine_whose_application_uses_our_words_in_its_metadata(self) -> None:
        log = Log().add("machine", "front", "shut open open", metadata={"lifecycle": "theirs", "ended_as": "failed"})
        assert "unknown_lifecycle" not in log.kinds()

    def test_workers_and_breakers(self) -> None:
        log = Log().add("worker", "w", "-> initializing", metadata={"capacity": 1})
        log.steps("worker", "w", "initializing register idle")
        log.add("worker", "w", "idle assign busy", metadata={"task_id": "t1", "assigned": 1})
        log.add("worker", "w", "busy release idle", metadata={"task_id": "t1", "assigned": 0})
        log.steps("worker", "w", "idle health_check_timeout unresponsive", "unresponsive recover idle")
        log.steps("breaker", "b", "-> closed", "closed fail closed", "closed fail open", "open cool_down half_open")
        assert log.findings() == []

    def test_each_run_of_an_entity_has_its_own_history(self) -> None:
        log = Log()
        for run in (1, 2):
            log.add("worker", "w", "-> initializing", run=run, entity_seq=1)
            log.add("worker", "w", "initializing terminate terminated", run=run, entity_seq=2)
        assert log.findings() == []

    def test_an_entity_of_the_application_needs_no_table(self) -> None:
        log = Log().steps("order", "o1", "-> new", "new pay paid", "paid ship sent")
        assert log.findings() == []

    def test_structs_are_taken_as_they_are(self) -> None:
        events = [msgspec.convert(entry, TransitionEvent) for entry in completed().entries]
        assert audit(events) == []
        assert {event.kind for event in events} == {"job", "workstream", "task"}

    def test_keys_of_a_newer_writer_are_told_once(self) -> None:
        log = completed()
        log.entries[3]["novelty"] = log.entries[5]["novelty"] = 1
        (finding,) = log.findings()
        assert (finding.severity, finding.kind, finding.line) == ("warning", "unknown_key", 4)
        assert "`novelty`" in finding.text

    def test_only_what_is_written_is_held_against_it(self) -> None:
        """Without figures in the metadata, no check compares them."""
        log = begun().steps("task", "t1", "-> pending", *RUN[:2])
        for _ in range(9):
            log.steps("task", "t1", "running fail retrying", "retrying requeue queued", "queued start running")
        assert log.findings() == []


class TestLines:
    @pytest.mark.parametrize("line", [b"# a line of text\n", b"{}\n", b"\n", b'{"seq": "x"}\n'])
    def test_a_file_that_is_no_log_is_told_once(self, line: bytes) -> None:
        (finding,) = audit_lines([line] * 1000)
        assert (finding.severity, finding.kind, finding.line) == ("error", "no_log", 1)
        assert "this is no log of transitions" in finding.text
        assert len(audit_lines([line] * 3)) == 3

    def test_a_log_with_damage_at_its_beginning_is_a_log(self) -> None:
        found = audit_lines([b"damage\n"] * 4 + completed().lines())
        assert [finding.kind for finding in found] == ["damaged"] * 4

    def test_a_torn_last_line(self) -> None:
        lines = completed().lines()
        whole = sum(map(len, lines[:-1]))
        for cut in (1, 20, len(lines[-1]) - 2):
            (finding,) = [f for f in audit_lines([*lines[:-1], lines[-1][:cut]]) if f.kind == "torn"]
            assert (finding.severity, finding.offset, finding.line) == ("warning", whole, len(lines))
            assert f"cut off after {cut} bytes" in finding.text

    def test_a_last_line_that_only_lacks_its_end(self) -> None:
        lines = completed().lines()
        assert audit_lines([*lines[:-1], lines[-1].rstrip()]) == []

    @pytest.mark.parametrize(
        "damage",
        [
            b"\n",
            b"{\n",
            b"not json\n",
            b"\x00\x00\x00\n",
            b'{"seq": 1,}\n',
            b'{"entity_id": "\xff\xfe"}\n',
            b"[" * 100_000 + b"\n",
            b'{"metadata": ' + b"[" * 100_000 + b"\n",
        ],
        ids=["empty", "cut", "words", "zeros", "comma", "not utf-8", "deep", "deep metadata"],
    )
    def test_damage(self, damage: bytes) -> None:
        lines = completed().lines()
        (finding,) = audit_lines([*lines[:3], damage, *lines[3:]])
        assert (finding.severity, finding.line, finding.offset) == ("error", 4, sum(map(len, lines[:3])))
        assert finding.kind in {"damaged", "bad_schema"}

    def test_a_damaged_last_line_is_not_a_torn_one(self) -> None:
        (finding,) = audit_lines([*completed().lines(), b'{"seq"\n'])
        assert (finding.kind, finding.severity) == ("damaged", "error")

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("seq", 0),
            ("seq", "1"),
            ("timestamp", "2024-01-15 10:30:00"),
            ("timestamp", "2024-01-15T10:30:00Z"),
            ("timestamp", "2024-01-15T10:30:00.000+01:00"),
            ("timestamp", 1705314600),
            ("event_type", "task"),
            ("event_type", "Task_state_transition"),
            ("severity", "fatal"),
            ("entity_id", ""),
            ("entity_id", None),
            ("entity_seq", 0),
            ("to_state", None),
            ("trigger", ""),
            ("run", 0),
            ("attempt", "one"),
            ("metadata", []),
        ],
    )
    def test_bad_schema(self, field: str, value: object) -> None:
        log = Log().steps("order", "o1", "-> new")
        log.entries[0][field] = value
        (finding,) = log.findings()
        assert (finding.kind, finding.severity, finding.line) == ("bad_schema", "error", 1)
        assert field in finding.text

    @pytest.mark.parametrize("field", ["seq", "timestamp", "event_type", "severity", "entity_id", "to_state"])
    def test_a_missing_field(self, field: str) -> None:
        log = Log().steps("order", "o1", "-> new")
        del log.entries[0][field]
        (finding,) = log.findings()
        assert (finding.kind, finding.severity) == ("bad_schema", "error")


class TestOrder:
    def test_a_gap(self) -> None:
        log = completed()
        del log.entries[-2:]
        log.add("breaker", "b", "-> closed", seq=len(log.entries) + 3)
        (finding,) = [f for f in log.findings() if f.kind != "not_derived"]
        assert (finding.kind, finding.severity, finding.entity_id) == ("gap", "error", "b")

    def test_a_repeat(self) -> None:
        log = completed()
        log.entries.insert(5, log.entries[4])
        (finding,) = log.findings()
        assert (finding.kind, finding.severity, finding.line) == ("repeat", "error", 6)

    def test_lines_in_the_wrong_order(self) -> None:
        log = completed()
        log.entries[3], log.entries[4] = log.entries[4], log.entries[3]
        assert {"gap", "repeat"} <= set(log.kinds())

    def test_a_log_that_starts_late(self) -> None:
        log = completed()
        del log.entries[:7]
        (finding,) = log.findings()
        assert (finding.kind, finding.severity) == ("starts_late", "warning")

    def test_a_gap_within_an_entity(self) -> None:
        log = Log().steps("breaker", "b", "-> closed", "closed trip open")
        log.entries[1]["entity_seq"] = 3
        assert log.kinds() == ["gap"]

    def test_a_repeat_within_an_entity(self) -> None:
        log = Log().steps("breaker", "b", "-> closed", "closed trip open")
        log.entries[1]["entity_seq"] = 1
        assert log.kinds() == ["repeat"]

    def test_a_creation_that_is_not_number_one(self) -> None:
        log = Log().add("breaker", "b", "-> closed", entity_seq=2)
        assert log.kinds() == ["gap"]

    def test_time_that_goes_backwards(self) -> None:
        log = Log().steps("breaker", "b", "-> closed", "closed trip open", "open reset closed")
        log.entries[1]["timestamp"] = "2023-12-31T23:59:59.999Z"
        (finding,) = log.findings()
        assert (finding.kind, finding.severity, finding.line) == ("time_backwards", "warning", 2)


class TestTransitions:
    def test_an_unknown_event(self) -> None:
        log = Log().steps("job", "job", "-> submitted", "submitted fail failed")
        (finding,) = log.findings()
        assert (finding.kind, finding.severity, finding.seq) == ("unknown_transition", "error", 2)
        assert "submitted -> failed by 'fail'" in finding.text

    def test_a_known_event_that_leads_elsewhere(self) -> None:
        assert Log().steps("job", "job", "-> submitted", "submitted validate running").kinds() == ["unknown_transition"]

    def test_an_unknown_state(self) -> None:
        assert Log().steps("job", "job", "-> submitted", "submitted validate asleep").kinds() == ["unknown_transition"]

    def test_a_state_that_does_not_follow(self) -> None:
        log = Log().steps("job", "job", "-> submitted", "pending allocate running")
        (finding,) = log.findings()
        assert (finding.kind, finding.severity) == ("does_not_follow", "error")
        assert "it is submitted" in finding.text

    def test_a_step_out_of_a_terminal_state(self) -> None:
        log = Log().steps("job", "job", "-> submitted", "submitted cancel cancelled", "cancelled validate pending")
        assert log.kinds() == ["after_end"]

    def test_an_end_that_is_taken_back_counts_once(self) -> None:
        log = begun().steps("task", "t1", "-> pending", "pending cancel cancelled", "cancelled reset pending")
        log.steps("task", "t1", *DONE, "completed fail failed")
        assert log.kinds() == ["after_end", "after_end", "not_derived"]

    def test_a_forced_row_may_leave_a_terminal_state(self) -> None:
        fuse = Machine(
            "fuse",
            "whole",
            (State("whole", bounded_by="the current"), State("blown", terminal=True), State("gone", terminal=True)),
            (Transition("whole", "blow", "blown"), Transition("blown", "replace", "gone", forced=True)),
        )
        log = Log().steps("fuse", "f", "-> whole", "whole blow blown", "blown replace gone")
        assert audit(log.entries, {"fuse": fuse}) == []
        log.steps("fuse", "f", "gone blow blown")
        assert [finding.kind for finding in audit(log.entries, {"fuse": fuse})] == ["after_end"]

    def test_an_entity_without_a_creation(self) -> None:
        log = Log().steps("job", "job", "submitted validate pending", "pending allocate running")
        assert log.kinds() == ["not_created"]

    def test_an_entity_created_twice(self) -> None:
        log = Log().steps("job", "job", "-> submitted", "submitted validate pending", "-> submitted")
        assert log.kinds() == ["created_twice"]

    def test_a_breaker_that_was_let_go_begins_anew(self) -> None:
        log = Log().add("breaker", "t", "-> closed")
        log._numbers.clear()
        log.add("breaker", "t", "-> closed").add("breaker", "t", "closed trip open", severity="error")
        assert log.kinds() == []
        log.add("breaker", "t", "-> closed")
        assert log.kinds() == ["created_twice"]

    def test_a_creation_in_another_state(self) -> None:
        assert Log().steps("job", "job", "-> pending").kinds() == ["wrong_start"]

    def test_a_creation_by_another_event(self) -> None:
        assert Log().add("job", "job", "-> submitted", trigger="validate").kinds() == ["unknown_transition"]

    def test_a_severity_that_is_not_the_rows(self) -> None:
        log = Log().steps("job", "job", "-> submitted").add("job", "job", "submitted reject failed", severity="info")
        (finding,) = log.findings()
        assert (finding.kind, finding.severity) == ("wrong_severity", "warning")

    def test_one_fault_does_not_bring_others(self) -> None:
        log = Log().steps("job", "job", "-> submitted", "submitted validate running", "running succeed completed")
        assert log.kinds() == ["unknown_transition"]


class TestInvariants:
    def test_the_first_loss_is_within_every_limit(self) -> None:
        log = begun().add("task", "t1", "-> pending", metadata={"max_attempts": 2, "max_losses": 0})
        log.steps("task", "t1", *RUN[:2]).add("task", "t1", "running fail retrying", metadata={"lost_attempts": 1})
        assert log.kinds() == []
        log.add("task", "t2", "-> pending", metadata={"max_attempts": 2, "max_losses": 0})
        log.steps("task", "t2", *RUN[:2]).add("task", "t2", "running fail retrying", metadata={"lost_attempts": 2})
        assert log.kinds() == ["too_many_attempts"]

    @pytest.mark.parametrize(
        ("told", "kinds"),
        [
            ({"failed_attempts": 2}, []),
            ({"failed_attempts": 3}, ["too_many_attempts"]),
            ({"failed_attempts": 3, "granted": 1}, []),
            ({"failed_attempts": 4, "granted": 1}, ["too_many_attempts"]),
            ({"lost_attempts": 1}, []),
            ({"lost_attempts": 2}, ["too_many_attempts"]),
            ({"failed_attempts": "many"}, []),
        ],
    )
    def test_the_limits_of_attempts(self, told: dict[str, Any], kinds: list[str]) -> None:
        log = begun().add("task", "t1", "-> pending", metadata={"max_attempts": 2, "max_losses": 1})
        log.steps("task", "t1", *RUN[:2]).add("task", "t1", "running fail retrying", metadata=told)
        assert log.kinds() == kinds

    def test_a_task_queued_before_its_dependencies_have_ended(self) -> None:
        log = begun().steps("task", "t1", "-> pending")
        log.add("task", "t2", "-> pending", metadata={"depends_on": 1})
        log.steps("task", "t2", "pending enqueue queued")
        (finding,) = log.findings()
        assert (finding.kind, finding.severity, finding.entity_id) == ("dependencies_unmet", "error", "t2")

    def test_a_task_queued_after_its_dependencies_have_ended(self) -> None:
        log = begun().add("task", "t2", "-> pending", metadata={"depends_on": 1})
        log.steps("task", "t1", "-> pending", *DONE).steps("task", "t2", *RUN)
        assert log.kinds() == []

    def test_an_attempt_without_a_worker(self) -> None:
        log = begun().steps("task", "t1", "-> pending", RUN[0])
        assert log.add("task", "t1", RUN[1], worker_id=None).kinds() == ["no_worker"]

    def test_an_attempt_without_a_number(self) -> None:
        log = begun().steps("task", "t1", "-> pending", RUN[0])
        assert log.add("task", "t1", RUN[1], attempt=None).kinds() == ["no_attempt"]

    @pytest.mark.parametrize(
        ("fields", "kinds"),
        [
            ({"attempt": 3, "worker_id": "w"}, []),
            ({"attempt": 4}, ["other_attempt"]),
            ({"attempt": 2}, ["attempt_backwards"]),
            ({"worker_id": "v"}, ["other_worker"]),
        ],
    )
    def test_a_line_that_is_not_of_the_attempt_that_was_started(self, fields: dict[str, Any], kinds: list[str]) -> None:
        log = begun().steps("task", "t1", "-> pending", RUN[0]).add("task", "t1", RUN[1], attempt=3)
        assert log.add("task", "t1", RUN[2], **fields).kinds() == kinds

    def test_an_attempt_and_a_worker_before_any_start(self) -> None:
        log = begun().steps("task", "t1", "-> pending").add("task", "t1", RUN[0], attempt=1, worker_id="w")
        assert log.kinds() == ["other_attempt", "other_worker"]

    def test_a_start_that_came_before_the_log_is_not_known(self) -> None:
        log = begun().steps("task", "t1", "-> pending", *RUN[:2]).add("task", "t1", RUN[2], attempt=1, worker_id="w")
        log.entries = log.entries[7:]
        assert {finding.kind for finding in audit(log.entries)} == {"starts_late"}
        log.entries = log.entries[1:]
        assert {finding.kind for finding in audit(log.entries)} == {"starts_late"}

    @pytest.mark.parametrize(
        ("kind", "entity_id", "fields"),
        [
            ("job", "j1", {"job_id": "j2"}),
            ("workstream", "j1@1", {"workstream_id": "j1@2", "job_id": "j1"}),
            ("workstream", "j1@1", {"workstream_id": "j1@1", "job_id": "j2"}),
            ("task", "j1@1/a", {"workstream_id": "j1@2", "job_id": "j1"}),
            ("task", "t1", {"workstream_id": "ws", "job_id": "j2"}),
        ],
    )
    def test_an_entity_that_names_another_owner_than_its_own(
        self, kind: str, entity_id: str, fields: dict[str, Any]
    ) -> None:
        created = {"job": "submitted", "workstream": "planned", "task": "pending"}[kind]
        found = begun().add(kind, entity_id, f"-> {created}", **fields).findings()
        assert [finding.kind for finding in found if finding.severity == "error"] == ["other_owner"]

    @pytest.mark.parametrize("fields", [{"job_id": "j2"}, {"job_id": None}, {"workstream_id": "ws2"}])
    def test_an_entity_that_changes_its_owner(self, fields: dict[str, Any]) -> None:
        log = begun().steps("task", "t1", "-> pending").add("task", "t1", RUN[0], **fields)
        (finding,) = log.steps("task", "t1", RUN[1]).findings()
        assert finding.kind == "other_owner"

    def test_attempts_that_count_backwards(self) -> None:
        log = begun().steps("task", "t1", "-> pending", RUN[0]).add("task", "t1", RUN[1], attempt=2)
        assert log.add("task", "t1", RUN[2], attempt=1).kinds() == ["attempt_backwards"]

    def test_a_task_that_starts_while_its_workstream_is_paused(self) -> None:
        log = begun().steps("task", "t1", "-> pending", RUN[0]).steps("workstream", "ws", "executing pause paused")
        (finding,) = log.steps("task", "t1", RUN[1]).findings()
        assert finding.kind == "started_out_of_turn"

    def test_a_worker_that_comes_back_while_the_workstream_is_paused(self) -> None:
        log = begun().steps("task", "t1", "-> pending", *RUN[:2], "running recover recovering")
        log.steps("workstream", "ws", "executing pause paused")
        assert log.steps("task", "t1", "recovering start running").kinds() == []

    @pytest.mark.parametrize("optional", [False, True])
    @pytest.mark.parametrize(
        ("end", "standing", "bad"),
        [
            ("pending fail failed", None, True),
            ("pending cancel cancelled", None, True),
            ("pending skip skipped", "bad", True),
            ("pending skip skipped", "void", False),
            ("pending skip skipped", "good", False),
            ("pending skip skipped", None, False),
            ("pending skip skipped", ["bad"], False),
        ],
    )
    def test_a_completed_workstream_with_a_bad_task(
        self, end: str, standing: object, bad: bool, optional: bool
    ) -> None:
        log = begun().add("task", "t1", "-> pending", metadata={"optional": optional})
        log.add("task", "t1", end, metadata={} if standing is None else {"standing": standing})
        log.steps("workstream", "ws", "executing succeed validating", "validating validation_passed completed")
        assert log.kinds() == (["completed_with_bad"] if bad and not optional else [])

    def test_a_workstream_that_ends_before_its_tasks(self) -> None:
        log = begun().steps("task", "t1", "-> pending", *RUN)
        log.steps("workstream", "ws", "executing succeed validating", "validating validation_passed completed")
        assert set(log.kinds()) == {"alive_in_ended"}

    def test_a_job_that_ends_before_its_workstream(self) -> None:
        log = begun().steps("task", "t1", "-> pending").steps("job", "job", "running succeed completed")
        assert set(log.kinds()) == {"alive_in_ended"}

    def test_a_task_that_goes_on_in_a_cancelled_workstream(self) -> None:
        log = Log().steps("workstream", "ws", "-> planned", "planned tasks_created ready")
        log.steps("task", "t1", "-> pending").steps("workstream", "ws", "ready cancel cancelled")
        log.steps("task", "t1", "pending enqueue queued")
        assert set(log.kinds()) == {"alive_in_ended"}

    def test_a_task_created_in_an_ended_workstream(self) -> None:
        log = Log().steps("workstream", "ws", "-> planned", "planned cancel cancelled")
        assert set(log.steps("task", "t1", "-> pending").kinds()) == {"alive_in_ended"}

    @pytest.mark.parametrize(
        ("step", "assigned", "kind"),
        [
            ("idle assign busy", 3, "over_capacity"),
            ("idle assign busy", 0, "wrong_assignment"),
            ("idle shut_down shutdown", 0, None),
            ("idle assign busy", 2, None),
        ],
    )
    def test_what_a_worker_runs(self, step: str, assigned: int, kind: str | None) -> None:
        log = Log().add("worker", "w", "-> initializing", metadata={"capacity": 2})
        log.steps("worker", "w", "initializing register idle").add("worker", "w", step, metadata={"assigned": assigned})
        assert log.kinds() == ([kind] if kind else [])

    def test_an_idle_worker_that_runs_something(self) -> None:
        log = Log().add("worker", "w", "-> initializing", metadata={"capacity": 2})
        log.add("worker", "w", "initializing register idle", metadata={"assigned": 1})
        assert log.kinds() == ["wrong_assignment"]

    def test_a_workstream_left_behind_its_tasks(self) -> None:
        log = begun().steps("task", "t1", "-> pending", *DONE)
        (finding,) = log.findings()
        assert (finding.kind, finding.severity, finding.line) == ("not_derived", "warning", None)
        assert "workstream ws: is executing, while its tasks allow: " in finding.text


class Streamed:
    """The lines of many transitions of one entity, made one at a time."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[bytes]:
        log = Log().steps("breaker", "b", "-> closed", "closed succeed closed")
        yield log.lines()[0]
        entry = log.entries[1]
        for number in range(2, self.count):
            yield msgspec.json.encode(entry | {"seq": number, "entity_seq": number}) + b"\n"


def probing() -> Log:
    """A log in which one task probes a tool, and another is parked at it."""
    log = Log().add("job", "job", "-> submitted").add("workstream", "ws", "-> planned")
    for name in "ab":
        log.add("task", name, "-> pending").add("task", name, "pending enqueue queued")
        log.add("task", name, "queued trip circuit_open")
    log.add("breaker", "t", "-> closed")
    log.add("breaker", "t", "closed trip open", severity="error").add("breaker", "t", "open cool_down half_open")
    log.add("task", "a", "circuit_open cool_down half_open", metadata={"tool": "t"})
    return log


def test_a_tool_has_at_most_one_probe() -> None:
    again = {"metadata": {"tool": "t"}}
    log = probing().add("task", "b", "circuit_open cool_down half_open", **again)
    found = [finding for finding in log.findings() if finding.kind == "two_probes"]
    assert [finding.text for finding in found] == ["task b: probes tool t, while a does (it is half_open)"]

    back = probing().add("task", "a", "half_open cancel cancelled")
    back.add("task", "b", "circuit_open cool_down half_open", **again)
    assert "two_probes" not in back.kinds()

    beside = probing().add("task", "a", "half_open start running", metadata={"attempt": 1})
    beside.add("task", "b", "circuit_open cool_down half_open", metadata={"tool": "t", "while_waits": "a"})
    assert "two_probes" not in beside.kinds()
    beside.add("task", "a", "running fail failed").add("task", "b", "half_open start running")
    other = probing().add("task", "b", "circuit_open cool_down half_open", metadata={"tool": "t", "while_waits": "c"})
    assert "two_probes" in other.kinds()

    tripped = probing().add("breaker", "t", "half_open trip open", severity="error")
    tripped.add("breaker", "t", "open cool_down half_open")
    tripped.add("task", "b", "circuit_open cool_down half_open", **again)
    assert "two_probes" not in tripped.kinds()


def test_memory_does_not_grow_with_the_lines() -> None:
    def peak(run: Callable[[], list[AuditFinding]]) -> int:
        tracemalloc.start()
        try:
            assert run() == []
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    few, many = (peak(lambda n=n: audit_lines(Streamed(n))) for n in (200, 4_000))
    assert many < few + 20_000


class TestLogsOfNodes:
    """A log of one node of several: its numbers are above `EPOCH`, and transitions of other nodes are in their logs."""

    @staticmethod
    def numbered(log: Log, *parts: tuple[int, int]) -> list[list[dict[str, Any]]]:
        """The lines of a log in parts, each (its epoch, how many lines), with the numbers of their epochs."""
        told, begin = [], 0
        for epoch, count in parts:
            lines = log.entries[begin : begin + count]
            told.append([{**line, "seq": epoch * EPOCH + place} for place, line in enumerate(lines, start=1)])
            begin += count
        return told

    def test_what_another_node_began_is_a_part_and_no_error(self) -> None:
        first, second = self.numbered(completed(), (1, 8), (2, 100))
        assert audit(first) == []
        (part,) = audit(second)
        assert (part.severity, part.kind) == ("warning", "part")
        assert part.text.startswith("another node ran job job before, and that node's log has the earlier lines")

    def test_what_comes_back_after_another_node_ran_it_goes_on_as_a_part(self) -> None:
        here, _, again = self.numbered(completed(), (1, 8), (2, 2), (3, 100))
        assert [one.kind for one in audit([*here, *again])] == ["part"]
        back = [{**line, "seq": EPOCH + place} for place, line in enumerate([*here, *again], start=1)]
        kinds = {one.kind for one in audit(back)}  # with the numbers of one epoch it is a hole in one log
        assert "gap" in kinds
        assert "part" not in kinds

    def test_all_logs_together_are_held_whole(self) -> None:
        first, second, third = self.numbered(completed(), (1, 8), (2, 2), (3, 100))
        logs = {name: _lines(part) for name, part in (("b", second), ("c", third), ("a", first))}
        assert audit_logs(logs) == []
        lost = {**logs, "c": logs["c"][1:]}
        assert {one.kind for one in audit_logs(lost)} >= {"starts_late"}
        wrong = [*second[:-1], {**second[-1], "to_state": "skipped"}]
        found = audit_logs({**logs, "b": _lines(wrong)})
        assert found[0].text.startswith("b: task t1: ")
        assert found[0].line == 2

    @pytest.mark.parametrize("kept", range(14))
    def test_the_last_lines_of_a_node_that_was_killed_may_be_missing(self, kept: int) -> None:
        first, second = self.numbered(of_three(), (1, 13), (2, 100))  # the first of its tasks has ended
        found = audit_logs({"a": _lines(first[:kept]), "b": _lines(second)})
        assert [(one.severity, one.kind) for one in found] == [("warning", "part")] * (kept < 13)
        assert all("start that node again: it adds the missing lines" in one.text for one in found)
        if kept in range(9, 13):  # no number shows it
            assert {one.severity for one in audit([*first[:kept], *second])} == {"error"}  # of a journal it is wrong

    def test_what_ran_elsewhere_in_between_is_not_missed_in_the_log_of_one_node(self) -> None:
        here, _, again = self.numbered(of_three(), (1, 9), (2, 4), (3, 100))
        (part,) = audit_lines(_lines([*here, *again]))
        assert part.kind == "part"
        assert part.text.endswith("Name that log too, to check all lines")

    def test_a_file_that_is_no_log_is_told_by_its_name_and_the_others_are_read(self) -> None:
        first, second = self.numbered(completed(), (1, 8), (2, 100))
        found = audit_logs({"a": _lines(first), "x": [b"x\n"] * 9, "b": _lines(second)})
        assert [one.kind for one in found] == ["damaged"] * 5 + ["no_log"]
        assert all(one.text.startswith("x: ") for one in found)

    def test_in_the_log_of_a_journal_of_one_runtime_it_stays_an_error(self) -> None:
        late = [{**line, "seq": place} for place, line in enumerate(completed().entries[8:], start=1)]
        assert "not_created" in {one.kind for one in audit(late)}


class TestLogsOfDocument001:
    """Lines with exactly the eight fields of the document's event schema, as other programs write them."""

    TASK = ("pending scheduler_assigned queued", "queued worker_started running",
            "running execution_completed validating", "validating validation_passed completed")  # fmt: skip
    STREAM = ("planned all_tasks_created ready", "ready first_task_started executing",
              "executing all_tasks_completed validating")  # fmt: skip

    def entries(self, kind: str, entity_id: str, *steps: str, **fields: Any) -> list[dict[str, Any]]:
        told: list[dict[str, Any]] = []
        for second, (source, trigger, target) in enumerate(step.split() for step in steps):
            told.append(
                {
                    "timestamp": f"2024-01-15T10:30:{second:02}.000Z", "event_type": event_type(kind),
                    "severity": "info", "entity_id": entity_id, "from_state": source, "to_state": target,
                    "trigger": trigger, "metadata": {"retry_count": 0},
                }
                | fields
            )  # fmt: skip
        return told

    def found(self, entries: list[dict[str, Any]]) -> list[AuditFinding]:
        found = audit_lines(_lines(entries))
        assert [(one.kind, one.text) for one in audit(entries)] == [(one.kind, one.text) for one in found]
        return found

    def test_all_three_kinds_are_consistent(self) -> None:
        worker = ("initializing registration_complete idle", "idle task_assigned busy", "busy task_completed idle")
        entries = self.entries("task", "t", *self.TASK) + self.entries("workstream", "w", *self.STREAM)
        entries += self.entries("worker", "worker-001", *worker)
        entries.sort(key=lambda entry: str(entry["timestamp"]))
        assert self.found(entries) == []

    def test_each_line_is_held_against_the_document_s_tables(self) -> None:
        (one,) = self.found(self.entries("task", "t", *self.TASK[:2], "running validation_passed completed"))
        assert (one.severity, one.kind, one.line, one.seq) == ("error", "unknown_transition", 3, None)
        (one,) = self.found(self.entries("task", "t", self.TASK[0], *self.TASK[2:]))
        assert (one.severity, one.kind, one.line) == ("error", "does_not_follow", 2)
        again = self.entries("task", "t", *self.TASK, "completed scheduler_assigned queued")
        assert [one.kind for one in self.found(again)] == ["after_end"]

    def test_time_severity_and_schema_are_looked_at(self) -> None:
        entries = self.entries("task", "t", *self.TASK)
        entries[2]["timestamp"], entries[3]["severity"] = "2024-01-15T10:29:00.000Z", "error"
        assert [one.kind for one in self.found(entries)] == ["time_backwards", "wrong_severity"]
        entries = self.entries("task", "t", *self.TASK)
        entries[0]["timestamp"] = "2024-01-15"
        assert "timestamp" in self.found(entries[:1])[0].text
        entries = self.entries("task", "t", *self.TASK)
        entries[1]["task"] = "t"
        assert [(one.kind, one.line) for one in self.found(entries)] == [("unknown_key", 2)]
        del entries[0]["trigger"]  # the log is then none of that document
        assert {one.kind for one in self.found(entries)} == {"bad_schema"}

    def test_a_log_that_begins_in_the_middle_is_told_of(self) -> None:
        (one,) = self.found(self.entries("task", "t", *self.TASK[1:]))
        assert (one.severity, one.kind, one.line) == ("warning", "starts_late", 1)

    def test_its_lines_have_no_numbers_to_be_taken_together_with_others(self) -> None:
        alone = _lines(self.entries("task", "t", *self.TASK))
        (one,) = audit_logs({"a": alone, "b": _lines(completed().entries)})
        assert (one.kind, one.text[:3]) == ("no_log", "a: ")


def _lines(entries: list[dict[str, Any]]) -> list[bytes]:
    return [msgspec.json.encode(entry) + b"\n" for entry in entries]
