"""Published schemas, and what they say is wrong."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

DIRECTORY = Path(__file__).with_name("schemas")


def validator(schema: dict[str, Any]) -> Any:
    # Imported by those who validate alone: it takes longer than all else that tests import.
    from jsonschema import Draft202012Validator

    return Draft202012Validator(schema)


@cache
def compose() -> Any:
    return validator(json.loads((DIRECTORY / "compose.json").read_text()))


@cache
def kubernetes() -> dict[str, Any]:
    """By apiVersion/kind."""
    texts = [
        json.loads((DIRECTORY / f"{name}.json").read_text()) for name in ("kubernetes", "operators")
    ]
    return {
        name: validator({**schema, "$defs": text["$defs"]})
        for text in texts
        for name, schema in text["kinds"].items()
    }


def faults(validator: Any, document: Any) -> list[str]:
    return [f"{fault.json_path}: {fault.message}" for fault in validator.iter_errors(document)]
