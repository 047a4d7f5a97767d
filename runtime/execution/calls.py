"""The calls of one runtime: started on engines for actors, with reports of their ends.

Rules
-----
- An actor says *what* runs (the body, condition, check or hook of an entity); this module finds out how: the function
  by its name, the command with its folder, environment and output file, the engine.
- A call that cannot be started (its function is missing, its engine is closed) is reported as an outcome like any
  other, in its own input: an actor sees no difference.
- A call that cannot be started now, because descriptors, processes, threads or memory are short, is retried after
  growing pauses, in the original order (`shortages.py`).
- A hook without its function or secret is not used up: it waits in the outbox until a program that has them starts. A
  condition, check or cancel hook without its function is kept, too, and fails only after its task's
  `unroutable_timeout`.
- A step that runs on a worker is called as a body is; where its function is not at hand, it is found by its import path
  (`engines/step_call.py`). Its report goes to the body that waits (`flows/step_runs.py`), its end to the kernel.
- Commands get values by environment and file only, never in the command line. A command gets
  `CALLBOARD_JOB`, `CALLBOARD_TASK`, `CALLBOARD_ATTEMPT`, `CALLBOARD_ARGS` (JSON) and, if it has dependencies,
  `CALLBOARD_RESULTS`: the path of a JSON file with their results by name.
- A command's result, for its dependents, is its exit code and the end of its output.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec

from ...actors.kernel.transaction import RunHook, StartCall, folder_of
from ...actors.messages.errors import WORKER_LOST
from ...actors.messages.inputs import CallEnded
from ...actors.records.task import TaskRecord
from ...actors.spec.limits import UNROUTABLE_TIMEOUT
from ...actors.spec.model import OF_PROCESSES, ON_CLUSTER, Check, Condition, Hook, Task, Workstream
from ...actors.tasks.attempts import STOP_MARGIN
from ...actors.tasks.task import spec_folder_of
from ...actors.times import seconds
from ...actors.user_code import contained, text_of
from ..calling import ErrorInfo, Outcome
from ..dispatch.timers import Timer, Timers
from ..engines.command.shell import hides_failures
from ..engines.context import TaskContext, connection_of
from ..engines.contract import Call, CommandCall, Engine, ProcessCall
from ..engines.receiving import ReceiveBody
from ..engines.shortage import Pauses, is_shortage
from ..functions.import_paths import source_of
from ..functions.registry import Bodies, BodyNotFound, NoPath, kind_of, located
from ..functions.signatures import takes_context
from ..loaded_modules import imported
from ..processes.os_processes import ASKED_BY
from ..text.secrets import Mask, SecretMissing, Secrets
from .approval_waiters import ApprovalWaiters
from .checks import importing, looked_at, title_of_import
from .orphans import UNASKED
from .outputs import Outputs
from .results import OutcomeReporter, not_started, why_not_started

if TYPE_CHECKING:
    from ...actors.jobs.workstream import WorkstreamActor
    from ...actors.kernel.kernel import Kernel
    from ...actors.messages.inputs import Message
    from ...actors.tasks.task import TaskActor
    from ..engines.child_job import ChildJobRequests
    from ..flows.flows import Flows
    from ..observation.live import LiveTasks

Part = Task | Check | Condition | Hook
CHECK_GRACE = 5.0
"""Seconds between the polite stop of a check, condition or hook, and its kill."""


class CallRunner(OutcomeReporter):
    """Starts and stops calls on the engines, and reports their ends as inputs."""

    def __init__(
        self,
        kernel: Kernel,
        engines: Mapping[str, Engine],
        bodies: Bodies,
        *,
        outputs: Outputs,
        tell: Callable[[Message], None],
        notice: Callable[..., None],
        timers: Timers,
        marks: Mapping[str, str],
        secrets: Secrets,
        children: ChildJobRequests,
        flows: Flows,
        live: LiveTasks,
        durable: bool = False,
    ) -> None:
        super().__init__(kernel, tell, notice, timers, flows, live=live)
        self.engines = engines
        self._bodies = bodies
        self.outputs = outputs
        self._secrets = secrets
        self._children = children
        self.approvals = ApprovalWaiters(
            tell, bodies, flows, durable=durable, folder_of=partial(spec_folder_of, kernel)
        )
        self._marks = marks
        self._told_of_shell = False
        self._functions: dict[str, Callable[..., Any]] = {}
        self._delayed: deque[StartCall | RunHook] = deque()  # calls that could not be started yet, in order
        self._again: Timer | None = None
        self._pauses = Pauses()
        self.kept: dict[int, tuple[StartCall, BodyNotFound]] = {}  # questions whose function is missing
        flows.sleeping.begin_again = self.begin_again
        self.unasked: set[int] = set()  # calls that no entity asked for: the kernel does not know them

    # -- starting ------------------------------------------------------------------------------------------------------

    def start(self, effect: StartCall) -> None:
        """Start a call that an entity requested. If the entity does not need it any more, report the call as "gone"."""
        entity: Any = self._kernel.entities.get(effect.key)  # a task, or a workstream
        is_step = effect.kind == "step"
        if entity is None or not (self._kernel.is_step(effect.token) if is_step else entity.wants(effect.token)):
            self._flows.forget(effect.token)  # it may have ended while its history was read
            self._tell(CallEnded(effect.token, "gone"))
            return
        try:
            if is_step:
                self._start_step(entity, effect)
            elif effect.kind == "body":
                if entity.record.flow and not self._flows.has(effect.token):
                    self._flows.prepare(entity, effect.token, partial(self.start, effect))
                    return
                self._kernel.heard(effect.token)
                self._start_body(entity, effect.token)
            else:
                self._ask(entity, effect)
        except BaseException as raised:  # a user's function object may run code of its own when inspected
            why = contained(raised)
            if is_shortage(why):
                self._delay(effect, why)
            elif is_step:
                self._report_step(Outcome(token=effect.token, status="failed", error=why_not_started(why)))
            else:
                self._flows.forget(effect.token)
                self._tell(not_started(effect.token, why))

    def begin_again(self, token: int) -> None:
        """Run the body of a sleeping flow again, after its history was read: its attempt goes on."""
        flows, task = self._flows, self._flows.task_of(token)
        if task is None:
            flows.forget(token)
            flows.sleeping.forget(token)
        elif not flows.has(token):
            flows.prepare(task, token, partial(self.begin_again, token))
        elif not flows.sleeping.wake(token):
            flows.forget(token)
        else:
            try:
                self._start_body(task, token)
            except BaseException as raised:
                flows.ended(token, completed=False)
                self._tell(not_started(token, contained(raised)))

    def _delay(self, effect: StartCall | RunHook, error: Exception) -> None:
        """Retry a start after a pause, after the starts that wait already."""
        self.shortages.began(effect.token, error)
        self._delayed.append(effect)
        if self._again is None:
            due = self._kernel.port.monotonic() + self._pauses.next()
            self._again = self._timers.arm(due, self._start_delayed)

    def _start_delayed(self) -> None:
        self._again = None
        for _ in range(len(self._delayed)):
            effect = self._delayed.popleft()
            if isinstance(effect, StartCall):
                self.start(effect)
            else:
                self.hook(effect)
            if self._delayed and self._delayed[-1] is effect:  # `start` has put it to the end of the queue
                self._delayed.rotate(1)
                return
            self.shortages.over(effect.token)
        self._pauses.over()

    def _start_body(self, task: TaskActor, token: int) -> None:
        spec = task.spec
        engine = self.engines[task.engine]
        grace = task.limits.kill_grace
        if task.engine == ON_CLUSTER:
            self._start_on_cluster(engine, task, token)
            return
        if spec.command is not None:
            path = self.outputs.place(task)
            env = {**spec.env, **self._facts(task)}
            command = self._command(task.stream.spec, spec, spec, path=path, env=env)
            command = msgspec.structs.replace(
                command, expected_exit_codes=spec.expected_exit_codes, output_limit=spec.max_output
            )
            self._run(engine, Call(token=token, command=command, grace=grace, mask=command.mask), self._command_ended)
            return
        func: Callable[..., Any]
        if spec.receive is not None:
            func = ReceiveBody(spec.receive, spec.timeout)
        else:
            run: Any = spec.run  # a name by now
            func = self._functions.get(run) or self._function(run)
        if task.engine == "process":
            self._start_in_process(engine, task, func, token)
            return
        context = self.context_of(task, token, self.approvals) if takes_context(func) else None
        mask = self._secrets_of(task.stream.spec, spec)[1] if context is None else connection_of(context).mask
        call = Call(
            token=token, func=func, context=context, bound=_bound(task), grace=grace, mask=mask,
            about=f"the body of {task.record.id}", flows=self._flows,
        )  # fmt: skip
        self._run(engine, call, self._report_function)

    def _start_in_process(self, engine: Engine, task: TaskActor, func: Callable[..., Any], token: int) -> None:
        """Run the body in the process of its worker. Raises BodyNotFound if that process cannot find the function."""
        if (away := self._away(task, token, self._path(task.spec.run, func, "a worker process"))) is not None:
            self._run_away(engine, task, away, func)

    def _start_on_cluster(self, engine: Engine, task: TaskActor, token: int) -> None:
        """Run the body or command on its Ray worker. Raises BodyNotFound if that worker cannot find the function."""
        spec, stream = task.spec, task.stream.spec
        if spec.command is None:
            run: Any = spec.run  # a name by now
            func = self._functions.get(run) or self._function(run)
            if (away := self._away(task, token, self._path(run, func, "a worker on Ray"))) is not None:
                process, mask = away
                there = msgspec.structs.replace(
                    process, on_loop=kind_of(func) == "loop", text=source_of(process.function)
                )
                self._run_away(engine, task, (there, mask), func)
            return
        if (away := self._away(task, token, "")) is None:
            return
        process, mask = away
        if spec.depends_on or spec.after:
            process = msgspec.structs.replace(process, results=msgspec.json.encode(_results(task)))
        env = {**spec.env, **self._facts(task, results=False)}
        command = self._command(stream, spec, spec, path=None, env=env)
        command = msgspec.structs.replace(command, expected_exit_codes=spec.expected_exit_codes)
        call = Call(token=token, command=command, process=process, grace=task.limits.kill_grace, mask=mask)
        self._run(engine, call, self._command_ended)

    def _away(self, task: TaskActor, token: int, function: str) -> tuple[ProcessCall, Mask | None] | None:
        """Describe the other process that runs an attempt. If its worker has ended, report that, and return None."""
        taker = self._kernel.workers.get(self._kernel.slots[token].worker)
        if taker is None:
            gone = "its worker had ended before it started"
            self._tell(CallEnded(token, "lost", error_type=WORKER_LOST, error=gone, category="transient"))
            return None
        worker = taker.record
        secrets, mask = self._secrets_of(task.stream.spec, task.spec)
        process = ProcessCall(
            function=function, worker=worker.name, incarnation=worker.run,
            output_path=self.outputs.place(task), output_root=self.outputs.root, output_limit=task.spec.max_output,
            recycle_after=worker.recycle_after, secrets=secrets,
        )  # fmt: skip
        return process, mask

    def _run_away(
        self, engine: Engine, task: TaskActor, away: tuple[ProcessCall, Mask | None], func: Callable[..., Any]
    ) -> None:
        token, (process, mask) = task.record.token, away
        context = self.context_of(task, token, self.approvals, results=takes_context(func))  # steps need it, too
        process = msgspec.structs.replace(process, flow=self._flows.facts_of(task, token))
        call = Call(
            token=token, process=process, context=context, bound=_bound(task), grace=task.limits.kill_grace, mask=mask
        )  # fmt: skip
        self._run(engine, call, self._process_ended)

    def _start_step(self, task: TaskActor, effect: StartCall) -> None:
        """Run the function of a step of the task's body on the worker that has a slot for it. Raises BodyNotFound."""
        from ..engines import step_call  # noqa: PLC0415 - few runtimes run steps on workers

        token, order = effect.token, self._kernel.calls[effect.token]
        step = self._flows.step_runs.begin(token, order.body, order.index)
        taker = self._kernel.workers.get(order.worker)
        if step is None:
            self._tell(CallEnded(token, "gone"))
            return
        self._kernel.heard(token)
        if taker is None:
            gone = ErrorInfo(type=WORKER_LOST, message="it had ended before the step started", category="transient")
            self._report_step(Outcome(token=token, status="lost", error=gone))
            return
        worker, request, row = taker.record, step.request, step.row
        mask, bound = self._secrets_of(task.stream.spec, task.spec)[1], _bound(task)
        grace, about = task.limits.kill_grace, f"step {row.label!r} of {task.record.id}"
        elsewhere = worker.engine in OF_PROCESSES
        func: Callable[[], Any] | None = step.func
        args: dict[str, Any] = {}
        if request.path is not None and request.call is not None:
            text = source_of(request.path) if worker.engine == ON_CLUSTER else None
            args = step_call.order_of(request.path, row.label, request.call, text)
            if func is None and not elsewhere:
                func = step_call.local(args)
        if func is not None:
            how = step_call.call_on_loop if request.on_loop else step_call.call
            func = partial(how, func, row.label, mask)
        call = Call(token=token, kind="step", func=func, bound=bound, grace=grace, mask=mask, about=about)
        if elsewhere:
            process = ProcessCall(
                function=step_call.RUN_ON_LOOP if request.on_loop else step_call.RUN, worker=worker.name,
                incarnation=worker.run, recycle_after=worker.recycle_after, on_loop=request.on_loop,
            )  # fmt: skip
            context = TaskContext(
                task=task.record.name, token=token, attempt=task.record.attempt, job_id=task.record.job_id,
                workstream_id=task.record.workstream_id, args=args,
            )  # fmt: skip
            call = msgspec.structs.replace(call, process=process, context=context)
        self._run(self.engines[worker.engine], call, self._report_step)
        step.began()

    def _ask(self, entity: TaskActor | WorkstreamActor, effect: StartCall) -> None:
        """Start a condition, check or cancel hook, or keep it until its function is found.

        Until then its time limit does not run.
        """
        part = _part_of(entity, effect)
        try:
            if part.run is not None:
                self._function(part.run)
        except BodyNotFound as error:
            self._keep(entity, effect, error)
            return
        self._kernel.heard(effect.token)
        self._start_question(entity, effect, part)

    def _keep(self, entity: TaskActor | WorkstreamActor, effect: StartCall, error: BodyNotFound) -> None:
        token, record = effect.token, entity.record
        self.kept[token] = effect, error
        spec = entity.spec
        if isinstance(spec, Workstream):
            said = spec.defaults.unroutable_timeout
            limit = UNROUTABLE_TIMEOUT if said is None else seconds(said)
        else:
            limit = cast("TaskActor", entity).limits.unroutable_timeout
        self._limits[token] = self._timers.arm(self._kernel.port.monotonic() + limit, self._give_up, token)
        text = f"{record.id} waits, since its {effect.kind.replace('_', ' ')} cannot be found here: {error}"
        self._notice(
            "function_missing", "warning", text, kind=record.kind, entity_id=record.id, job_id=record.job_id
        )  # fmt: skip

    def _give_up(self, token: int) -> None:
        _, error = self.kept.pop(token)
        self._limits.pop(token, None)
        self._tell(not_started(token, error))

    def look_again(self) -> None:
        """Start the kept questions whose function can be found now."""
        for token, (effect, _) in list(self.kept.items()):
            entity = self._kernel.entities.get(effect.key)
            try:
                if entity is not None:
                    self._function(_part_of(cast("TaskActor | WorkstreamActor", entity), effect).run)
            except BodyNotFound:
                continue
            del self.kept[token]
            self._unlimit(token)
            self.start(effect)

    def _start_question(self, entity: TaskActor | WorkstreamActor, effect: StartCall, part: Part) -> None:
        """Start a condition, check or cancel hook of a task or workstream."""
        spec = entity.spec
        task = None if isinstance(spec, Workstream) else cast("TaskActor", entity)
        stream = cast("WorkstreamActor", entity) if task is None else task.stream
        own = None if task is None else task.spec
        problem = looked_at(part, stream.spec, own, entity.record) if isinstance(part, Check) else None
        if problem is not None:
            status = "failed" if problem else "ok"
            self._tell(CallEnded(effect.token, status, not problem, "check_failed", problem or None))
            return
        if part.run is not None:
            func = self._function(part.run)
            context = self._about(entity, effect) if takes_context(func) else None
            call = Call(
                token=effect.token, kind=cast("Any", effect.kind), func=func, context=context, grace=CHECK_GRACE,
                bound=_bound(entity), mask=self._secrets_of(stream.spec, None if task is None else task.spec)[1],
                about=f"a {effect.kind.replace('_', ' ')} of {entity.record.id}",
            )  # fmt: skip
            self._run(self.engines[kind_of(func)], call, self._question_ended)
            return
        env = {} if task is None else {**task.spec.env, **self._facts(task)}
        if effect.kind == "cancel_hook":
            env["CALLBOARD_EVENT"] = msgspec.json.encode(_cancel_of(entity)).decode()
        command = self._command(stream.spec, task.spec if task else None, part, path=None, env=env)
        if effect.kind != "cancel_hook":
            command.env[ASKED_BY] = str(entity.record.key)  # the call's token is not journaled
        kind = cast("Any", effect.kind)
        call = Call(token=effect.token, kind=kind, command=command, grace=CHECK_GRACE, mask=command.mask)
        ended = self._condition_ended if effect.kind == "condition" else self._question_ended
        self._run(self.engines["command"], call, ended)

    def hook(self, effect: RunHook) -> None:
        """Run a hook from the outbox. It gets the event as its argument, or as JSON in `CALLBOARD_EVENT`."""
        try:
            self._hook(effect)
        except (OSError, RuntimeError, MemoryError) as error:
            if not is_shortage(error):
                raise
            self._delay(effect, error)

    def _hook(self, effect: RunHook) -> None:
        row = effect.row
        hook = msgspec.json.decode(row.body, type=Hook)
        facts = msgspec.json.decode(row.context, type=dict[str, Any])
        ended = partial(self._hook_ended, row, hook)
        try:
            func = None if hook.run is None else self._function(located(hook.run, row.folder, program=False))
            secrets, mask = self._secrets.of(row.secrets) if row.secrets else ({}, None)
            if func is not None:
                context = TaskContext(
                    task=facts["name"], token=effect.token, job_id=facts["job_id"] or "", args=facts, secrets=secrets,
                    mask=mask, workstream_id=facts.get("workstream_id") or "", attempt=facts.get("attempt") or 1,
                )  # fmt: skip
                call = Call(
                    token=effect.token, kind="hook", func=func, context=context, bound=_bound_hook(facts),
                    grace=CHECK_GRACE, mask=mask, about=f"a hook of {facts['entity_id']}",
                )  # fmt: skip
                self._run(self.engines[kind_of(func)], call, ended)
            else:
                env = {**row.env, **secrets, "CALLBOARD_EVENT": bytes(row.context).decode(), **self._marks}
                command = CommandCall(**_words(hook), cwd=row.cwd, env=env, mask=mask)
                call = Call(token=effect.token, kind="hook", command=command, grace=CHECK_GRACE, mask=mask)
                self._run(self.engines["command"], call, ended)
        except (BodyNotFound, SecretMissing) as error:
            self._hook_waits(row, hook, str(error))
            self._tell(CallEnded(effect.token, "waits"))
        except BaseException as raised:
            why = contained(raised)
            if is_shortage(why):
                raise
            self._hook_failed(row, hook, text_of(why))
            self._tell(not_started(effect.token, why))
        else:
            self._limit_hook(effect.token, seconds(hook.timeout))

    def check(self, hook: Hook, name: str, ended: Callable[[Outcome], None]) -> int:
        """Run a check that no entity asked for, and call `ended` with its outcome. Returns its token, to stop it.

        Raises BodyNotFound, EngineClosed, OSError, ValueError and TypeError if it cannot be started.
        """
        token = self._kernel.number()

        def over(outcome: Outcome) -> None:
            self._where.pop(token, None)
            self._unlimit(token)
            self.shortages.over(token)
            self.unasked.discard(token)
            if token in self._late and outcome.status != "ok":
                text = f"it took longer than {seconds(hook.timeout):g} s and was stopped"
                error = ErrorInfo(type="timed_out", message=text)
                outcome = msgspec.structs.replace(outcome, status="failed", error=error)
            self._late.discard(token)
            ended(outcome)

        if hook.run is not None:
            func = hook.run if callable(hook.run) else self._function(hook.run)
            context = TaskContext(task=name, token=token) if takes_context(func) else None
            engine = kind_of(func)
            call = Call(
                token=token, kind="check", func=func, context=context, grace=CHECK_GRACE, about=f"a check of {name}"
            )
        else:
            engine, command = "command", CommandCall(**_words(hook), env={**self._marks, ASKED_BY: UNASKED})
            call = Call(token=token, kind="check", command=command, grace=CHECK_GRACE)
        self.unasked.add(token)
        try:
            self._run(self.engines[engine], call, over)
        except BaseException:
            self.unasked.discard(token)
            raise
        self._limit_hook(token, seconds(hook.timeout))
        return token

    def _limit_hook(self, token: int, limit: float) -> None:
        self._limit(token, limit, partial(self._time_out_hook, limit))

    def _limit(self, token: int, after: float, action: Callable[[int], object]) -> None:
        """Call `action(token)` after so many seconds, unless the call has ended by then."""
        if token in self._where:
            self._limits[token] = self._timers.arm(self._kernel.port.monotonic() + after, action, token)

    def _time_out_hook(self, limit: float, token: int) -> None:
        if token in self.shortages.waiting:  # the call has not been started yet
            self._limit_hook(token, limit)
            return
        self._late.add(token)
        self.stop(token)
        self._limit(token, CHECK_GRACE, partial(self.stop, force=True))

    def stop(self, token: int, *, force: bool = False) -> None:
        """Stop a call. If it is not running, it has reported its end, or will not be started."""
        self._kernel.told(token)
        self._flows.stopping(token)
        if self.kept.pop(token, None) is not None:
            self._unlimit(token)
            self._tell(CallEnded(token, "cancelled", error_type="cancelled", error="its function was not found"))
            return
        if self._flows.sleeping.stop(token, force=force):
            return
        engine = self._where.get(token)
        if engine is not None:
            engine.stop(token, force=force)
            if not force and token not in self._limits and self._is_step(token):
                self._limit(token, self._grace_of_step(token), partial(self.stop, force=True))
        elif any(effect.token == token for effect in self._delayed):
            self._delayed = deque(effect for effect in self._delayed if effect.token != token)
            self.shortages.over(token)
            error = ErrorInfo(type="cancelled", message="cancelled before it started")
            if self._kernel.is_step(token):
                self._flows.step_runs.ended(Outcome(token=token, status="cancelled", error=error))
            self._tell(CallEnded(token, "cancelled", None, error.type, error.message))

    def _is_step(self, token: int) -> bool:
        """Whether that is the call of a step, whether or not its body still waits for it."""
        call = self._kernel.calls.get(token)
        return call is not None and call.kind == "step"

    def _grace_of_step(self, token: int) -> float:
        """Seconds between the polite stop of a step and its kill: a little more than its engine takes for that."""
        task = self._flows.task_of(token)
        return CHECK_GRACE if task is None else task.limits.kill_grace + STOP_MARGIN

    def abandon(self) -> None:
        """Stop all calls at once. Nothing waits for how they end."""
        self._delayed.clear()
        for token, engine in list(self._where.items()):
            engine.stop(token, force=True)

    def only_waits(self, token: int) -> bool:
        """Whether all that a body does is to wait durably for a time, a message or a decision."""
        return self._flows.waits(token)

    def tail(self, token: int) -> str:
        """Return the last line that a running command has written."""
        engine = self._where.get(token)
        return "" if engine is None else engine.tail(token)

    def _run(self, engine: Engine, call: Call, ended: Callable[[Outcome], None]) -> None:
        self._where[call.token] = engine
        beat = self._report_beat
        if call.mask is not None:
            beat = partial(self._beat_masked, call.mask)
            ended = partial(self._ended_masked, call, ended)
        try:
            engine.start(call, ended, beat)
        except BaseException:
            del self._where[call.token]
            raise

    def _function(self, name: Any) -> Callable[..., Any]:
        func = self._functions.get(name)
        if func is None:
            func = self._bodies.callable_body(name)
            if ":" in name:
                self._functions[name] = func
        return func

    def _path(self, name: Any, func: Callable[..., Any], finder: str) -> str:
        """Return the import path of a task's function. Raises BodyNotFound if it has none."""
        try:
            return self._bodies.path_for(name, func)
        except NoPath as error:
            raise BodyNotFound(f"{finder} cannot find {name!r}: {error}") from error

    # -- what a call is given
    # -------------------------------------------------------------------------------------------

    def context_of(
        self, task: TaskActor, token: int, approvals: ApprovalWaiters | None = None, *, results: bool = True
    ) -> TaskContext:
        """Make the context of a task's present attempt for its function. results: whether with its dependencies'."""
        record = task.record
        secrets, mask = self._secrets_of(task.stream.spec, task.spec)
        return TaskContext(
            task=record.name, token=token, attempt=record.attempt, job_id=record.job_id,
            workstream_id=record.workstream_id, results=_results(task) if results else {},
            args=task.spec.args if record.anew is None else record.args,
            details=record.details, secrets=secrets, mask=mask,
            saved=record.checkpoint,
            child_jobs=self._children, approvals=approvals, flows=None if approvals is None else self._flows,
        )  # fmt: skip

    def _about(self, entity: TaskActor | WorkstreamActor, effect: StartCall) -> TaskContext | None:
        """Make the context for the function of a question or cancel hook.

        A cancel hook's `args` say why it was cancelled.
        """
        spec = entity.spec
        task = None if isinstance(spec, Workstream) else cast("TaskActor", entity)
        context = None if task is None else self.context_of(task, effect.token)
        if effect.kind != "cancel_hook":
            return context
        if context is None:
            secrets, mask = self._secrets_of(cast("Workstream", spec), None)
            context = TaskContext(
                task=entity.record.name, token=effect.token, job_id=entity.record.job_id,
                workstream_id=entity.record.id, secrets=secrets, mask=mask,
            )  # fmt: skip
        context.args = _cancel_of(entity)
        return context

    def _secrets_of(self, stream: Workstream, task: Task | None) -> tuple[dict[str, str], Mask | None]:
        """Return the secrets of a task or workstream, and the mask that hides them. Raises SecretMissing."""
        names = stream.secrets if task is None or not task.secrets else [*stream.secrets, *task.secrets]
        return self._secrets.of(names) if names else ({}, None)

    def _facts(self, task: TaskActor, *, results: bool = True) -> dict[str, str]:
        """Return the variables of a task's command. results: whether to write a file with its dependencies' results."""
        record, spec = task.record, task.spec
        facts = {
            "CALLBOARD_JOB": record.job_id, "CALLBOARD_TASK": record.name, "CALLBOARD_ATTEMPT": str(record.attempt),
        }  # fmt: skip
        if spec.args:
            facts["CALLBOARD_ARGS"] = msgspec.json.encode(spec.args).decode()
        if results and (spec.depends_on or spec.after):
            facts["CALLBOARD_RESULTS"] = str(self.outputs.write_results(task, _results(task)).absolute())
        return facts

    def _command(
        self, stream: Workstream, task: Task | None, part: Part, *, path: Path | None, env: dict[str, str]
    ) -> CommandCall:
        words = _words(part)
        if not self._told_of_shell and "shell" in words and hides_failures(words["shell"]):
            self._told_of_shell = True
            text = (
                "this system has no bash: of a pipeline in a `shell` command only the exit code of its last part counts"
            )
            self._notice("no_pipefail", "warning", text)
        secrets, mask = self._secrets_of(stream, task)
        env = {**stream.env, **env, **secrets, **self._marks}
        return CommandCall(
            **words, cwd=folder_of(stream, task), env=env, output_path=path, output_root=self.outputs.root, mask=mask
        )


