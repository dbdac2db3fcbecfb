"""What is broken, and the tests that must notice, those that are quick first."""

from __future__ import annotations

from fnmatch import fnmatch

#: All Lua, and the Python that decides whether two runs overlap and whether a tick is lost.
BROKEN = (
    "supervisor/ledger/*.lua",
    "supervisor/features/*/*.lua",
    "supervisor/job/policies.py",
    "supervisor/guard/attempt.py",
    "supervisor/guard/lease.py",
    "supervisor/guard/heartbeat.py",
    "supervisor/ticks/emission.py",
    "supervisor/features/audit/step.py",
)

#: How a run goes from its admission to its end.
RUNS = (
    *("admit", "attempts", "overlapping", "rescue", "schema"),
    *("pausing", "comebacks", "revocations"),
)
STEPS = ["stages"]
REST = ["reports", "audit", "beat_ticks", "after", "notices", "ended_runs", "model"]
HEARTBEAT = (
    *("tests/unit/guard/test_lease.py", "tests/ledger/test_comebacks.py"),
    "tests/ledger/test_heartbeat.py",
    "tests/ledger/test_insisting.py",
    "tests/acceptance/test_told_to_end.py",
)


def ledger_tests(*names: str) -> list[str]:
    return [f"tests/ledger/test_{name}.py" for name in dict.fromkeys(names)]


#: The first pattern that fits decides.
JUDGES = {
    "*/stages.lua": ledger_tests(*STEPS, *RUNS, *REST),
    "*/expand.lua": ledger_tests(*STEPS, *RUNS, *REST),
    "*/fill.lua": ledger_tests(*STEPS, *RUNS, *REST),
    "*/load.lua": ledger_tests("loading", "record", "beginning_to_lead", "content", *RUNS, *REST),
    "*/begin.lua": ledger_tests("content", *RUNS, *STEPS, *REST),
    "*/messages.lua": ledger_tests("messages", "callers", "whole_or_nothing", *RUNS, *STEPS),
    "*/send.lua": ledger_tests("messages", "callers", "publishing"),
    "*/keep_messages.lua": ledger_tests("messages", "loading"),
    "*/comebacks.lua": ledger_tests("comebacks", "older_ledgers", "model"),
    "*/audit.lua": ledger_tests("audit", *RUNS, *REST),
    "*/figures.lua": ledger_tests("metrics", *RUNS),
    "*/open_runs.lua": ledger_tests("metrics"),
    "*/accounts.lua": ledger_tests(*RUNS, *STEPS, "metrics", "pings", *REST),
    "*/delivered.lua": ledger_tests("pings", "notices", "revocations"),
    "*/present.lua": ledger_tests("doctor", "publishing"),
    "*/report.lua": ledger_tests("reports", "verbs"),
    "*/base.lua": ledger_tests("schema", "other_versions", *RUNS, *STEPS, *REST),
    "*/set_back.lua": ledger_tests("clock_steps"),
    "*/look.lua": ledger_tests("beat_ticks", "beginning_to_lead", "comebacks", "clock_steps"),
    "*/act.lua": ledger_tests("record"),
    "*/to_audit.lua": ledger_tests("audit", "beat_ticks"),
    "*/re*.lua": ledger_tests("comebacks", *RUNS, *STEPS, "metrics", *REST),
    "*.lua": ledger_tests(*RUNS, *STEPS, *REST),
    "*/policies.py": ["tests/unit/job/test_overlap.py", *ledger_tests("model")],
    "*/emission.py": ["tests/unit/ticks/test_emission.py", *ledger_tests("beat_ticks")],
    "*/features/audit/step.py": [*ledger_tests("audit"), "tests/unit/operate/test_checkup.py"],
    "*/guard/*.py": list(HEARTBEAT),
}


def judges_of(file: str) -> list[str]:
    return next(tests for pattern, tests in JUDGES.items() if fnmatch(file, pattern))
