"""One real server a session; each test has a database of its own on it."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module, metadata
from itertools import count
from pathlib import Path

import pytest
from celery import Celery, _state
from hypothesis import settings as hypothesis_settings
from pytest_timeout import Settings as TestTimeout
from pytest_timeout import timeout_sigalrm

from supervisor.app import supervise
from supervisor.beat.watchdog import Watchdog
from supervisor.catalog.entries import Entries
from supervisor.ledger.ledger import Ledger
from supervisor.settings import Settings
from supervisor.testing import EmbeddedServer, empty
from tests.commands import Supervisor, supervisor_at
from tests.proxy import Proxy, proxy_to
from tests.waiting import Deadline

TESTS = Path(__file__).parent

#: Machines are slow when they are busy, and no claim of ours.
hypothesis_settings.register_profile("patient", deadline=None)
hypothesis_settings.load_profile("patient")

#: For tests that start empty. Those from there to the sixteenth are for what a module shares.
DATABASES = 8
_used = count()


#: How often it is looked whether a test has had its time.
POLL_SECONDS = 5.0


def pytest_timeout_set_timer(item: pytest.Item, settings: TestTimeout) -> bool:
    """A test's own time-out grows with how busy the machine is, as all deadlines in it."""
    deadline = Deadline(settings.timeout)

    def cancel() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)

    def look(*_: object) -> None:
        if deadline.is_over():
            cancel()
            timeout_sigalrm(item, settings)

    item.cancel_timeout = cancel  # type: ignore[attr-defined]
    signal.signal(signal.SIGALRM, look)
    every = min(POLL_SECONDS, settings.timeout)
    signal.setitimer(signal.ITIMER_REAL, every, every)
    return True


#: What is imported and collected is no garbage.
gc.disable()

#: A grammar of IRIs that jsonschema imports for a format that none of ours has, in 1.5 s.
sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]

#: redis-py reads its own version from the disk for each connection, a third of many tests' time.
metadata.version = cache(metadata.version)


#: Directories whose files take long, most of it waiting: `make test` begins with them, so that
#: small files are left for the processes that are done with theirs.
FIRST = ("acceptance", "tools/web", "tools/deploy", "hosts", "alerts")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Of the processes of a whole run each imports a part of the files before it collects all.

    What pytest makes of a file's assertions is kept beside it, and takes longer than to import it:
    in a new checkout each process would do so for every file.
    """
    config, worker = session.config, getattr(session.config, "workerinput", None)
    if worker is None or [Path(each).resolve() for each in config.args] != [TESTS]:
        return
    left_out = [config.rootpath / name for name in config.getoption("ignore") or ()]
    files = sorted(
        path
        for path in TESTS.rglob("test_*.py")
        if not any(path.is_relative_to(other) for other in left_out)
    )
    for path in files[int(worker["workerid"].removeprefix("gw")) :: worker["workercount"]]:
        with suppress(Exception):  # which the collection reports
            import_module(".".join(path.relative_to(TESTS.parent).with_suffix("").parts))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def turn(item: pytest.Item) -> int:
        path = item.path.relative_to(TESTS)
        return next((n for n, first in enumerate(FIRST) if path.is_relative_to(first)), len(FIRST))

    items.sort(key=turn)


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def clean_environment() -> None:
    for name in [name for name in os.environ if name.startswith(("SUPERVISOR_", "CELERY_"))]:
        del os.environ[name]
    # A worker that one test killed is no other's to report; a project has a directory of its own.
    os.environ["SUPERVISOR_LOCK_DIR"] = ""
    # Of the hundreds of processes that tests start, none is to compile the package anew.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


@pytest.fixture(scope="session", autouse=True)
def heard_interrupts() -> None:
    """A shell has its background jobs ignore Ctrl-C, and they hand that on to what they start."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def apps_forgotten() -> Iterator[None]:
    """Celery knows which app is the current one, and gives each later app the tasks of those
    before: what one test made would be found by another, if both are run by one process."""
    shared, current = set(_state._on_app_finalizers), _state._tls.current_app
    default = _state.default_app
    yield
    _state._on_app_finalizers.intersection_update(shared)
    _state._tls.current_app, _state.default_app = current, default


@pytest.fixture(scope="module", autouse=True)
def no_app_of_another_file() -> Iterator[None]:
    with apps_forgotten():
        yield


@pytest.fixture(autouse=True)
def no_app_of_another_test() -> Iterator[None]:
    with apps_forgotten():
        yield


@pytest.fixture(autouse=True)
def no_watchdog_left() -> Iterator[None]:
    """A beat that a test did not close would end this whole process two minutes later."""
    before = threading.enumerate()
    yield
    after = [thread for thread in threading.enumerate() if thread not in before]
    left = [thread for thread in after if isinstance(thread, Watchdog)]
    for watchdog in left:
        watchdog.stop()
    assert left == []


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(tmp_path_factory.mktemp("valkey")) as running:
        yield running


@pytest.fixture
def redis_url(server: EmbeddedServer) -> str:
    """An empty database; the tests of a session take turns on them."""
    url = database(server.url, next(_used) % DATABASES)
    emptied(url)
    return url


def database(server_url: str, number: int) -> str:
    return f"{server_url.rpartition('/')[0]}/{number}"


def emptied(url: str) -> None:
    empty(cleaner(url))


@cache
def cleaner(url: str) -> Ledger:
    """One for each database: most tests begin with an empty one."""
    return Ledger.open(Settings(redis_url=url))


@pytest.fixture
def way(redis_url: str) -> Iterator[Proxy]:
    """To the test's database: it may be cut, or replies may be lost on it."""
    with proxy_to(redis_url) as proxy:
        yield proxy


@pytest.fixture
def settings(redis_url: str) -> Settings:
    return Settings(redis_url=redis_url)


@pytest.fixture
def ledger(settings: Settings) -> Iterator[Ledger]:
    opened = Ledger.open(settings)
    yield opened
    opened.client.close()


@pytest.fixture
def supervisor(redis_url: str) -> Supervisor:
    """The command line on the test's ledger."""
    return supervisor_at(redis_url)


@pytest.fixture
def app(redis_url: str, ledger: Ledger) -> Iterator[Celery]:
    """A supervised app on the test's ledger, without tasks."""
    with supervise(Celery("proj", broker=redis_url, set_as_current=False)) as made:
        yield made


@pytest.fixture
def entries(ledger: Ledger, app: Celery) -> Entries:
    return Entries(app, ledger)


@pytest.fixture
def schedules(tmp_path: Path) -> Path:
    directory = tmp_path / "schedules"
    directory.mkdir()
    return directory
