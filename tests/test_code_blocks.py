"""Each fenced block of each page is run, or held to what reads it, or marked as an excerpt.

The mark is a comment above the block, with the reason: `<!-- excerpt: of a longer log -->`. Where
it shows a command with its output, the command is checked all the same. `<!-- output: of what -->`
says that another test compares it. Blocks of Python are run by test_python_blocks.py.
"""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import signal
import socket
import sqlite3
import subprocess
import sys
import textwrap
import threading
import tomllib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from getpass import getuser
from importlib.util import find_spec
from pathlib import Path
from socket import gethostname
from typing import Any

import click
import pytest
import yaml
from celery import Celery
from celery.bin.base import CLIContext
from celery.bin.celery import celery as celery_main
from click.testing import CliRunner

from supervisor.app import supervise
from supervisor.catalog.job_checks import KEYS
from supervisor.catalog.schedule_files import load
from supervisor.cli import main
from supervisor.ledger.ledger import Ledger
from supervisor.web.access import Access
from tests.acceptance import warm
from tests.acceptance.test_tutorial import COMMAND, shape
from tests.jobs import job
from tests.programs import needed
from tests.tools.deploy import walkthrough
from tests.tools.web.visits import TOKEN, visiting
from tests.waiting import scaled

ROOT = Path(__file__).parents[1]

PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]

FENCE = re.compile(
    r"^(?P<mark> *<!-- (?P<word>excerpt|output): [^\n]+ -->\n+)?"
    r"(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<text>.*?)^(?P=indent)```$",
    re.S | re.M,
)

#: Blocks that another test takes from the page, and runs.
RUN_BY = {
    ("docs/tutorial/first-job.md", None): "tests/acceptance/test_tutorial.py",
    **{
        (f"docs/how-to/{page}", "sh"): "tests/tools/deploy/walkthrough.py"
        for page in walkthrough.PAGES
    },
    ("docs/how-to/access.md", "nginx"): "tests/tools/web/test_proxy.py",
}


@dataclass(frozen=True)
class Block:
    page: str
    line: int

    language: str
    """The fence's first word."""

    text: str

    mark: str
    """`excerpt`, `output` or empty."""

    @property
    def runner(self) -> str | None:
        """The file of another test that runs it."""
        return RUN_BY.get((self.page, self.language)) or RUN_BY.get((self.page, None))

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks() -> Iterator[Block]:
    for path in PAGES:
        page = path.read_text()
        for found in FENCE.finditer(page):
            line = page.count("\n", 0, found.start("language")) + 1
            text = textwrap.dedent(found["text"])
            name = str(path.relative_to(ROOT))
            yield Block(name, line, found["language"], text, found["word"] or "")


BLOCKS = list(blocks())

LEFT = [
    block
    for block in BLOCKS
    if not (block.runner or block.language == "python")
    and (not block.mark or block.language == "console")
]


def commands(text: str) -> Iterator[list[str]]:
    """What each call of `supervisor` in a piece of shell is given."""
    lines = text.replace("\\\n", " ").replace("$(", ";").splitlines()
    for line in lines:
        words = shlex.shlex(line, posix=True, punctuation_chars=True)
        words.whitespace_split = True
        before = ";"
        given: list[str] | None = None
        for word in words:
            if given is not None and not re.fullmatch(r"[|&;<>()]+", word):
                given.append(word)
            elif given is not None:
                yield given
                given = None
            elif word.endswith("bin/supervisor") or (word == "supervisor" and calls(before)):
                given = []
            before = word
        if given is not None:
            yield given


def calls(before: str) -> bool:
    """Whether the word after this one is a program."""
    return before in ("serve", "beat", "--") or bool(re.match(r"[|&;()]|[A-Z_]+=", before))


def check_shell(text: str) -> None:
    """Bash reads it, and each verb takes these options and arguments."""
    subprocess.run(["bash", "-n"], input=text, text=True, check=True, capture_output=True)
    for given in commands(text):
        check_verb(main, "supervisor", given)
    for words in absent(text):
        check_absent(words)


#: A project of Django's with the supervisor; with `--help` a verb only reads its options.
MANAGE = """\
import sys
import django
from django.conf import settings
from django.core.management import execute_from_command_line
apps = ["django.contrib.contenttypes", "django.contrib.auth", "supervisor.django"]
settings.configure(INSTALLED_APPS=apps, SUPERVISOR_APP="proj")
execute_from_command_line(sys.argv[1:])
"""


