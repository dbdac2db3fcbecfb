from __future__ import annotations

import os
import textwrap
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import yaml

from supervisor.catalog import schedule_files
from supervisor.catalog.job_checks import KEYS, NOT_IN_DEFAULTS, Tasks, check_job
from supervisor.catalog.schedule_files import load
from supervisor.job.spec import JobSpec
from tests.core.catalog.problems import problems_of

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(text: str, name: str = "jobs.yaml") -> Path:
        path = tmp_path / name
        path.write_text(textwrap.dedent(text))
        return path

    return write


def texts_of(path: Path, app_tasks: Tasks | None = None) -> list[str]:
    """The problems without the file's name: ``3: job 'a': what (hint)``."""
    problems = problems_of(path, app_tasks=app_tasks)
    return [str(problem).removeprefix(f"{problem.file}:") for problem in problems]


# --- what is read ------------------------------------------------------------------------------


def test_a_file_holds_jobs_by_name(write: Write) -> None:
    path = write("""\
        jobs:
          nightly:
            task: reports.nightly
            cron: "0 2 * * *"
            timezone: Europe/Berlin
            kwargs: {day: 2026-03-01, full: true}
          often: {task: mail.poll, every: 90}
        """)
    schedules = load(path)
    nightly = schedules.specs["nightly"]
    assert (nightly.name, nightly.cron, nightly.timezone) == (
        "nightly",
        "0 2 * * *",
        "Europe/Berlin",
    )
    assert nightly.kwargs == {"day": "2026-03-01", "full": True}, "a date stays text"
    assert schedules.specs["often"].every == timedelta(seconds=90)
    assert schedules.sources == {"nightly": f"{path}:2", "often": f"{path}:7"}


def test_a_directory_is_its_visible_yaml_files_in_order(write: Write, tmp_path: Path) -> None:
    for name in ("b.yaml", "a.yml", ".hidden.yaml", "notes.txt", "a.yaml~"):
        write(f"jobs: {{'{name.strip('.~')}': {{task: t, every: 1m}}}}", name)
    (tmp_path / "deeper").mkdir()
    write("jobs: {deep: {task: t, every: 1m}}", "deeper/c.yaml")
    assert list(load(tmp_path).specs) == ["a.yml", "b.yaml"]


def test_the_defaults_of_a_file_hold_where_a_job_says_nothing(write: Write, tmp_path: Path) -> None:
    write("""\
        defaults: {timezone: Europe/Berlin, overlap: queue_one, queue: slow}
        jobs:
          a: {task: t, every: 1m}
          b: {task: t, every: 1m, overlap: skip, queue: null, serial: true}
        """)
    write("jobs: {c: {task: t, every: 1m}}", "other.yaml")
    specs = load(tmp_path).specs
    assert (specs["a"].timezone, specs["a"].overlap, specs["a"].queue) == (
        "Europe/Berlin",
        "queue_one",
        "slow",
    )
    assert (specs["b"].overlap, specs["b"].queue) == ("skip", None)
    assert specs["c"].timezone == "UTC"


def test_every_key_but_those_that_make_a_job_itself_can_be_a_default(write: Write) -> None:
    sample = JobSpec(name="j", task="t", every=timedelta(minutes=1)).model_dump(mode="json")
    keys = [key for key in KEYS if key not in NOT_IN_DEFAULTS and sample[key] is not None]
    path = write(yaml.safe_dump({"defaults": {k: sample[k] for k in keys}, "jobs": {}}))
    assert load(path).specs == {}
    assert {"timezone", "overlap", "catchup", "lease_ttl", "paused"} <= set(keys)


@pytest.mark.parametrize("key", NOT_IN_DEFAULTS)
def test_what_makes_a_job_itself_cannot_be_a_default(write: Write, key: str) -> None:
    path = write(f"defaults:\n  {key}: x\njobs: {{a: {{task: t, every: 1m}}}}")
    assert texts_of(path) == [f"2: defaults: '{key}' cannot be a default (give it in each job)"]


# --- the digest --------------------------------------------------------------------------------

