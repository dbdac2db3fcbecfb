"""What is broken, and the tests that must notice, those that are quick first."""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import Path

ROOMS = ("tests/core", "tests/features", "tests/tools")

#: All Lua, and the Python that decides whether two runs overlap and whether a tick is lost.
BROKEN = (
    "supervisor/ledger/*.lua",
    "supervisor/features/*/*.lua",
    "supervisor/guard/attempt.py",
    "supervisor/guard/ledger_calls.py",
    "supervisor/guard/lease.py",
    "supervisor/guard/heartbeat.py",
    "supervisor/guard/interrupts.py",
    "supervisor/schedule/emission.py",
    "supervisor/features/audit/step.py",
)

#: How a run goes from its admission to its end.
RUNS = (
    *("attempts", "admit", "overlapping", "rescue", "schema"),
    *("comebacks", "pausing", "revocations", "many_waiting"),
)
STEPS = ["stages"]
REST = ["ended_runs", "audit", "after", "reports", "model"]
REPEATING = "tests/tools/operate/test_repeating.py"
HEARTBEAT = (
    *("tests/core/guard/test_lease.py", "tests/core/ledger/test_comebacks.py"),
    *("tests/core/guard/test_insisting.py", "tests/acceptance/test_told_to_end.py"),
    "tests/core/guard/test_heartbeat.py",
)


def tests_of(*names: str) -> list[str]:
    return [str(file_of(name)) for name in dict.fromkeys(names)]


def file_of(name: str) -> Path:
    """The one file of tests of that name, with the core, a feature or a tool."""
    (file,) = (path for room in ROOMS for path in Path(room).rglob(f"test_{name}.py"))
    return file


#: The first pattern that fits decides.
JUDGES = {
    "*/stages.lua": tests_of(*STEPS, *RUNS, *REST),
    "*/expand.lua": tests_of(*STEPS, *RUNS, *REST),
    "*/fill.lua": tests_of(*STEPS, *RUNS, *REST),
    "*/load.lua": [
        "tests/core/catalog/test_jobs_at_run_time.py",
        *tests_of("record", "after", "content", "adopted_entries"),
        *(REPEATING, *tests_of("loading", "beginning_to_lead")),
    ],
    "*/begin.lua": [*tests_of("content", *RUNS, *STEPS, *REST), REPEATING],
    "*/admit.lua": [*tests_of(*RUNS, *STEPS, "callers", *REST), REPEATING],
    "*/finish.lua": tests_of("callers", *RUNS, *STEPS, *REST),
    "*/messages.lua": tests_of("messages", "callers", "whole_or_nothing", *RUNS, *STEPS),
    "*/send.lua": tests_of("messages", "callers", "publishing"),
    "*/keep_messages.lua": tests_of("messages", "loading"),
    "*/comebacks.lua": tests_of("comebacks", "older_ledgers", "model"),
    "*/audit.lua": tests_of("audit", *RUNS, *REST),
    "*/open_runs.lua": tests_of("metrics"),
    "*/accounts.lua": tests_of(*RUNS, *STEPS, "metrics", "pings", *REST),
    "*/features/outbound/*.lua": tests_of("pings", "notices", "revocations"),
    "*/features/notices/*.lua": [
        "tests/features/notices/test_silences.py",
        *tests_of("notices", *RUNS),
    ],
    "*/present.lua": tests_of("doctor", "publishing"),
    "*/report.lua": tests_of("reports", "verbs"),
    "*/base.lua": tests_of("schema", "other_versions", *RUNS, *STEPS, *REST),
    "*/set_back.lua": tests_of("clock_steps"),
    "*/poll.lua": tests_of("beat_ticks", "beginning_to_lead", "comebacks", "clock_steps"),
    "*/act.lua": tests_of("record"),
    "*/re*.lua": tests_of("comebacks", *RUNS, *STEPS, "metrics", *REST),
    "*.lua": tests_of(*RUNS, *STEPS, *REST),
    "*/emission.py": ["tests/core/schedule/test_emission.py", *tests_of("beat_ticks")],
    "*/features/audit/step.py": [*tests_of("audit"), "tests/tools/operate/test_checkup.py"],
    "*/guard/attempt.py": [
        *("tests/core/worker/test_requests.py", *tests_of("attempts", "run_log", "tracebacks")),
        *("tests/core/guard/test_late_grants.py", "tests/core/guard/test_reports.py", *HEARTBEAT),
    ],
    "*/guard/*.py": list(HEARTBEAT),
}


def judges_of(file: str) -> list[str]:
    return next(tests for pattern, tests in JUDGES.items() if fnmatch(file, pattern))