def check_verb(group: click.Group, program: str, given: list[str], obj: object = None) -> None:
    context = group.make_context(program, list(given))
    context.obj = obj or context.obj
    name, verb, rest = group.resolve_command(context, [*context._protected_args, *context.args])
    if verb is None or (isinstance(verb, click.Group) and not rest):
        pytest.fail(f"no verb: {given}")
    while isinstance(verb, click.Group):
        name, verb, rest = verb.resolve_command(context, rest)
        assert verb
    try:
        verb.make_context(name, rest, parent=context)
    except click.BadParameter as error:
        if "does not exist" not in error.message:  # a file of the reader's
            raise


def absent(text: str) -> Iterator[list[str]]:
    """The commands of a block that cannot be run here."""
    for line in text.replace("\\\n", " ").splitlines():
        if ABSENT.search(line):
            yield shlex.split(line.strip(), comments=True)


def check_absent(words: list[str]) -> None:
    """What a command names is there: options, modules, services and files of ours."""
    match words:
        case ["celery", "-A", _, *given]:
            app = Celery("proj", set_as_current=False)
            check_verb(celery_main, "celery", given, CLIContext(app, no_color=True, workdir=None))
        case ["make", *names]:
            assert re.search(rf"^{names[0]}:", (ROOT / "Makefile").read_text(), re.M)
        case ["pip", "install", name]:
            [extra] = re.findall(r"^celery-beat-supervisor\[(\w+)\]$", name)
            project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
            assert extra in project["optional-dependencies"]
        case ["python", "-m", module, *_]:
            assert find_spec(module)
        case ["python", "manage.py", *given]:
            asked = [sys.executable, "-c", MANAGE, "manage.py", *given, "--help"]
            subprocess.run(asked, check=True, capture_output=True)
        case ["docker", "compose", "exec", service, *_]:
            assert service in read("compose/compose.yaml")["services"]
        case ["kubectl", "exec", place, *_]:
            assert place in ("deployment/jobs-beat", "deployment/jobs-serve")
        case ["sudo", "systemd-run", *given]:
            unit = (ROOT / "deploy" / "systemd" / "supervisor-beat@.service").read_text()
            for key, value in re.findall(r"--(?:property=|setenv=)?(\w+)=(\S+)", " ".join(given)):
                value = "examples.app" if value == "proj" else value
                key = "User" if key == "uid" else key
                assert re.search(rf"^(Environment=)?{key}={value}$", unit, re.M), (key, value)
        case ["cp", *files, _] | ["cat", *files] if files:
            ours = [f for file in files for f in braced(file) if file.startswith("deploy/")]
            assert [file for file in ours if not (ROOT / file).exists()] == []
        case ["supervisor", *_] | ["kill", *_]:
            pass
        case [assignment, *_] if re.match(r"\w+=\$\(", assignment):
            pass
        case _:
            pytest.fail(f"run it, check it, or mark it as an excerpt: {words}")


def read(file: str) -> Any:
    """The first document of a rendered file."""
    return next(yaml.safe_load_all((ROOT / "deploy" / file).read_text()))


def braced(file: str) -> list[str]:
    """`a/{b,c}.yml` as bash expands it."""
    before, opened, rest = file.partition("{")
    inside, _, after = rest.partition("}")
    return [f"{before}{one}{after}" for one in inside.split(",")] if opened else [file]


def check_console(text: str) -> None:
    check_shell("".join(f"{command}\n" for command, _ in COMMAND.findall(text)))


def check_yaml(text: str) -> None:
    """A schedule file, or keys of a job, loads; any other YAML is read."""
    data = yaml.safe_load(text)
    if set(data) <= {"jobs", "defaults"}:
        written = text if "jobs" in data else text + "\njobs: {}\n"
    elif set(data) <= set(KEYS):
        task = {} if "steps" in data else {"task": "proj.task"}
        written = json.dumps({"jobs": {"job": {**task, **data}}})
    else:
        return
    directory = Path(os.environ["BLOCK_DIRECTORY"])
    (directory / "jobs.yaml").write_text(written)
    load(directory)


def check_json(text: str) -> None:
    json.loads(text if text.lstrip()[0] in "{[" else f"{{{text}}}")