A_JOB = "jobs: {a: {task: t, every: 1m, kwargs: {x: 1, y: 2}}, b: {task: u, every: 2m}}"


@pytest.mark.parametrize(
    "same",
    [
        "# a comment\njobs:\n  b:\n    every: 120\n    task: u\n"
        "  a: {task: 't', every: 60s, kwargs: {y: 2, x: 1}}",
        A_JOB.replace("task: t", "task: t, overlap: skip"),
        A_JOB.replace("jobs:", "defaults: {timezone: UTC}\njobs:"),
    ],
)
def test_the_digest_is_the_same_while_the_jobs_are(write: Write, same: str) -> None:
    first, second = load(write(A_JOB)), load(write(same, "other.yaml"))
    assert first.digest == second.digest
    assert first.specs == second.specs


@pytest.mark.parametrize(
    "other", [A_JOB.replace("1m", "61s"), A_JOB.replace("y: 2", "y: 3"), A_JOB.replace("b:", "c:")]
)
def test_the_digest_changes_when_a_job_does(write: Write, other: str) -> None:
    assert load(write(A_JOB)).digest != load(write(other, "other.yaml")).digest


# --- files -------------------------------------------------------------------------------------


def test_links_are_followed(write: Write, tmp_path: Path) -> None:
    # Kubernetes mounts a config map like this: names link to ..data/, which is a link again.
    inside = tmp_path / "schedules"
    (inside / "..2026").mkdir(parents=True)
    write(A_JOB, "schedules/..2026/a.yaml")
    (inside / "..data").symlink_to("..2026")
    (inside / "a.yaml").symlink_to("..data/a.yaml")
    assert set(load(inside).specs) == {"a", "b"}
    (inside / "broken.yaml").symlink_to("nowhere")
    (inside / "loop.yaml").symlink_to("loop.yaml")
    assert [(Path(p.file).name, p.what) for p in problems_of(inside)] == [
        ("broken.yaml", "cannot be read: No such file or directory"),
        ("loop.yaml", "cannot be read: Too many levels of symbolic links"),
    ]


def test_what_is_no_text_file_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "directory.yaml").mkdir()
    (tmp_path / "latin.yaml").write_bytes(b"jobs:\n  caf\xe9: {}\n")
    (tmp_path / "large.yaml").write_bytes(b"#" * (1024 * 1024 + 1))
    os.mkfifo(tmp_path / "pipe.yaml")
    found = [(Path(p.file).name, p.line, p.what) for p in problems_of(tmp_path)]
    assert found == [
        ("directory.yaml", 1, "is not a regular file"),
        ("large.yaml", 1, "is larger than 1 MiB"),
        ("latin.yaml", 2, "is not UTF-8 text"),
        ("pipe.yaml", 1, "is not a regular file"),
    ]


def test_a_job_in_two_files_is_told_with_both_places(write: Write, tmp_path: Path) -> None:
    write("jobs:\n  a: {task: t, every: 1m}\n", "one.yaml")
    write("jobs:\n  b: {task: t, every: 1m}\n  a: {task: t, every: 1m}\n", "two.yaml")
    (problem,) = problems_of(tmp_path)
    assert (Path(problem.file).name, problem.line, problem.job) == ("two.yaml", 3, "a")
    assert problem.what == f"this job is also in {tmp_path / 'one.yaml'}:2"


