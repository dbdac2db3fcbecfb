"""The references to secrets in a job of a schedule file, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from supervisor.errors import SecretMissing
from supervisor.files.job_faults import JobFault
from supervisor.job.references import FORMS, has_references, malformed, resolved, texts_in
from supervisor.job.spec import JobSpec


def reference_faults(spec: JobSpec, environ: Mapping[str, str] | None) -> Iterator[JobFault]:
    """Those that are none, and with `environ` also those that lead to nothing in it."""
    for path, text in texts_in(spec.params):
        if has_references(text):
            what = f"'params': {text!r} would be handed on as it is"
            yield JobFault(("params",), what, "give it to a step, in its 'kwargs'", path)
    steps = [{"args": step.args, "kwargs": step.kwargs} for step in spec.steps]
    given: dict[str, Any] = {"args": spec.args, "kwargs": spec.kwargs, "steps": steps}
    for key, value in {**given, "ping_url": spec.ping_url}.items():
        for path, text in texts_in(value):
            if found := malformed(text):
                what = f"{key!r}: {found[0]!r} is not a reference to a secret"
                yield JobFault((key,), what, FORMS, path)
            elif environ is not None and (missing := unresolved(text, environ)):
                yield JobFault((key,), f"{key!r}: {missing}", None, path)


def unresolved(text: str, environ: Mapping[str, str]) -> str | None:
    """Why the text has no secret in this environment; None when it has all of them."""
    try:
        resolved(text, environ)
    except SecretMissing as error:
        return str(error)
    return None