def check_sql(text: str) -> None:
    with closing(sqlite3.connect(":memory:")) as database:
        database.executescript(text)


def check_diagram(text: str) -> None:
    assert text.split()[0] in ("flowchart", "sequenceDiagram", "stateDiagram-v2")


CHECKS: dict[str, Callable[[str], object]] = {
    "console": check_console,
    "ini": lambda text: configparser.ConfigParser().read_string(text),
    "json": check_json,
    "mermaid": check_diagram,
    "sh": check_shell,
    "sql": check_sql,
    "toml": tomllib.loads,
    "yaml": check_yaml,
}


@pytest.mark.parametrize("block", LEFT, ids=str)
def test_a_block_is_what_its_language_says(
    block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BLOCK_DIRECTORY", str(tmp_path))
    assert block.language in CHECKS, "run it, or mark it: <!-- excerpt: why -->"
    CHECKS[block.language](block.text)


SHOWN = [
    block
    for block in LEFT
    if block.language == "console"
    and not block.mark
    and any(output for _, output in COMMAND.findall(block.text))
]


@pytest.mark.parametrize("block", SHOWN, ids=str)
def test_a_command_prints_what_the_page_shows(
    block: Block, ledger: Ledger, redis_url: str, schedules: Path
) -> None:
    job(ledger, "import-orders", every="5m")
    (schedules / "reports.yaml").write_text(
        "# yaml-language-server: $schema=../.schedule.schema.json\njobs: {}\n"
    )
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environ = {"PATH": path, "COLUMNS": "160", "SUPERVISOR_REDIS_URL": redis_url}
    for command, output in COMMAND.findall(block.text):
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=schedules.parent,
            env={**os.environ, **environ},
            capture_output=True,
            text=True,
            check=False,
        )
        written = done.stdout.replace(gethostname(), "host-1").replace(getuser(), "deploy")
        printed = {shape(line) for line in written.splitlines()}
        assert {shape(line) for line in output.splitlines()} <= printed, done.stdout + done.stderr


#: What a line of commands needs and is not here: a project of the reader's, other programs, a
#: terminal that stays open.
ABSENT = re.compile(
    r"^(celery|cp|cat|kill|make|pip|python|docker|helm|kubectl|sudo) |django-celery-beat|--follow"
    r"|supervisor (-A proj )?serve|flaky-fetch|documents|\$RUN"
)

#: A page's names, and those of the test's.
OURS = {"JOB": "import-orders", "/etc/redis/": "", "deploy/": ""}

SCHEDULES = """\
jobs:
  import-orders: {task: proj.import_orders, every: 6h}
  nightly: {task: proj.nightly, cron: "30 2 * * *", kwargs: {day: "2026-03-01"}}
  report-sales: {task: proj.report, every: 1d, queue: reports}
"""

APP = """\
from celery import Celery
from supervisor.app import supervise

app = Celery("proj")
app.conf.beat_schedule = {"tidy": {"task": "proj.tidy", "schedule": 60.0}}
supervise(app, schedules="schedules")


@app.task
def import_orders(): ...


@app.task
def nightly(day): ...


@app.task
def report(tenant=""): ...


@app.task
def tidy(): ...
"""


#: `supervisor` without the second that it takes to start: the test's own process does it, or one
#: that is forked.
CLIENT = """\
#!{python} -IS
import json, socket, sys
with socket.socket(socket.AF_UNIX) as asked:
    asked.connect({address!r})
    said = sys.stdin.read() if "-" in sys.argv else ""
    asked.sendall(json.dumps([sys.argv[1:], said]).encode())
    asked.shutdown(socket.SHUT_WR)
    printed, code = json.loads(asked.makefile().read())
print(printed, end="")
sys.exit(code)
"""


def runnable(block: Block) -> str:
    """The lines of a block that can be run here, with our names."""
    lines = block.text.replace("\\\n", " ").splitlines()
    text = "\n".join(line for line in lines if not ABSENT.search(line))
    for theirs, ours in OURS.items():
        text = re.sub(rf"(?<![\w/]){theirs}", ours, text)
    return text if re.search(r"^(?!#)\w+ ", text, re.M) else ""


RUNNABLE = [block for block in LEFT if block.language == "sh" and runnable(block)]


