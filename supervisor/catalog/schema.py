"""The JSON Schema of a schedule file, for editors; its descriptions are JobSpec's docstrings."""

from __future__ import annotations

from typing import Any

from supervisor.catalog.job_checks import KEYS, NOT_IN_DEFAULTS
from supervisor.job.fields import NAME_PATTERN
from supervisor.job.spec import JobSpec
from supervisor.job.when import KINDS

DIALECT = "https://json-schema.org/draft/2020-12/schema"

#: Every default in the words of a schedule file; `name`, `task` and the schedule have none.
DEFAULTS = JobSpec.model_validate({"name": "job", "task": "task", "every": 60}).model_dump(
    mode="json"
)


def json_schema() -> dict[str, Any]:
    """The schema of one file: what an editor can check; `supervisor check` checks the rest."""
    job = JobSpec.model_json_schema()
    definitions = job.pop("$defs", {})
    properties = {key: _property(key, job["properties"][key]) for key in KEYS}
    schedules = [_written(kind) for kind in KINDS]
    shared = {key: value for key, value in properties.items() if key not in NOT_IN_DEFAULTS}
    return {
        "$schema": DIALECT,
        "title": "Schedule file",
        "description": "Jobs that the supervisor runs periodically.",
        "type": "object",
        "required": ["jobs"],
        "additionalProperties": False,
        "properties": {
            "defaults": {"$ref": "#/$defs/Defaults"},
            "jobs": {
                "description": "Job name -> job.",
                "type": "object",
                "propertyNames": {"pattern": NAME_PATTERN},
                "additionalProperties": {"$ref": "#/$defs/Job"},
            },
        },
        "$defs": {
            **definitions,
            "Defaults": {
                "description": "Keys for all jobs of this file; a job's own keys win.",
                "type": "object",
                "additionalProperties": False,
                "properties": shared,
            },
            "Job": {
                "description": job["description"],
                "type": "object",
                "additionalProperties": False,
                "allOf": [
                    {"oneOf": [{"required": ["task"]}, {"required": ["steps"]}]},
                    {"oneOf": [*schedules, {"not": {"anyOf": schedules}}]},
                ],
                "properties": properties,
            },
        },
    }


def _property(key: str, generated: dict[str, Any]) -> dict[str, Any]:
    """The generated schema with the default as one would write it, and without a generated title.

    pydantic writes durations as ISO 8601 there, and drops a description that a `$ref` has too.
    """
    field = JobSpec.model_fields[key]
    made = {name: value for name, value in generated.items() if name not in ("title", "default")}
    if not field.is_required() and field.default is not None:
        made["default"] = DEFAULTS[key]
    return {**made, "description": field.description}


def _written(key: str) -> dict[str, Any]:
    return {"required": [key], "properties": {key: {"not": {"type": "null"}}}}
