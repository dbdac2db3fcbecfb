"""Jobs in Django's admin: its users, permissions and history, our checks, and how the jobs stand.

The rows are Django's; what a page shows of runs is read from the ledger when it is asked for. Where
Redis is unavailable, the page says so once, and rows can be edited all the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django import forms
from django.conf import settings
from django.contrib import admin, messages
from django.core.exceptions import NON_FIELD_ERRORS, ValidationError
from django.forms.fields import InvalidJSONInput
from django.utils.html import format_html, format_html_join

from supervisor import jobs
from supervisor.catalog.put_checks import judged
from supervisor.errors import Conflict, SupervisorError
from supervisor.features.django.loading import EditingUser, edited_by
from supervisor.features.django.models import COLUMNS, SOURCE, Job, app_tasks, clash
from supervisor.features.django.project import celery_app, ledger
from supervisor.job.policies import OverlapPolicy
from supervisor.job.spec import JobSpec
from supervisor.ledger.job_record import Origin
from supervisor.ledger.page_reads import Trace, traces
from supervisor.operate import control
from supervisor.operate.words import LocalTime, age
from supervisor.schedule.expectations import next_ticks
from supervisor.store.failures import RedisError, explained

# The form: the model's own check, its problems at the fields that they are about.


#: Fields in which an empty text stands for an empty list or mapping.
JSON_FIELDS = ("args", "kwargs", "labels", "more")


class KeyField(forms.JSONField):
    """JSON that every database can keep. What a user typed is shown unchanged."""

    def to_python(self, value: Any) -> Any:
        try:
            read = super().to_python(value)
            text = json.dumps(read, ensure_ascii=False)
            text.encode()
        except RecursionError:
            raise ValidationError("is nested too deeply") from None
        except UnicodeEncodeError:
            raise ValidationError("half a character is no text") from None
        if "\\u0000" in text:
            raise ValidationError("the character NUL cannot be stored")
        return read

    def bound_data(self, data: Any, initial: Any) -> Any:
        return initial if self.disabled or data is None else InvalidJSONInput(data)


class TaskInput(forms.TextInput):
    """Offers the names of the app's tasks, and takes any text."""

    def render(self, name: str, value: Any, attrs: Any = None, renderer: Any = None) -> str:
        given = {**(attrs or {}), "list": LIST}
        field = super().render(name, value, given, renderer)
        options = format_html_join("", '<option value="{}">', ((task,) for task in offered_tasks()))
        return str(format_html('{}<datalist id="{}">{}</datalist>', field, LIST, options))


LIST = "supervisor-tasks"


def offered_tasks() -> list[str]:
    """The tasks that are offered: none of Celery's own."""
    try:
        tasks = app_tasks() or ()
    except SupervisorError:
        return []
    return sorted(task for task in tasks if not task.startswith("celery."))


class JobForm(forms.ModelForm):
    overlap = forms.ChoiceField(
        required=False,
        choices=[("", "skip, the default"), *((word.value, word.value) for word in OverlapPolicy)],
        help_text="What happens to a run that would overlap with the previous one.",
    )

    class Meta:
        model = Job
        fields = ("name", *COLUMNS, "more")
        help_texts = {  # noqa: RUF012 - as Django has it
            "name": "Letters, digits and _ . - only; it cannot be changed later.",
            "task": "Name of the Celery task, as the worker registers it.",
            "cron": "Five fields, such as 0 3 * * mon-fri; a further line is a further cron.",
            "every": "Or a fixed interval, such as 90s, 5m or 1h30m.",
            "timezone": "Such as Europe/Berlin; empty for UTC.",
            "args": 'A list, such as ["acme", 7].',
            "kwargs": 'Such as {"tenant": "acme"}.',
            "queue": "Empty: as the app routes it.",
            "paused": "Its ticks are excluded.",
            "description": "A sentence for the people who are called at night.",
            "labels": 'To find jobs by, such as {"tenant": "acme"}.',
            "more": 'All other keys of a schedule file: {"max_retries": 3, "time_limit": "10m"}.',
        }
        field_classes = dict.fromkeys(JSON_FIELDS, KeyField)
        widgets = {  # noqa: RUF012 - as Django has it
            "task": TaskInput(attrs={"size": 60}),
            "cron": forms.Textarea(attrs={"rows": 2, "cols": 40}),
            "args": forms.Textarea(attrs={"rows": 2, "cols": 80}),
            "kwargs": forms.Textarea(attrs={"rows": 3, "cols": 80}),
            "labels": forms.Textarea(attrs={"rows": 2, "cols": 80}),
            "more": forms.Textarea(attrs={"rows": 5, "cols": 80}),
            "description": forms.Textarea(attrs={"rows": 2, "cols": 80}),
        }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.instance._state.adding and "timezone" in self.fields:
            self.fields["timezone"].initial = settings.TIME_ZONE

    def clean(self) -> dict[str, Any]:
        """An empty field is an empty list or mapping, not the JSON null."""
        cleaned: dict[str, Any] = super().clean()
        for field in JSON_FIELDS:
            if field in cleaned and cleaned[field] is None:
                cleaned[field] = Job._meta.get_field(field).get_default()
        if (name := cleaned.get("name")) and (why := clash(name)):
            self.add_error("name", why)
        return cleaned

    def add_error(self, field: str | None, error: Any) -> None:
        """Shows the problems of read-only fields above the form."""
        if field is None and hasattr(error, "error_dict"):
            placed: dict[str, list[Any]] = {}
            for name, errors in error.error_dict.items():
                at = name if name in self.fields else NON_FIELD_ERRORS
                placed.setdefault(at, []).extend(errors)
            error = ValidationError(placed)
        super().add_error(field, error)