@contextmanager
def answering(home: Path, environ: dict[str, str]) -> Iterator[Path]:
    """Carries out the calls of CLIENT, one after the other; gives the directory that it is in."""
    programs, address = home / "bin", home / "s"
    programs.mkdir()
    program = programs / "supervisor"
    program.write_text(CLIENT.format(python=sys.executable, address=str(address)))
    program.chmod(0o755)

    def carry_out(given: list[str], said: str) -> tuple[str, int]:
        if "-A" in given:  # an app is for a process of its own
            done = warm.run(["-m", "supervisor", *given], home, {**os.environ, **environ})
            return done.stdout, done.returncode
        result = CliRunner().invoke(main, given, input=said, env=environ)
        finds_nothing = given[0] == "doctor" and result.exit_code == 1  # no beat is running
        return result.output, 0 if finds_nothing else result.exit_code

    def answer() -> None:
        while True:
            caller, _ = listening.accept()
            with caller, caller.makefile("rw") as stream:
                if not (asked := stream.read()):
                    return
                json.dump(carry_out(*json.loads(asked)), stream)

    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(address))
        listening.listen()
        thread = threading.Thread(target=answer)
        thread.start()
        try:
            yield programs
        finally:
            with socket.socket(socket.AF_UNIX) as last:
                last.connect(str(address))
            thread.join()


@pytest.mark.parametrize("block", RUNNABLE, ids=str)
def test_the_commands_of_a_block_do_their_work(
    block: Block, ledger: Ledger, redis_url: str, schedules: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for program in ("curl", "jq"):
        if f"{program} " in block.text:
            needed(program)
    home = schedules.parent
    monkeypatch.chdir(home)
    environ = {"SUPERVISOR_REDIS_URL": redis_url, "SUPERVISOR_SCHEDULES": str(schedules)}
    (schedules / "ours.yaml").write_text(SCHEDULES)
    (home / "proj.py").write_text(APP)
    (home / "docs" / "how-to").mkdir(parents=True)
    (home / "docs" / "how-to" / "users.acl.example").write_text("user beat on >${BEAT_PASSWORD}\n")
    (home / ".curlrc").write_text("fail-with-body\n")
    for name, keys in yaml.safe_load(SCHEDULES)["jobs"].items():
        job(ledger, name, **{"every": None, **keys})
    with ExitStack() as stack:
        programs = stack.enter_context(answering(home, environ))
        text = runnable(block)
        if "curl " in text:
            app = supervise(Celery("proj", broker=redis_url, set_as_current=False))

            @app.task(name="proj.report", shared=False)
            def report(tenant: str) -> None: ...

            server = stack.enter_context(visiting(ledger, Access(TOKEN), app))
            text = text.replace("http://127.0.0.1:9809", str(server.base_url).rstrip("/"))
        triggered = CliRunner().invoke(main, ["trigger", "report-sales", "--json"], env=environ)
        run = json.loads(triggered.output)["results"][0]["run"]
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", re.sub(r"\bRUN\b", run, text)],
            env={
                **os.environ,
                **environ,
                "HOME": str(home),
                "PATH": f"{programs}:{os.environ['PATH']}",
                "SUPERVISOR_TOKEN": TOKEN,
            },
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize(("page", "file"), [(page, file) for (page, _), file in RUN_BY.items()])
def test_what_another_test_runs_is_read_there(page: str, file: str) -> None:
    assert Path(page).name in (ROOT / file).read_text()


def test_the_kill_of_the_page_of_examples_hits_who_started_last(tmp_path: Path) -> None:
    [block] = [one for one in BLOCKS if one.text.startswith("kill -9 \"$(grep 'words#")]
    works = (
        "import sys, time; from examples.witness import witness\n"
        "with witness(f'documents.words#{sys.argv[1]}'): print(flush=True); time.sleep(600)"
    )
    environ = {**os.environ, "SUPERVISOR_EXAMPLES_DIR": str(tmp_path / ".supervisor")}
    workers = []
    for number in "12":
        command = [sys.executable, "-c", works, number]
        worker = subprocess.Popen(command, cwd=ROOT, env=environ, stdout=subprocess.PIPE)
        workers.append(worker)
        assert worker.stdout and worker.stdout.readline()
    try:
        subprocess.run(["bash", "-euc", block.text], cwd=tmp_path, check=True)
        assert workers[1].wait(scaled(10)) == -signal.SIGKILL
        assert workers[0].poll() is None
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()
