"""Jobs as people write them: the keys of a loaded job, and the text of a schedule file of them.

What a page or the API shows of a job hides its secrets. What comes back from there with `***` in
it keeps what the job has (`revealed`), as long as its tasks and its `mask` stay the same: else an
edit would show what `mask` hides, or hand it to another task.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from supervisor.files.import_text import entry_text
from supervisor.files.job_checks import KEYS, JobFault
from supervisor.files.public_holidays import as_written
from supervisor.job.changes import ARGUMENTS, masked_destinations, masked_url
from supervisor.job.secrets import MASK, masked, texts_in
from supervisor.job.spec import JobSpec
from supervisor.job.when import KINDS, When
from supervisor.settings import DEFAULT_PREFIX

Document = dict[str, Any]
"""The keys of a job as a schedule file has them, defaults left out; values as JSON has them."""

#: What a job does and when comes first; then as the documentation has it.
FIRST = ("task", "steps", "params", "args", "kwargs", "description", *KINDS, *When.model_fields)
ORDER = tuple(dict.fromkeys((*(key for key in FIRST if key in KEYS), *KEYS)))

#: Keys in which a mask may stand for a value; addresses are masked whatever `mask` says.
HIDING = (*ARGUMENTS, "steps", "ping_url")


def document_of(spec: JobSpec, prefix: str = DEFAULT_PREFIX) -> Document:
    """With all secrets that are written out in the job. prefix: of the ledger that it is from."""
    dumped = spec.model_dump(mode="json", exclude_defaults=True)
    if spec.serial:
        dumped["serial"] = own_serial(spec, prefix)
    if spec.exclude:
        dumped["exclude"] = as_written(spec.exclude, datetime.now(UTC).year)
    return {key: dumped[key] for key in ORDER if key in dumped}


def own_serial(spec: JobSpec, prefix: str) -> bool | str:
    """`serial` as it was before `JobSpec.kept_apart`."""
    plain = spec.model_copy(update={"serial": "-"}).kept_apart(prefix).serial
    name = str(spec.serial).removeprefix(str(plain).removesuffix("-"))
    return True if spec.serial is True or name == spec.name else name


def shown_document(spec: JobSpec, prefix: str = DEFAULT_PREFIX) -> Document:
    """With `***` for what `mask` hides, and for the secret part of addresses."""
    document = document_of(spec, prefix)
    for key in ARGUMENTS:
        if key in document:
            document[key] = masked(spec.mask, document[key])
    if "ping_url" in document:
        document["ping_url"] = masked_url(document["ping_url"])
    if "notify" in document:
        document["notify"] = masked_destinations(document["notify"])
    if "steps" in document:
        document["steps"] = [
            {
                key: masked(spec.mask, value) if key in ARGUMENTS else value
                for key, value in step.items()
            }
            for step in document["steps"]
        ]
    return document


def revealed(given: Mapping[str, Any], loaded: JobSpec, prefix: str = DEFAULT_PREFIX) -> Document:
    """The document with the loaded job's values where `shown_document` had `***` for them."""
    real, shown = document_of(loaded, prefix), shown_document(loaded, prefix)
    hides_the_same = given.get("mask", False) == shown.get("mask", False)
    is_same_work = given.get("task") == shown.get("task") and tasks(given) == tasks(shown)
    kept = HIDING if hides_the_same and is_same_work else ("ping_url",)
    found = {
        key: filled(value, shown.get(key), real.get(key)) if key in kept else value
        for key, value in given.items()
    }
    if isinstance(given.get("notify"), list) and "notify" in real:
        found["notify"] = addressed(given["notify"], shown["notify"], real["notify"])
    return found


def addressed(given: list[Any], shown: list[Any], real: list[Any]) -> list[Any]:
    """Destinations, each found by what is shown of its address: its events may be edited, and
    others added or removed beside it. Of several that look the same, all have to be there still.
    """
    found = list(given)
    for url in {keys_of(each)["url"] for each in shown}:
        places = [n for n, each in enumerate(given) if keys_of(each).get("url") == url]
        known = [n for n, each in enumerate(shown) if keys_of(each)["url"] == url]
        if len(places) == len(known):
            for place, number in zip(places, known, strict=True):
                found[place] = with_secrets(given[place], shown[number], real[number])
    return found


def with_secrets(given: Any, shown: Any, real: Any) -> Any:
    keys, hidden = keys_of(given), keys_of(shown)
    secrets = {key: value for key, value in keys_of(real).items() if key in ("url", "secret")}
    kept = {key: value for key, value in secrets.items() if keys.get(key) == hidden[key]}
    return {**keys, **kept} if isinstance(given, dict) else kept["url"]


def keys_of(destination: Any) -> Document:
    return destination if isinstance(destination, dict) else {"url": destination}


def tasks(document: Mapping[str, Any]) -> list[Any]:
    steps = document.get("steps")
    found = steps if isinstance(steps, list) else []
    return [step.get("task") if isinstance(step, dict) else step for step in found]


def filled(given: Any, shown: Any, real: Any) -> Any:
    if given == shown:
        return real
    if isinstance(given, dict) and isinstance(shown, dict):
        return {key: filled(given[key], shown.get(key), (real or {}).get(key)) for key in given}
    if isinstance(given, list) and isinstance(shown, list) and len(given) == len(shown):
        return [filled(*items) for items in zip(given, shown, real, strict=True)]
    return given


def mask_faults(document: Mapping[str, Any], loaded: JobSpec | None) -> Iterable[JobFault]:
    """Of each `***` that stands for no value; it would be loaded as a text of three stars."""
    real = document_of(loaded) if loaded else {}
    for key in (*HIDING, "notify"):
        known = dict(texts_in(real.get(key)))
        for path, text in texts_in(document.get(key)):
            is_address = key in ("ping_url", "notify") and text.endswith(f"/{MASK}")
            is_hidden = text == MASK or is_address
            if is_hidden and known.get(path) != text:
                what = f"{key!r}: {MASK} stands for a value that is hidden here"
                yield JobFault(
                    (key,), what, "write it out, or leave task and mask as they are", path
                )


# The text of a schedule file.


def schedule_text(
    specs: Iterable[JobSpec], prefix: str = DEFAULT_PREFIX, header: Iterable[str] = ()
) -> str:
    """A file that `supervisor check` accepts, and that loads these jobs as they are."""
    head = "".join(f"# {line}\n" for line in header)
    entries = [entry_text(spec.name, document_of(spec, prefix)) for spec in specs]
    return head + ("jobs:\n" + "\n".join(entries) if entries else "jobs: {}\n")


def schedule_json(specs: Iterable[JobSpec], prefix: str = DEFAULT_PREFIX) -> str:
    """The same as JSON, which YAML includes."""
    jobs = {spec.name: document_of(spec, prefix) for spec in specs}
    return json.dumps({"jobs": jobs}, indent=2, ensure_ascii=False) + "\n"


def document_text(document: Document) -> str:
    """The keys alone, as they stand below a job's name; nothing for none of them."""
    if not document:
        return ""
    lines = entry_text("job", document).splitlines()[1:]
    return "".join(re.sub(r"^ {4}", "", line) + "\n" for line in lines)