def test_there_is_a_most_of_jobs(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert schedule_files.MOST_JOBS == 100_000
    monkeypatch.setattr(schedule_files, "MOST_JOBS", 3)
    for name in ("x", "y"):
        write(
            f"jobs:\n  {name}1: {{task: t, every: 1m}}\n  {name}2: {{task: t, every: 1m}}",
            f"{name}.yml",
        )
    (problem,) = problems_of(tmp_path)
    assert (problem.job, problem.line, problem.what) == ("y2", 3, "more than 3 jobs")


# --- jobs --------------------------------------------------------------------------------------


#: Keys of a job, and what is said of them.
WRONG = [
    ("every: soon", "'every': 'soon' is not a duration such as 90s, 5m or 1h30m"),
    ("every: 1:30", "not a duration such as 90s, 5m or 1h30m (write 1:30 as 1h30m or as 1m30s)"),
    ("every: 10ms", "'every': must be at least 1s"),
    ("every: -5", "'every': -5 is not a duration"),
    ("every: true", "'every': true is not a duration"),
    ("every: 1m, lease_ttl: [1]", "'lease_ttl': [1] is not a duration"),
    ("cron: 5", "'cron': 5 is not text (put it in quotes)"),
    ("every: 1m, priority: 10", "'priority': 10 is more than 9, the largest allowed"),
    ("every: 1m, priority: high", "'priority': 'high' is not a whole number"),
    ("cron: []", "'cron': 0 expressions; from 1 to 50 are allowed"),
    ("cron: ['0 9 * * *', 5]", "'cron': 5 is not text (put it in quotes)"),
    ("cron: ['0 9 * * *', '0 9 * * *']", "'cron': '0 9 * * *' is the same as one before it"),
    ("cron: ['* * * * *', '0 25 * * *']", "'cron': '0 25 * * *': '25' is not valid in the hour"),
    ("cron: ['* * * * *'], dst: {gap: skip}", "'dst' says nothing here"),
    ("cron: '* * * * *', every: 1m", "give only one of 'cron', 'every', 'rrule' and 'at'"),
    ("jitter: 5s", "'jitter' says nothing here: the job has no schedule"),
    ("after_match: latest", "'after_match' needs 'after'"),
    ("after: [b, a]", "'after': a job cannot follow itself"),
    ("after: [b, b]", "'after': 'b' is there twice"),
    ("after_match: newest", "'after_match': 'newest' is not one of same_time, latest"),
    ("every: 1m, phase: 1m", "'phase' must be shorter than 'every'"),
    ("cron: '0 2 * * *', phase: 1s", "'phase' needs 'every'"),
    ("rrule: FREQ=SECONDLY", "'rrule': FREQ: 'SECONDLY' is not one of YEARLY, MONTHLY"),
    ("rrule: FREQ=DAILY;INTERVAL=3", "'rrule': INTERVAL needs 'start_at', the time from which"),
    ("rrule: FREQ=DAILY;INTERVAL=3, start_at: soon", "'start_at': 'soon' is not a time such as"),
    ("at: []", "'at': an empty list; leave it out"),
    ("at: 2026-12-24T18:00:00", "is not a list (such as [2026-12-24T18:00:00])"),
    ("at: [2026-12-24]", "'2026-12-24' has no time; write 2026-12-24T00:00:00"),
    ("at: [2026-12-24T25:00:00]", "'2026-12-24T25:00:00' is on no calendar or clock"),
    (
        "at: [2026-06-01T12:00:00, '2026-06-01T10:00:00Z'], timezone: Europe/Berlin",
        "2026-06-01T10:00:00Z is the same time as one before it",
    ),
    ("every: 1m, jitter: 1ms", "'jitter': must be at least 1s"),
    (
        "every: 1m, start_at: 2026-01-01T00:00:00, end_at: 2026-01-01T00:00:00",
        "'start_at' must be before 'end_at'",
    ),
    ("every: 1m, exclude: SAT", "'exclude': 'SAT' is not a list (such as [SAT, 2026-12-24])"),
    ("every: 1m, exclude: null", "'exclude': null is not a list (such as [SAT, 2026-12-24])"),
    ("every: 1m, exclude: [null]", "'exclude': null is not a date, a range or a weekday"),
    ("every: 1m, lease_ttl: null", "'lease_ttl': null is not a duration such as 90s"),
    ("every: 1m, exclude: [SUNDAY]", "'SUNDAY' is not a date, a range or a weekday (did you"),
    ("every: 1m, exclude: [MON-SUN]", "'exclude': every day of the week is excluded"),
    ("every: 1m, exclude: [2026-12-24..2026-12-20]", "ends before it begins"),
    ("cron: '0 2 * * SAT', exclude: [SAT]", "'cron': the job would never run (look at 'start"),
    ("cron: '0 2 * * *', dst: skip", "'dst': 'skip' is not a mapping (such as {gap: skip"),
    ("cron: '0 2 * * *', dst: {gap: skp}", "'gap': 'skp' is not one of run, skip (did you mean"),
    ("cron: '0 2 * * *', dst: {fld: both}", "unknown key 'fld' (did you mean 'fold'?)"),
    ("cron: '0 * * * *', dst: {gap: skip}", "'dst' says nothing here: the job runs every hour"),
    ("every: 1m, timezone: Europe/Berln", "unknown time zone 'Europe/Berln' (did you mean 'E"),
    ("every: 1m, timezone: america/new_york", "(did you mean 'America/New_York'?)"),
    ("every: 1m, timezone: Europe/Munich", "(name it by a city: Europe/Berlin; or UTC)"),
    ("every: 1m, timezone: Etc/GMT+15", "unknown time zone 'Etc/GMT+15' (name it by a city"),
    ("every: 1m, overlp: skip", "unknown key 'overlp' (did you mean 'overlap'?)"),
    ("every: 1m, entry: poll-inbox", "a job can be called 'poll-inbox': give it that name, with"),
    ("every: 1m, entry: 5", "'entry': 5 is not text"),
    ("every: 1m, name: b", "unknown key 'name' (a job's name is its key under 'jobs')"),
    ("every: 1m, overlap: skp", "'overlap': 'skp' is not one of skip, queue_one, queue_all, re"),
    ("every: 1m, overlap: null", "'overlap': null is not one of skip"),
    ("every: 1m, catchup: 5", "'catchup': 5 is not one of none, latest, all"),
    ("every: 1m, max_waiting: 0", "'max_waiting': 0 is less than 1, the smallest allowed"),
    ("every: 1m, max_retries: -1", "'max_retries': -1 is less than 0, the smallest allowed"),
    ("every: 1m, max_retries: 9999999", "is more than 1000000, the largest allowed"),
    ("every: 1m, max_retries: '5'", "'max_retries': '5' is not a whole number"),
    ("every: 1m, max_retries: true", "'max_retries': true is not a whole number"),
    ("every: 1m, paused: yes", "'paused': 'yes' is not true or false (unquoted, and not yes"),
    ("every: 1m, paused: 1", "'paused': 1 is not true or false"),
    ("every: 1m, serial: yes", "'serial': 'yes' is no name for a queue; write true or false"),
    ("every: 1m, serial: 1", "'serial': 1 is not true, false or a name"),
    ("every: 1m, serial: 'a b'", "'serial': 'a b' is not true, false or a name"),
    ("every: 1m, sentry_monitor: A B", "'sentry_monitor': 'A B' is not true, false or a monitor"),
    ("every: 1m, serial: true, queue: q", "'serial' names the queue; leave 'queue' out"),
    ("every: 1m, queue: a/b", "'queue': 'a/b' is not a name (letters, digits"),
    ("every: 1m, args: one", "'args': 'one' is not a list (such as [1, two])"),
    ("every: 1m, args: {a: 1}", "'args': {'a': 1} is not a list"),
    ("every: 1m, kwargs: [a]", "'kwargs': ['a'] is not a mapping of names to values"),
    ("every: 1m, args: [.nan]", "'args': not JSON"),
    ("every: 1m, kwargs: {a: {b: -.inf}}", "'kwargs': not JSON"),
    ("every: 1m, description: 5", "'description': 5 is not text"),
    (f"every: 1m, description: {'x' * 1001}", "is longer than 1000 characters"),
    ("every: 1m, soft_time_limit: 2m, time_limit: 2m", "must be shorter than 'time_limit'"),
    ("every: 1m, max_duration: 2m, time_limit: 2m", "'max_duration' must be shorter than 'time_li"),
    ("every: 1m, min_duration: 3m, max_duration: 2m", "must be shorter than 'max_duration'"),
    ("every: 1m, max_duration: 500ms", "must be at least 1s"),
    ("every: 1m, overlap: requeue, requeue_delay: 10ms", "'requeue_delay': must be at least 1s"),
    ("every: 1m, due_by: '25:00'", "'25:00' is no time from 00:00 to 23:59 (hours and minutes"),
    ("every: 1m, due_by: '24:00'", "(midnight is 00:00)"),
    ("every: 1m, due_by: 06:00:30", "'06:00:30' is no time from 00:00 to 23:59"),
    ("every: 1m, labels: [a]", "is not a mapping of names to values (such as {tenant: acme})"),
    ("every: 1m, labels: {a-b: x}", "'a-b' is not a name for a label (letters, digits and _"),
    ("every: 1m, labels: {a: 5}", "'labels': 'a': 5 is not text (put it in quotes)"),
    ("every: 1m, labels: {a: ''}", "'labels': 'a': '' is empty"),
    (
        f"every: 1m, labels: {{{', '.join(f'l{n}: x' for n in range(11))}}}",
        "has more items than 10, the most",
    ),
    ("every: 1m, due_by: noon", "'due_by': 'noon' is neither a time of day nor a duration"),
    ("every: 1m, due_by: 0s", "'due_by': must be at least 1s"),
    ("every: 1m, due_by: [06:00]", "is neither a time of day nor a duration"),
]


@pytest.mark.parametrize(("keys", "what"), WRONG)
def test_a_mistake_in_a_job_is_told_in_words_and_once(write: Write, keys: str, what: str) -> None:
    (problem,) = problems_of(write(f"jobs:\n  a: {{task: t, {keys}}}\n"))
    assert (problem.line, problem.job) == (2, "a")
    assert what in str(problem)
    assert "pydantic" not in str(problem)
    assert "Input should" not in str(problem)


#: What other programs take, or Linux has, and how it is written here.
OF_OTHER_PROGRAMS = [
    ("cron: '@minutely'", "write * * * * *"),
    ("cron: '@every 5m'", "use 'every' (every: 5m)"),
    ("cron: 'rate(5 minutes)'", "use 'every' (every: 5m)"),
    ("cron: '@reboot'", "use 'run_at_start: true'"),
    ("cron: 'CRON_TZ=Asia/Tokyo 0 2 * * *'", "the zone is a key of its own"),
    ("cron: '0 2 * * * Asia/Tokyo'", "a key of its own (timezone: Asia/Tokyo)"),
    ("cron: '0 0 2 ? * 2-6'", "five fields, minute first and no year, * in place of ?"),
    ("cron: 'cron(0 2 ? * 2-6 *)'", "names of weekdays: in Quartz and AWS 1 is Sunday"),
    ("cron: '0 H(2-4) * * *'", "there is no H of Jenkins; 'jitter' spreads jobs"),
    ("cron: '0 22-2 * * *'", "the range '22-2' runs backwards; write two"),
    ("cron: '0 2 * * FRI-MON'", "the range 'FRI-MON' runs backwards; write two"),
    ("cron: '0 0 L/2 * *'", "'L/2': the last day has no step"),
    ("every: 1m, exclude: [FRI-MON]", "(write it as two, such as FRI-SUN and MON)"),
    ("every: 1m, timezone: IST", "unknown time zone 'IST' (name it by a city"),
    ("every: 1m, timezone: GMT+5", "(5 hours ahead of UTC is Etc/GMT-5, behind it Etc/GMT+5)"),
    ("every: 1m, timezone: localtime", "unknown time zone 'localtime' (name it by a city"),
    ("every: 1m, timezone: Factory", "unknown time zone 'Factory' (name it by a city"),
]


@pytest.mark.parametrize(("keys", "what"), OF_OTHER_PROGRAMS)
def test_words_of_other_programs_are_refused_with_what_they_are_here(
    write: Write, keys: str, what: str
) -> None:
    (text,) = texts_of(write(f"jobs:\n  a: {{task: t, {keys}}}\n"))
    assert what in text
    assert "six fields" not in text
    assert "did you mean" not in text


#: As they stand in YAML, between quotes.
NAMES = ["", "a b", "a/b", "-a", "ä", "x" * 101, "a{b}", "a@b", "../j"]
NAMES += ["j\\n", "j\\u202e", "j\\e[31m", "j\\0"]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_no_key_metric_or_queue_could_bear_is_refused(write: Write, name: str) -> None:
    (text,) = texts_of(write(f'jobs:\n  "{name}": {{task: t, every: 1m}}\n'))
    assert "is not a name for a job" in text
    assert text.startswith("2:")


@pytest.mark.parametrize("keys", [{"queue": "\ud800"}, {"labels": {"team": "\ud800"}}])
def test_half_a_character_is_told_of_where_json_has_one(keys: dict[str, object]) -> None:
    _, (fault,) = check_job("a", {"task": "t", "every": "1m", **keys}, {}, None)
    assert fault.what.endswith("has half a character")


def test_a_job_needs_no_schedule(write: Write, tmp_path: Path) -> None:
    write("jobs: {a: {task: t}, b: {task: t, after: [a]}}")
    assert [spec.schedule for spec in load(tmp_path).specs.values()] == [
        "when triggered",
        "after a",
    ]


def test_one_name_in_after_needs_no_list(write: Write, tmp_path: Path) -> None:
    path = write("jobs: {a: {task: t}, b: {task: t, after: a}}")
    assert load(tmp_path).specs["b"].after == ("a",)
    write("jobs:\n  a: {task: t}\n  b:\n    task: t\n    after: aa\n")
    assert texts_of(path) == ["5: job 'b': 'after': there is no job 'aa' (did you mean 'a'?)"]
    write("jobs: {a: {task: t}, b: {task: t, after: {a: b}}}")
    assert "'after': {'a': 'b'} is not a list (such as [extract, load])" in texts_of(path)[0]


def test_unknown_jobs_and_circles_are_told_where_they_are_named(write: Write) -> None:
    jobs = """
    jobs:
      extract: {task: t, after: [report]}
      load: {task: t, after: [extract]}
      report:
        task: t
        after:
          - load
          - extrakt
    """
    assert texts_of(write(jobs)) == [
        "3: job 'extract': 'after': a circle, extract after report after load after extract "
        "(none of them would ever run)",
        "9: job 'report': 'after': there is no job 'extrakt' (did you mean 'extract'?)",
    ]


def test_one_entry_is_replaced_by_one_job(write: Write) -> None:
    jobs = """
    jobs:
      a: {task: t, entry: poll inbox}
      b: {task: t, entry: 日报}
      c:
        task: t
        entry: poll inbox
    """
    assert texts_of(write(jobs)) == [
        "7: job 'c': 'entry': 'poll inbox' is that of job 'a' too",
    ]


def test_circles_are_found_at_once_also_one_behind_another(write: Write) -> None:
    jobs = """
    jobs:
      a: {task: t, after: [b]}
      b: {task: t, after: [a]}
      c: {task: t, after: [a, d, e]}
      d: {task: t, after: [c]}
      e: {task: t, after: [c]}
    """
    assert [text.partition(" (")[0] for text in texts_of(write(jobs))] == [
        "3: job 'a': 'after': a circle, a after b after a",
        "5: job 'c': 'after': a circle, c after d after c",
    ]


def test_a_missing_task_is_told_at_the_job(write: Write) -> None:
    (text,) = texts_of(write("jobs:\n  a:\n    task: null\n    every: 1m\n    steps: null\n"))
    assert text.startswith("5: job 'a': 'steps': null is not a list")
    (text,) = texts_of(write("jobs:\n  a:\n    every: 1m\n"))
    assert text == "2: job 'a': give either 'task' or 'steps' (it has none of them)"


def test_arguments_are_small(write: Write) -> None:
    def with_payload(size: int) -> Path:
        return write(f"jobs:\n  a:\n    task: t\n    every: 1m\n    kwargs: {{x: {'y' * size}}}\n")

    load(with_payload(16 * 1024 - 11))
    (text,) = texts_of(with_payload(16 * 1024 - 10))
    assert text.startswith("5: job 'a': the arguments are 16,385 bytes of JSON; 16,384 are")


def test_a_mistake_in_the_defaults_is_told_once_and_not_for_every_job(write: Write) -> None:
    path = write("""\
        defaults:
          timezone: Europe/Berln
          soft_time_limit: 2m
          time_limit: 1m
          lease_ttl: soon
          overlp: skip
        jobs:
          a: {task: t, every: 1m}
          b: {task: t, cron: "0 2 * * *"}
        """)
    assert [text.partition(" (")[0] for text in texts_of(path)] == [
        "2: defaults: 'timezone': unknown time zone 'Europe/Berln'",
        "3: defaults: 'soft_time_limit' must be shorter than 'time_limit'",
        "5: defaults: 'lease_ttl': 'soon' is not a duration such as 90s, 5m or 1h30m",
        "6: defaults: unknown key 'overlp'",
    ]


def test_a_key_that_does_not_go_with_a_default_is_told_at_the_job(write: Write) -> None:
    path = write("""\
        defaults: {queue: slow}
        jobs:
          a:
            task: t
            every: 1m
            serial: true
        """)
    assert texts_of(path) == [
        "6: job 'a': 'serial' names the queue; leave 'queue' out "
        "(queue is from 'defaults'; queue: null takes it back)"
    ]


BROKEN = "  {}:\n    task: t\n    every: 5parsecs\n    args: [.nan]\n    steps: [{{prio: 1}}]\n"
OTHERS = {
    "the same": BROKEN,
    "in other order": "  {}:\n    args: [1, .inf]\n    evry: 1\n\n    every: 9parsecs\n",
    "with less": "  {}: {{}}\n",
    "of another kind": "  {}: [every, args]\n",
    "itself twice": BROKEN + "    every: 7\n    every: 8\n",
}


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("level", ["job", "jobs"])
def test_what_is_given_twice_has_the_lines_of_the_first(
    write: Write, other: str, level: str
) -> None:
    """The first one counts; of the other it is only said that it is there."""
    first = "jobs:\n" + BROKEN.format("nightly2")
    again = OTHERS[other].format("nightly2") if level == "job" else f"jobs:\n{BROKEN.format('b')}"
    alone = problems_of(write(first))
    both = problems_of(write(first + again))
    assert {(4, "'every'"), (5, "'args'")} <= {(p.line, p.what.partition(":")[0]) for p in alone}
    assert [p for p in both if "given twice" not in p.what] == list(alone)
    assert both[len(alone)].line == 7


def test_all_mistakes_of_one_job_are_told_together(write: Write) -> None:
    path = write("""\
        jobs:
          a b:
            task: 5
            cron: "0 25 * * *"
            every: 1m
            lease_ttl: soon
            serial: true
            queue: q
            soft_time_limit: 5m
            time_limit: 5m
            kwargs: {x: .nan}
            zzz: 1
        """)
    assert [problem.line for problem in problems_of(path)] == [2, 3, 4, 4, 6, 7, 9, 11, 12]


def test_nothing_is_loaded_when_one_file_has_a_problem(write: Write, tmp_path: Path) -> None:
    write(A_JOB, "good.yaml")
    write("jobs: {c: {every: 1m}}", "bad.yaml")
    assert [Path(problem.file).name for problem in problems_of(tmp_path)] == ["bad.yaml"]


def test_each_wrong_item_of_a_list_is_told_at_its_own_line(write: Write) -> None:
    path = write("""\
        jobs:
          a:
            task: t
            at:
              - 2026-12-24T18:00:00
              - noon
              - 2026-13-24T18:00:00
            exclude:
              - XMAS
              - SAT
              - {fil: x}
            dst:
              gap: maybe
              flod: both
        """)
    assert [problem.line for problem in problems_of(path)] == [6, 7, 9, 11, 13, 14]


def test_a_default_dst_holds_for_the_jobs_it_can_say_something_about(write: Write) -> None:
    path = write("""\
        defaults: {dst: {gap: skip}}
        jobs:
          a: {task: t, every: 1m}
          b: {task: t, cron: "0 2 * * *"}
        """)
    assert len(load(path).specs) == 2