# The pages and their actions.


#: How many open runs of a job the action cancels at a time.
MOST_CANCELLED = 100

UNKNOWN = "-"


@admin.register(Job)
class JobAdmin(admin.ModelAdmin):
    form = JobForm
    list_display = ("name", "task", "schedule", "next_tick", "last_run", "loaded", "changed_at")
    list_filter = ("paused", "queue")
    search_fields = ("name", "task", "description")
    actions = ("trigger", "pause", "resume", "cancel")
    list_per_page = 100
    fieldsets = (
        (None, {"fields": ("name", "task", "description")}),
        ("When", {"fields": ("cron", "every", "timezone", "paused", "next_five_ticks")}),
        ("What it runs with", {"fields": ("args", "kwargs", "queue", "overlap")}),
        ("More", {"fields": ("labels", "more")}),
        ("How it stands", {"fields": ("loaded", "last_runs", "status_page")}),
    )
    shown = ("next_five_ticks", "loaded", "last_runs", "status_page")

    # Edits are loaded as those of the user.

    def save_model(self, request: Any, obj: Job, form: Any, change: bool) -> None:
        obj.changed_by = request.user.get_username()
        with edited_by(editor_of(request)):
            super().save_model(request, obj, form, change)

    def delete_model(self, request: Any, obj: Job) -> None:
        with edited_by(editor_of(request)):
            super().delete_model(request, obj)

    def delete_queryset(self, request: Any, queryset: Any) -> None:
        with edited_by(editor_of(request)):
            super().delete_queryset(request, queryset)

    def get_readonly_fields(self, request: Any, obj: Job | None = None) -> tuple[str, ...]:
        """A job's name is its key, which its runs have in their ids."""
        return self.shown if obj is None else ("name", *self.shown)

    # How the jobs stand, read once for all that a page shows.

    def get_changelist_instance(self, request: Any) -> Any:
        changes = super().get_changelist_instance(request)
        changes.result_list = list(changes.result_list)
        self._read(request, changes.result_list)
        return changes

    def get_object(self, request: Any, object_id: str, from_field: str | None = None) -> Job | None:
        job: Job | None = super().get_object(request, object_id, from_field)
        if job is not None and request.method == "GET":
            self._read(request, [job])
        return job

    def _read(self, request: Any, rows: list[Job]) -> None:
        try:
            standings = standings_of([row.name for row in rows])
        except (SupervisorError, RedisError) as error:
            why = explained(error) if isinstance(error, RedisError) else str(error)
            messages.warning(request, f"Nothing is known of the jobs' runs: {why}")
            return
        for row in rows:
            row.standing = standings[row.name]

    @admin.display(description="schedule")
    def schedule(self, row: Job) -> str:
        spec = spec_of(row)
        if spec is None:
            return "has problems"
        return f"{spec.schedule} {spec.timezone}" if spec.has_schedule else spec.schedule

    @admin.display(description="next tick")
    def next_tick(self, row: Job) -> str:
        standing = standing_of(row)
        if row.paused or (standing and standing.is_paused):
            return "paused"
        return next(iter(ticks_of(row, 1)), UNKNOWN)

    @admin.display(description="next five ticks")
    def next_five_ticks(self, row: Job) -> str:
        return lines(ticks_of(row, 5))

    @admin.display(description="last run")
    def last_run(self, row: Job) -> str:
        standing = standing_of(row)
        return run_words(standing.runs[0], standing.now) if standing and standing.runs else UNKNOWN

    @admin.display(description="last runs")
    def last_runs(self, row: Job) -> str:
        standing = standing_of(row)
        return lines([run_words(run, standing.now) for run in standing.runs] if standing else [])

    @admin.display(description="loaded")
    def loaded(self, row: Job) -> str:
        standing = standing_of(row)
        if standing is None:
            return UNKNOWN
        if standing.origin is None:
            return "not yet"
        is_own = standing.origin.source == SOURCE
        return "yes" if is_own else f"no, the name is taken: {standing.origin.place}"

    @admin.display(description="status page")
    def status_page(self, row: Job) -> str:
        """SUPERVISOR_PAGE_URL of the settings: where `supervisor serve` answers people."""
        base = getattr(settings, "SUPERVISOR_PAGE_URL", None)
        if not base or not row.name:
            return UNKNOWN
        url = f"{str(base).rstrip('/')}/jobs/{row.name}"
        return str(format_html('<a href="{}">{}</a>', url, url))

    # Actions, each with a permission of its own.

    def has_trigger_permission(self, request: Any) -> bool:
        return bool(request.user.has_perm("supervisor.trigger_job"))

    def has_pause_permission(self, request: Any) -> bool:
        return bool(request.user.has_perm("supervisor.pause_job"))

    def has_cancel_permission(self, request: Any) -> bool:
        return bool(request.user.has_perm("supervisor.cancel_job"))

    @admin.action(description="Trigger a run now", permissions=["trigger"])
    def trigger(self, request: Any, queryset: Any) -> None:
        self._each(request, queryset, lambda row: triggered(row, editor_of(request)))

    @admin.action(description="Pause", permissions=["pause"])
    def pause(self, request: Any, queryset: Any) -> None:
        self._each(request, queryset, lambda row: self._set_paused(request, row, True))

    @admin.action(description="Resume", permissions=["pause"])
    def resume(self, request: Any, queryset: Any) -> None:
        self._each(request, queryset, lambda row: self._set_paused(request, row, False))

    @admin.action(description="Cancel the runs that have not ended", permissions=["cancel"])
    def cancel(self, request: Any, queryset: Any) -> None:
        self._each(request, queryset, lambda row: cancel_runs(row, editor_of(request)))

    def _set_paused(self, request: Any, row: Job, paused: bool) -> str:
        """Changes the row, and the job, which may have been paused or resumed by other means."""
        if row.paused is not paused:
            row.paused, row.changed_by = paused, request.user.get_username()
            with edited_by(editor_of(request)):
                row.save(update_fields=["paused", "changed_at", "changed_by"])
        by = editor_of(request).actor
        if paused:
            jobs.pause(row.name, reason=f"by {by.name}", app=celery_app(), by=by)
        else:
            jobs.resume(row.name, app=celery_app(), by=by)
        return "Paused" if paused else "Resumed"

    def _each(self, request: Any, rows: Any, act: Callable[[Job], str]) -> None:
        """Acts on each row, with an entry in its history. A failure is shown and the rest goes on,
        unless Redis is unavailable."""
        for row in rows:
            try:
                done = act(row)
            except SupervisorError as error:
                messages.error(request, f"{row.name} was not changed: {error}")
                continue
            except RedisError as error:
                messages.error(request, f"{row.name} was not changed: {explained(error)}")
                return
            self.log_change(request, row, done)
            messages.success(request, f"{done}: {row.name}")


