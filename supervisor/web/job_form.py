"""The form that makes and edits a job: the keys of a job as the fields of a form, and back.

The keys that most jobs have are fields of their own; all others are one field, which is read as a
schedule file is. So the form has every key that a schedule file has.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from supervisor.files.yaml_source import UNREADABLE, plain_value, read
from supervisor.operate.job_documents import Document, document_text

Fields = Mapping[str, str]

#: Schedules that are one line of text; others are among the further keys.
TIMES = ("every", "cron", "rrule")

#: Keys that are texts as they are written.
TEXTS = ("task", "description", "timezone", "overlap", "queue")

#: Keys that are numbers or durations: 3, 90s, 5m.
AMOUNTS = ("max_retries", "time_limit")

#: Keys that are JSON, as when a job is triggered.
JSONS = {"args": list, "kwargs": dict}


class InvalidForm(Exception):
    """What stands in the fields cannot be read; `problems` has all of it."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


def fields_of(document: Document) -> dict[str, str]:
    """The fields of a form that says the same as the document."""
    rest = dict(document)
    fields = {"kind": "", "times": ""}
    for key in TIMES:
        if is_line(rest.get(key)):
            fields |= {"kind": key, "times": rest.pop(key)}
    fields |= {key: rest.pop(key) for key in TEXTS if is_line(rest.get(key))}
    fields |= {key: str(rest.pop(key)) for key in AMOUNTS if key in rest}
    for key, kind in JSONS.items():
        if isinstance(rest.get(key), kind):
            value = rest.pop(key)
            text = json.dumps(value, ensure_ascii=False)
            fields[key] = text if text.isprintable() else json.dumps(value)
    if rest.get("paused") is True:
        fields["paused"] = str(rest.pop("paused"))
    return fields | {"more": document_text(rest)}


def is_line(value: Any) -> bool:
    """Whether a field of one line keeps the text as it is."""
    return isinstance(value, str) and value.isprintable() and value == value.strip()


def document_in(fields: Fields) -> Document:
    """What the fields say; an empty one says nothing. Raises InvalidForm."""
    document: Document = {}
    problems: list[str] = []
    more = further_keys(fields.get("more", ""), problems)
    for key, value in given(fields, problems):
        if key in more:
            problems.append(f"{key!r} is given twice: in its field, and among the further keys")
        document[key] = value
    if problems:
        raise InvalidForm(problems)
    return document | more


def given(fields: Fields, problems: list[str]) -> Iterator[tuple[str, Any]]:
    """Keys and values of the fields that are keys of a job."""
    kind, times = fields.get("kind", ""), fields.get("times", "").strip()
    if kind in TIMES and times:
        yield kind, times
    elif times:
        problems.append(f"{times!r}: choose what kind of schedule it is")
    readers: dict[str, Callable[[str], Any]] = {
        **dict.fromkeys(TEXTS, str),
        **dict.fromkeys(AMOUNTS, plain_value),
        **dict.fromkeys(JSONS, loads),
    }
    for key, reader in readers.items():
        if text := fields.get(key, "").strip():
            try:
                yield key, reader(text)
            except (ValueError, RecursionError) as error:
                problems.append(f"{key!r}: {error}")
    if "paused" in fields:
        yield "paused", True


def further_keys(text: str, problems: list[str]) -> Document:
    document = read(text)
    problems += [
        f"further keys, line {fault.line}: {fault.what}"
        + (f" ({fault.hint})" if fault.hint else "")
        for fault in document.faults
    ]
    data = document.data
    if data is None or data is UNREADABLE:
        return {}
    if not isinstance(data, dict):
        problems.append("further keys: not keys and values, such as start_deadline: 10m")
        return {}
    return data


# JSON as people send it.


#: As deep as a schedule file may be.
DEEPEST = 20


def loads(text: str | bytes) -> Any:
    """JSON without what other readers of JSON would take for something else. Raises ValueError."""
    try:
        value = json.loads(text, object_pairs_hook=without_repeats, parse_constant=refused_constant)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error}") from None
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    check_depth(value, DEEPEST)
    return value


TOO_DEEP = f"nested deeper than {DEEPEST} levels"


def without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        again = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{again!r} is given twice")
    return found


def refused_constant(word: str) -> Any:
    raise ValueError(f"{word} is not JSON")


def check_depth(value: Any, levels: int) -> None:
    """Raises ValueError."""
    if not isinstance(value, dict | list):
        return
    if levels == 0:
        raise ValueError(TOO_DEEP)
    for item in value.values() if isinstance(value, dict) else value:
        check_depth(item, levels - 1)