def _part_of(entity: TaskActor | WorkstreamActor, effect: StartCall) -> Part:
    """Find the condition, check or cancel hook that is asked for."""
    spec = entity.spec
    part: Part | None
    if effect.kind == "cancel_hook":
        part = spec.cancel_hooks[effect.index]
    else:
        part = cast("Task", spec).condition if effect.kind == "condition" else spec.checks[effect.index]
    assert part is not None  # noqa: S101 - the actor asked for it
    return part


def _words(part: Part) -> dict[str, Any]:
    """Return the command of a part of a specification, in the fields of `CommandCall`."""
    if isinstance(part, Check) and (argv := importing(part)) is not None:
        return {"argv": argv, "called": title_of_import(part)}
    if isinstance(part.command, str):
        return {"shell": part.command}
    return {"argv": list(part.command or ())}


def _cancel_of(entity: TaskActor | WorkstreamActor) -> dict[str, Any]:
    """Describe a cancel for its hooks, as the events for ended entities are described."""
    record = entity.record
    return {
        "event": "cancel", "entity_id": record.id, "name": record.name, "state": str(record.state),
        "reason": record.reason, "job_id": record.job_id,
    }  # fmt: skip


def _results(task: TaskActor) -> dict[str, Any]:
    """Return the results of the task's dependencies, by their names; None for one without a result."""
    spec = task.spec
    if not spec.depends_on and not spec.after:
        return {}
    stream = cast("WorkstreamActor", task.stream)
    results: dict[str, Any] = {}
    for name in (*spec.depends_on, *spec.after):
        raw = stream.tasks[stream.graph.names[name]].record.raw_result
        results[name] = None if raw is None else msgspec.json.decode(raw)
    return results


def _bound(entity: TaskActor | WorkstreamActor) -> dict[str, Any] | None:
    """Return the fields for log lines inside a function; None if structlog is not in use."""
    if imported("structlog.contextvars") is None:
        return None
    record = entity.record
    if not isinstance(record, TaskRecord):
        return {"workstream_id": record.id}
    return {"workstream_id": record.workstream_id, "task": record.name, "attempt": record.attempt}


def _bound_hook(told: dict[str, Any]) -> dict[str, Any]:
    bound = {"workstream_id": told.get("workstream_id"), "attempt": told.get("attempt")}
    if "/" in told["entity_id"]:
        bound["task"] = told["name"]
    return {name: value for name, value in bound.items() if value is not None}
