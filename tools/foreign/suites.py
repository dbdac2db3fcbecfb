"""The suites of others, and why a test of theirs ends differently in a supervised app."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Suite:
    """A suite, which is found in the source distribution of the installed version of `package`."""

    package: str

    kept: Sequence[str]
    """Files and folders of it that the tests need."""

    tests: Sequence[str]
    """What is run."""

    requirements: Sequence[str] = ()
    """Files of it, or names of packages, that the tests need beside what we are developed with."""

    options: Sequence[str] = ()
    """Of pytest."""

    environ: Mapping[str, str] = field(default_factory=dict)
    """{url} and {port} in its values are those of an empty server."""

    explained: Mapping[str, str] = field(default_factory=dict)
    """A part of a test's name -> why its outcome differs."""


LOCK = "which beat leads is in the ledger's own lock, which each tick extends"
SECOND = "beat looks once a second, less what a turn took, and RedBeat's own each five minutes"
CLIENT = "RedBeat's client is the ledger's, made once the app's settings are there"
TLS = "the client's connections have a class of their own"
VERIFIED = f"{TLS}, and verify certificates by redis-py's default, where RedBeat names the option"

SUITES = {
    "celery": Suite(
        package="celery",
        kept=("t", "requirements", "setup.cfg", "pyproject.toml"),
        tests=("t/unit/tasks", "t/unit/worker", "t/unit/app"),
        requirements=("-r", "requirements/test.txt"),
        options=("--timeout", "300"),
        explained={
            "test_process_task_raise_regular": "a message that the pool cannot take is dropped",
        },
    ),
    "celery-integration": Suite(
        package="celery",
        kept=("t", "requirements", "setup.cfg", "pyproject.toml"),
        tests=("t/integration",),
        requirements=("-r", "requirements/test.txt"),
        options=("--timeout", "300"),
        environ={"TEST_BROKER": "{url}", "TEST_BACKEND": "{url}", "REDIS_PORT": "{port}"},
    ),
    "redbeat": Suite(
        package="celery-redbeat",
        kept=("tests",),
        tests=("tests",),
        options=("-p", "foreign_redbeat", "-c", "/dev/null", "--rootdir", "."),
        explained={
            "test_lock_acquisition_failed_during_startup": LOCK,
            "RedBeatStartupAcquiresLock": LOCK,
            "tick::test_empty": SECOND,
            "test_score": "the test fails, in either app, where a second ends within it",
            "test_due_later_task_never_run": SECOND,
            "test_due_next_just_ran": "beat wakes at an entry's score too, which is a whole second",
            "test_old_static_entries_are_removed": SECOND,
            "RedBeatLockTimeoutDefaultValues": SECOND,
            "test_update_from_dict_fetch_redis_entry": (
                "the test sets a prefix that Celery forgets with the first setting that is read"
            ),
            "test_warns_when_inheriting_broker_settings": "supervise() names RedBeat's address",
            "RetryPeriodRedBeatCase": CLIENT,
            "InheritedBrokerOptionsRedBeatCase": CLIENT,
            "ExplicitOptionsRedBeatCase": CLIENT,
            "InheritedClusterOptionsRedBeatCase": "a cluster is refused",
            "ClusterRedBeatCase": "a cluster is refused",
            "SentinelRedBeatCase": CLIENT,
            "SSLConnectionToRedisDefaultBrokerSSL": (
                f"{TLS}, and `broker_use_ssl` is for the broker's server: another has its own"
            ),
            "SSLConnectionToRedisNoCerts": VERIFIED,
            "RedisWithCredentialProvider": VERIFIED,
        },
    ),
}
