"""The form of a job: the model's own check, its problems at the fields that they are about."""

from __future__ import annotations

import json
from typing import Any

from django import forms
from django.conf import settings
from django.core.exceptions import NON_FIELD_ERRORS, ValidationError
from django.forms.fields import InvalidJSONInput
from django.utils.html import format_html, format_html_join

from supervisor.errors import SupervisorError
from supervisor.integrations.django.checking import clash, known_tasks
from supervisor.integrations.django.models import COLUMNS, Job
from supervisor.job.policies import OverlapPolicy

#: Fields in which an empty text stands for an empty list or mapping.
JSON_FIELDS = ("args", "kwargs", "labels", "more")


class KeyField(forms.JSONField):
    """JSON that every database can keep; what was typed is shown again as it was typed."""

    def to_python(self, value: Any) -> Any:
        try:
            found = super().to_python(value)
            text = json.dumps(found, ensure_ascii=False)
            text.encode()
        except RecursionError:
            raise ValidationError("is nested too deeply") from None
        except UnicodeEncodeError:
            raise ValidationError("half a character is no text") from None
        if "\\u0000" in text:
            raise ValidationError("the character NUL cannot be stored")
        return found

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
    """None of Celery's own."""
    try:
        tasks = known_tasks() or ()
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
        """An empty field is an empty list or mapping, and not the JSON null."""
        cleaned: dict[str, Any] = super().clean()
        for field in JSON_FIELDS:
            if field in cleaned and cleaned[field] is None:
                cleaned[field] = Job._meta.get_field(field).get_default()
        if (name := cleaned.get("name")) and (why := clash(name)):
            self.add_error("name", why)
        return cleaned

    def add_error(self, field: str | None, error: Any) -> None:
        """Problems of fields that are shown read-only stand above the form."""
        if field is None and hasattr(error, "error_dict"):
            placed: dict[str, list[Any]] = {}
            for name, errors in error.error_dict.items():
                at = name if name in self.fields else NON_FIELD_ERRORS
                placed.setdefault(at, []).extend(errors)
            error = ValidationError(placed)
        super().add_error(field, error)
