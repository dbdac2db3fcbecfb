"""Published schemas, and what they say is wrong."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

DIRECTORY = Path(__file__).with_name("schemas")


@cache
def compose() -> Draft202012Validator:
    return Draft202012Validator(json.loads((DIRECTORY / "compose.json").read_text()))


@cache
def kubernetes() -> dict[str, Draft202012Validator]:
    """By apiVersion/kind."""
    text = json.loads((DIRECTORY / "kubernetes.json").read_text())
    return {
        name: Draft202012Validator({**schema, "$defs": text["$defs"]})
        for name, schema in text["kinds"].items()
    }


def faults(validator: Draft202012Validator, document: Any) -> list[str]:
    return [f"{fault.json_path}: {fault.message}" for fault in validator.iter_errors(document)]
