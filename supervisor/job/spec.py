"""JobSpec: a job as its schedule file describes it, defaults and bounds in one place."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from copy import copy
from datetime import timedelta
from functools import cached_property
from typing import Annotated, Any, Self

from pydantic import (
    BeforeValidator,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from supervisor.job.fields import (
    NAME_PATTERN,
    Count,
    DueBy,
    ItemFault,
    Labels,
    LogUrl,
    MessagePriority,
    Name,
    QueueName,
    check_needed,
    conflict,
    inside,
    repeated,
)
from supervisor.job.policies import (
    AfterMatch,
    AfterPolicy,
    Catchup,
    OnCrash,
    OnLeaseLost,
    OnMaxSkips,
    OnStepFailure,
    OverlapPolicy,
    RunLog,
)
from supervisor.job.run import RunRules
from supervisor.job.step_spec import StepSpec
from supervisor.job.templates import SERIAL_LOCK, lock_key, placeholders
from supervisor.job.when import KINDS, When
from supervisor.lists.keys import FeatureKeys
from supervisor.settings import DEFAULT_PREFIX
from supervisor.times import AtLeastASecond, Duration, to_ms

#: The most jobs that a ledger takes; it is made for ten thousand.
MOST_JOBS = 100_000

#: A process caches what it has derived of this many jobs, those that it came across last: some 4 KB
#: of each. What is dropped is derived again.
KEPT_AT_HAND = 20_000

#: The keys in which jobs of one kind differ, and how JSON has their values.
VARYING_KEYS = {"name": str, "args": list, "kwargs": dict, "labels": dict, "description": str}

#: Keys that do something only with a feature, which offers them in `lists.keys.OFFERED`.
OF_FEATURES = ("after", "after_match", "after_policy", "log", "entry")

SERIAL_PREFIX = "serial."

#: Up to this many of the jobs that a job follows are named in one line.
MOST_NAMED = 3

AFTER_ITSELF = "a job cannot follow itself"

#: YAML 1.1 and people take these for booleans; as the name of a queue they are a mistake.
BOOLEAN_WORDS = frozenset({"true", "false", "yes", "no", "on", "off"})


class JobSpec(FeatureKeys, When):
    """One job: what to run, when, and the policies."""

    name: Name
    """The key under ``jobs:``."""
    task: Annotated[str, Field(min_length=1, max_length=255)] | None = None
    """Name of the Celery task, as the worker registers it. A job has `task` or `steps`."""
    steps: tuple[StepSpec, ...] = ()
    """Several tasks in order of priority, in place of `task`."""
    params: dict[str, Any] = {}  # noqa: RUF012
    """Values for the steps of a run; what a step returns is added for later steps."""
    on_step_failure: OnStepFailure = OnStepFailure.STOP
    """stop: a failed step ends the run; continue: the others still run. The run has failed."""
    args: tuple[Any, ...] = ()
    """Positional arguments of the task."""
    kwargs: dict[str, Any] = {}  # noqa: RUF012 - pydantic copies it
    """Keyword arguments of the task."""
    mask: Annotated[bool, Field(strict=True)] | tuple[str, ...] = False
    """true: no argument is shown anywhere; names: not these keyword arguments and params."""
    after: Annotated[
        tuple[Name, ...],
        BeforeValidator(
            lambda after: (after,) if isinstance(after, str) else after,
            json_schema_input_type=Name | tuple[Name, ...],
        ),
    ] = ()
    """Names of jobs that this one follows: it runs when their runs have ended."""
    after_match: AfterMatch | None = None
    """same_time: theirs of the same nominal time; latest: any since this job's last run."""
    after_policy: AfterPolicy = AfterPolicy.SUCCESS
    """success: all of them succeeded; done: they ended in any way."""
    queue: Name | None = None
    """Queue the runs are sent to; without it the app's routes and default queue decide."""
    serial: Annotated[bool, Field(strict=True)] | QueueName = False
    """true: a queue of its own, worked one run at a time; a name: one shared with other jobs."""
    priority: MessagePriority | None = None
    """The priority of the job's messages in Celery: Redis gives out 0 first, RabbitMQ 9."""
    overlap: OverlapPolicy = OverlapPolicy.SKIP
    """What happens to a run that would overlap with the previous one."""
    key: Annotated[str, Field(min_length=1, max_length=500)] | None = None
    """Whose runs must not overlap: a text that jobs share, or a template such as "import:{url}"."""
    max_running: Annotated[Count, Field(ge=1)] | None = None
    """How many runs may be running at once; 1, and with `overlap: allow` any number."""
    max_consecutive_skips: Annotated[Count, Field(ge=1)] | None = None
    """After this many skipped runs in a row, `then` decides."""
    then: OnMaxSkips = OnMaxSkips.ALERT
    """What happens to a run that would be skipped after `max_consecutive_skips` others."""
    max_wait: Duration | None = None
    """How long a run may wait, for others that it follows and for the lock, until it is skipped."""
    max_waiting: Annotated[Count, Field(ge=1)] = 100
    """Bound of the waiting list of `overlap: queue_all`."""
    requeue_delay: AtLeastASecond = timedelta(minutes=1)
    """Time until a run of `overlap: requeue` is tried again."""
    max_requeues: Count = 10
    """How often a run is re-queued before it is skipped."""
    start_deadline: AtLeastASecond = timedelta(hours=1)
    """How long a queued run may wait for a worker before it expires."""
    lease_ttl: AtLeastASecond = timedelta(seconds=30)
    """How long the lock outlives the last sign of life of its worker."""
    on_lease_lost: OnLeaseLost = OnLeaseLost.ABORT
    """abort: LeaseLost is raised in a run that lost its lease; continue: the run continues."""
    stop_grace: Duration = timedelta(seconds=10)
    """How much time a run that is cancelled, replaced or aborted has to end."""
    soft_time_limit: AtLeastASecond | None = None
    """After this the task sees SoftTimeLimitExceeded."""
    time_limit: AtLeastASecond | None = None
    """After this the task's process is killed."""
    due_by: DueBy | None = None
    """By when a run has to have succeeded after each tick: the next "06:00" of its zone, or 45m."""
    max_duration: AtLeastASecond | None = None
    """An attempt that takes longer is reported, and continues; `time_limit` would end it."""
    min_duration: AtLeastASecond | None = None
    """A run that succeeds sooner after its start is reported: it may have done nothing."""
    max_retries: Count = 0
    """How often a failed attempt is retried."""
    retry_backoff: Duration = timedelta(seconds=10)
    """Wait before the first retry; doubled for each further one."""
    retry_backoff_max: Duration = timedelta(minutes=10)
    """Longest wait between retries."""
    on_crash: OnCrash = OnCrash.RERUN
    """What happens to a run whose worker died."""
    max_crashes: Annotated[Count, Field(ge=1)] = 3
    """A run whose worker died this often is not run again."""
    catchup: Catchup = Catchup.LATEST
    """Which ticks run after a time in which no beat could emit them."""
    catchup_window: Duration = timedelta(hours=1)
    """Ticks older than this are missed, not caught up."""
    history: Annotated[Count, Field(ge=1, le=10_000)] = 200
    """How many runs are kept, for at most seven days; counters include all runs."""
    run_at_start: Annotated[bool, Field(strict=True)] = False
    """One run more each time that the service starts, after a time without any beat."""
    paused: Annotated[bool, Field(strict=True)] = False
    """Ticks of a paused job are excluded; `supervisor pause` and `resume` override it."""
    log: RunLog = RunLog.REPORTED
    """reported: lines of current_run().log(), tracebacks; capture: also logging, prints; none."""
    log_url: LogUrl | None = None
    """Template of the address of a run's lines in the team's log store, with {run} and others."""
    description: Annotated[str, Field(max_length=1000)] = ""
    """A sentence for people who have to handle a failure."""
    labels: Labels = {}  # noqa: RUF012 - pydantic copies it
    """Labels by which to filter jobs, such as {tenant: acme}; runs do not get them."""
    entry: Annotated[str, Field(min_length=1, max_length=1000)] | None = None
    """The entry of RedBeat or `beat_schedule` that it replaces, if no job can have that name."""

    @field_validator("entry")
    @classmethod
    def _no_name_of_a_job(cls, entry: str | None) -> str | None:
        """So that no other job can have the entry for its name."""
        if entry is not None and re.fullmatch(NAME_PATTERN, entry):
            raise ValueError(f"a job can be called {entry!r}: give it that name, without 'entry'")
        return entry

    @field_validator("after")
    @classmethod
    def _others_once_each(cls, after: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        own = info.data.get("name")
        faults = [ItemFault((n,), AFTER_ITSELF) for n, name in enumerate(after) if name == own]
        faults += [
            ItemFault((n,), f"{after[n]!r} is there twice")
            for n in repeated(after)
            if after[n] != own
        ]
        if faults:
            raise inside(faults)
        return after

    @field_validator("serial")
    @classmethod
    def _no_word_for_a_boolean(cls, serial: bool | str) -> bool | str:
        if isinstance(serial, str) and serial.lower() in BOOLEAN_WORDS:
            raise ValueError(f"{serial!r} is no name for a queue; write true or false, unquoted")
        return serial

    @model_validator(mode="after")
    def _durations_in_order(self) -> Self:
        pairs = [("soft_time_limit", "time_limit"), ("min_duration", "max_duration")]
        if not self.steps:
            pairs += [("min_duration", "time_limit"), ("max_duration", "time_limit")]
        for key, longer in pairs:
            short, long = getattr(self, key), getattr(self, longer)
            if short is not None and long is not None and short >= long:
                raise conflict(f"{key!r} must be shorter than {longer!r}", key, longer)
        return self

    @model_validator(mode="after")
    def _keys_need_others(self) -> Self:
        if self.max_consecutive_skips is None:
            check_needed(self, "max_consecutive_skips", "then")
        if not self.after:
            check_needed(self, "after", "after_match", "after_policy")
        if not self.steps:
            check_needed(self, "steps", "params", "on_step_failure")
        if self.due_by is not None and not self.has_schedule:
            raise conflict("'due_by' needs a schedule: it says when after a tick", "due_by")
        return self

    @field_validator("key")
    @classmethod
    def _a_template(cls, key: str | None) -> str | None:
        if key is not None:
            placeholders(key)
        return key

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if self.serial and self.queue:
            raise conflict("'serial' names the queue; leave 'queue' out", "serial", "queue")
        if (self.task is None) == (not self.steps):
            raise conflict("give either 'task' or 'steps'", "task", "steps")
        if self.steps and (self.args or self.kwargs):
            text = "'args' and 'kwargs' are a task's; give steps their own, or 'params'"
            raise conflict(text, "args", "kwargs")
        return self

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        labels = [step.label for step in self.steps]
        faults = [
            ItemFault((number,), f"a second step {labels[number]!r}", "give one of them a 'name'")
            for number in repeated(labels)
        ]
        faults += [
            ItemFault((number,), f"{step.task!r} makes no name", "give the step a 'name'")
            for number, step in enumerate(self.steps)
            if not re.fullmatch(NAME_PATTERN, step.label)
        ]
        if faults:
            raise inside(faults)
        return self

    def has_label(self, label: str) -> bool:
        """`label`: ``tenant=acme``, or ``tenant`` for any value."""
        name, equals, value = label.partition("=")
        return name in self.labels and (not equals or self.labels[name] == value)

    @property
    def work(self) -> str:
        """For people: the task, or the steps in the order of their stages."""
        if self.task is not None:
            return self.task
        stages = sorted({step.priority for step in self.steps}, reverse=True)
        labels = [[s.label for s in self.steps if s.priority == stage] for stage in stages]
        return " > ".join(", ".join(stage) for stage in labels)

    @property
    def tasks(self) -> tuple[str, ...]:
        """Its task, or those of its steps."""
        if self.task is not None:
            return (self.task,)
        return tuple(dict.fromkeys(step.task for step in self.steps))

    @property
    def serial_queue(self) -> str | None:
        """Name of the dedicated queue of a serial job: ``serial.<name>``."""
        return SERIAL_PREFIX + self._serial_name if self.serial else None

    @property
    def _serial_name(self) -> str:
        return self.name if self.serial is True else str(self.serial)

    def kept_apart(self, prefix: str) -> Self:
        """The job with a serial queue of this ledger's own: ``serial.<prefix>.<name>``.

        The ledger with the default prefix has none in the names of its queues.
        """
        if not self.serial or prefix == DEFAULT_PREFIX:
            return self
        plain = re.sub("[^A-Za-z0-9]+", "-", prefix).strip("-")
        return self.model_copy(update={"serial": f"{plain}.{self._serial_name}"})

    @property
    def serial_lock(self) -> str:
        """The lock that a run takes when it begins; of a run of several steps, each of them."""
        return SERIAL_LOCK + self.serial_queue if self.serial_queue else ""

    @property
    def routed_queue(self) -> str | None:
        return self.serial_queue or self.queue

    @property
    def matches(self) -> AfterMatch:
        """`after_match`, or what it is by default."""
        default = AfterMatch.LATEST if self.has_schedule else AfterMatch.SAME_TIME
        return self.after_match or default

    @property
    def waits_for_others(self) -> bool:
        """Whether its ticks do; without a schedule it has none."""
        return bool(self.after) and self.has_schedule

    @property
    def is_of_code(self) -> bool:
        """Whether code puts it under the guard, and no schedule names it."""
        return False

    @property
    def schedule(self) -> str:
        """For people, when it runs: ``every 5m``, ``after extract, load``, ``at start``, or all."""
        more = len(self.after) - MOST_NAMED
        named = ", ".join(self.after[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
        after = f"after {named}" if self.after else ""
        at_start = "at start" if self.run_at_start else ""
        words = [word for word in (super().schedule, after, at_start) if word]
        return ", ".join(words) or ("when called" if self.is_of_code else "when triggered")

    @property
    def lock(self) -> str:
        """The lock of a run with the job's own arguments. Raises InvalidKey."""
        return self.lock_for(self.args, self.params if self.steps else self.kwargs)

    def lock_for(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """The lock of a run with these arguments. Raises InvalidKey."""
        if self.key is None:
            return self.name
        return lock_key(
            self.key, job=self.name, task=self.work, args=args, kwargs=kwargs, mask=self.mask
        )

    @property
    def most_running(self) -> int | None:
        """How many runs may be running at once; None for any number."""
        if self.max_running is None and self.overlap is not OverlapPolicy.ALLOW:
            return 1
        return self.max_running

    def rules(self, lock: str | None = None) -> RunRules:
        """The rules of a run; `lock` is by default the job's own. Raises InvalidKey."""
        rules = RunRules(
            lock=self.lock if lock is None else lock,
            serial="" if self.steps else self.serial_lock,
            overlap=self.overlap.value,
            max_running=self.most_running or 0,
            max_skips=self.max_consecutive_skips or 0,
            on_max_skips=self.then.value,
            max_wait_ms=-1 if self.max_wait is None else to_ms(self.max_wait),
            max_waiting=self.max_waiting,
            requeue_delay_ms=to_ms(self.requeue_delay),
            max_requeues=self.max_requeues,
            start_deadline_ms=to_ms(self.start_deadline),
            lease_ttl_ms=to_ms(self.lease_ttl),
            on_crash=self.on_crash.value,
            max_crashes=self.max_crashes,
            history=self.history,
            on_lease_lost=self.on_lease_lost.value,
            stop_grace_ms=to_ms(self.stop_grace),
        )
        return rules.model_copy(update=self.optional_rules)

    @property
    def optional_rules(self) -> dict[str, Any]:
        """Rules that are only written for jobs that have them."""
        rules = {
            **self.own_rules,
            "mask": self.mask,
            "max_duration_ms": self.max_duration and to_ms(self.max_duration),
            "min_duration_ms": self.min_duration and to_ms(self.min_duration),
            "follows": self.waits_for_others,
            "log": "" if self.log is RunLog.REPORTED else self.log.value,
        }
        return {name: value for name, value in rules.items() if value}

    @cached_property
    def shared(self) -> dict[str, Any]:
        """What was derived of all but VARYING_KEYS; jobs of one kind have it in common."""
        return {}

    def varied(self, values: Mapping[str, Any]) -> Self:
        """A job of the same kind. values: of VARYING_KEYS; they are not validated.

        `shared` and `when` depend on none of these, and so are worked out once for all of the kind.
        """
        copied = copy(self)  # half of the time of model_copy(), at each tick of each job
        vars(copied).update(values, shared=self.shared, when=self.when)
        copied.model_fields_set.update(values)
        return copied

    @property
    def rules_text(self) -> str:
        """The rules of a run as JSON, without its lock."""
        text: str | None = self.shared.get("rules") if self.serial is not True else None
        if text is None:
            text = self.shared["rules"] = json.dumps(self.rules("").json_fields)
        return text


class GuardedTaskSpec(JobSpec):
    """A task that its own code puts under the guard: a job that no schedule file names."""

    max_consecutive_skips: Annotated[Count, Field(ge=1)] | None = 1_000_000
    """By default no number is too many: callers of a guarded task expect that calls are skipped."""

    @model_validator(mode="after")
    def _one_schedule(self) -> Self:
        if self.has_schedule:
            raise conflict("a guarded task has no schedule", *KINDS)
        return self

    @property
    def is_of_code(self) -> bool:
        return True

    def rules(self, lock: str | None = None) -> RunRules:
        """The same; worked out once, for each call asks for them."""
        return self._rules.model_copy(update={"lock": self.lock if lock is None else lock})

    @cached_property
    def _rules(self) -> RunRules:
        return super().rules("")

    @cached_property
    def text(self) -> str:
        """The job as the ledger keeps it."""
        return self.model_dump_json(exclude_defaults=True)
