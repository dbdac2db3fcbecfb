"""Jobs as people write them: the keys of a loaded job, and the text of a schedule file of them.

What a page or the API shows of a job hides its secrets. What comes back from there with `***` in it
keeps what the job has (`revealed`), as long as its tasks and its `mask` stay the same: else an edit
would show what `mask` hides, or hand it to another task.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from supervisor.catalog.faults import JobFault
from supervisor.catalog.job_text import ORDER, entry_text
from supervisor.catalog.schedule_files import with_forms
from supervisor.job.changes import ARGUMENTS
from supervisor.job.secrets import MASK, masked, texts_in
from supervisor.job.spec import JobSpec
from supervisor.lists.keys import ADDRESSES
from supervisor.operate.words import json_text
from supervisor.settings import DEFAULT_PREFIX

Document = dict[str, Any]
"""The keys of a job as a schedule file has them, defaults left out; values as JSON has them."""

#: Keys in which a mask may stand for a value; addresses are masked whatever `mask` says.
HIDING = (*ARGUMENTS, "steps")

HINT = "write it out, or leave task and mask as they are"
HINT_OF_ADDRESSES = (
    "write it out: an address keeps its value if it came back as it was shown, and of several that"
    " look alike if all of them did"
)


def document_of(spec: JobSpec, prefix: str = DEFAULT_PREFIX) -> Document:
    """The keys of a job, with the secrets that are written out in it. prefix: of its ledger."""
    dumped = spec.model_dump(mode="json", exclude_defaults=True)
    if spec.serial:
        dumped["serial"] = own_serial(spec, prefix)
    dumped = with_forms(dumped, datetime.now(UTC).year)
    return {key: dumped[key] for key in ORDER if key in dumped}


def own_serial(spec: JobSpec, prefix: str) -> bool | str:
    """`serial` as it was before `JobSpec.kept_apart`."""
    plain = spec.model_copy(update={"serial": "-"}).kept_apart(prefix).serial
    name = str(spec.serial).removeprefix(str(plain).removesuffix("-"))
    return True if spec.serial is True or name == spec.name else name


def shown_document(spec: JobSpec, prefix: str = DEFAULT_PREFIX) -> Document:
    """The same with `***` for what `mask` hides, and for the secret part of addresses."""
    document = document_of(spec, prefix)
    for key in ARGUMENTS:
        if key in document:
            document[key] = masked(spec.mask, document[key])
    for key in ADDRESSES.keys() & document.keys():
        document[key] = ADDRESSES[key].mask(document[key])
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
    kept = HIDING if hides_the_same and is_same_work else ()
    document = {
        key: filled(value, shown.get(key), real.get(key)) if key in kept else value
        for key, value in given.items()
    }
    for key in ADDRESSES.keys() & given.keys():
        document[key] = addressed(given[key], shown.get(key), real.get(key))
    return document


def addressed(given: Any, shown: Any, real: Any) -> Any:
    """The addresses that came back as they were shown; in a list those of items that look alike, in
    their order, if as many came back.
    """
    if given == shown:
        return real
    if not (isinstance(given, list) and isinstance(shown, list)):
        return given
    addresses = list(given)
    for look in shown:
        hidden = [address for one, address in zip(shown, real, strict=True) if one == look]
        places = [place for place, item in enumerate(given) if item == look]
        if len(places) == len(hidden):
            for place, address in zip(places, hidden, strict=True):
                addresses[place] = address
    return addresses


def tasks(document: Mapping[str, Any]) -> list[Any]:
    steps = document.get("steps")
    listed = steps if isinstance(steps, list) else []
    return [step.get("task") if isinstance(step, dict) else step for step in listed]


def filled(given: Any, shown: Any, real: Any) -> Any:
    if given == shown:
        return real
    if isinstance(given, dict) and isinstance(shown, dict):
        return {key: filled(given[key], shown.get(key), (real or {}).get(key)) for key in given}
    if isinstance(given, list) and isinstance(shown, list) and len(given) == len(shown):
        return [filled(*items) for items in zip(given, shown, real, strict=True)]
    return given


def mask_faults(document: Mapping[str, Any], loaded: JobSpec | None) -> Iterable[JobFault]:
    """A fault for each `***` without a value behind it: it would be loaded as three stars."""
    real = document_of(loaded) if loaded else {}
    for key in (*HIDING, *ADDRESSES):
        texts = dict(texts_in(real.get(key)))
        for path, text in texts_in(document.get(key)):
            is_address = key in ADDRESSES and text.endswith(f"/{MASK}")
            is_hidden = text == MASK or is_address
            if is_hidden and texts.get(path) != text:
                what = f"{key!r}: {MASK} stands for a value that is hidden here"
                yield JobFault((key,), what, HINT_OF_ADDRESSES if key in ADDRESSES else HINT, path)


# The text of a schedule file.


def schedule_text(specs: Iterable[JobSpec], prefix: str = DEFAULT_PREFIX) -> str:
    """A file that `supervisor check` accepts, and that loads these jobs as they are."""
    entries = [entry_text(spec.name, document_of(spec, prefix)) for spec in specs]
    return "jobs:\n" + "\n".join(entries) if entries else "jobs: {}\n"


def schedule_json(specs: Iterable[JobSpec], prefix: str = DEFAULT_PREFIX) -> str:
    """The same as JSON, which YAML includes."""
    jobs = {spec.name: document_of(spec, prefix) for spec in specs}
    return json_text({"jobs": jobs}) + "\n"


def job_text(name: str, document: Document) -> str:
    """A schedule file of this job alone."""
    return "jobs:\n" + entry_text(name, document)


def document_text(document: Document) -> str:
    """The keys alone, as they stand below a job's name; empty without any."""
    if not document:
        return ""
    lines = entry_text("job", document).splitlines()[1:]
    return "".join(re.sub(r"^ {4}", "", line) + "\n" for line in lines)
