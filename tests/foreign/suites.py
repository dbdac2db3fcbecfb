"""The suites of others, and why a test of theirs ends differently in a supervised app."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Suite:
    """A suite, which is found in the source distribution of the installed version of `package`.

    kept: files and folders of it that the tests need. requirements: files of it, or names of
    packages, that they need beside what we are developed with. tests: what is run.
    options: of pytest. environ: where a value has {url}, the address of an empty server is put.
    explained: a part of a test's name -> why its outcome differs.
    """

    package: str
    kept: Sequence[str]
    tests: Sequence[str]
    requirements: Sequence[str] = ()
    options: Sequence[str] = ()
    environ: Mapping[str, str] = field(default_factory=dict)
    explained: Mapping[str, str] = field(default_factory=dict)


SUITES = {
    "celery": Suite(
        package="celery",
        kept=("t", "requirements", "setup.cfg", "pyproject.toml"),
        tests=("t/unit/tasks", "t/unit/worker", "t/unit/app"),
        requirements=("-r", "requirements/test.txt"),
        options=("--timeout", "300"),
    ),
    "celery-integration": Suite(
        package="celery",
        kept=("t", "requirements", "setup.cfg", "pyproject.toml"),
        tests=("t/integration",),
        requirements=("-r", "requirements/test.txt"),
        options=("--timeout", "120", "--reruns", "0"),
        environ={"TEST_BROKER": "{url}", "TEST_BACKEND": "{url}"},
    ),
}