def editor_of(request: Any) -> EditingUser:
    name, address = request.user.get_username(), request.META.get("REMOTE_ADDR", "")
    return EditingUser(name, lambda text: messages.warning(request, text), address)


def standing_of(row: Job) -> RowStanding | None:
    """None of a new row, and while Redis is unavailable."""
    return getattr(row, "standing", None)


def spec_of(row: Job) -> JobSpec | None:
    """The row's job; None if the row is not filled in yet, or its job has problems."""
    if not row.name:
        return None
    spec, faults = judged(row.name, row.keys())
    return None if faults else spec


def ticks_of(row: Job, count: int) -> list[str]:
    """The job's next ticks, by the clock of its zone."""
    spec = spec_of(row)
    if spec is None:
        return []
    now = datetime.now(UTC)
    local = LocalTime(now, spec.zone)
    return [local.full(tick) for tick in next_ticks(spec, now, count)]


def run_words(run: Trace, now: datetime) -> str:
    at = run.finished_at or run.started_at or run.nominal_at
    return f"{run.state.words} {age(at, now)}".strip()


def triggered(row: Job, by: EditingUser) -> str:
    return f"Triggered as {jobs.trigger(row.name, app=celery_app(), by=by.actor)}"


def cancel_runs(row: Job, by: EditingUser) -> str:
    here, cancelled = ledger(), 0
    for run in here.first_open(row.name, MOST_CANCELLED):
        with suppress(Conflict):  # it has ended just now
            control.cancel(here, run.id, by=by.actor)
            cancelled += 1
    return f"Cancelled {cancelled} run{'' if cancelled == 1 else 's'}"


def lines(texts: list[str]) -> str:
    return str(format_html_join("", "<div>{}</div>", ((text,) for text in texts))) or UNKNOWN


# How the jobs of rows stand, read from the ledger in a few round trips for a whole page.


#: How many runs of a job are shown.
RUNS_SHOWN = 5


@dataclass(frozen=True, slots=True)
class RowStanding:
    """How a row's job stands `now`."""

    now: datetime

    origin: Origin | None
    """None if the job is not loaded."""

    is_paused: bool

    runs: Sequence[Trace]
    """The last ones, newest first."""


def standings_of(names: Sequence[str]) -> dict[str, RowStanding]:
    """Raises SupervisorError and RedisError."""
    here = ledger()
    now, origins, paused = here.now(), here.loaded(names).origins, here.paused(names)
    runs = traces(here, names, RUNS_SHOWN)
    return {
        name: RowStanding(now, origins.get(name), name in paused, runs.get(name, [])[::-1])
        for name in names
    }
