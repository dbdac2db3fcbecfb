"""A shop whose transactions trigger runs, with a beat and a worker of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from supervisor.deploy.embedded import EmbeddedServer
from tests.acceptance.project import Project
from tests.conftest import emptied
from tests.waiting import wait_until

#: The team's own code: a table, and a task that fails when it does not see its row.
SHOP = """
import sqlite3
from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

DATABASE = Path(__file__).with_name("orders.db")

class Base(DeclarativeBase): ...

class Order(Base):
    __tablename__ = "orders"
    number: Mapped[int] = mapped_column(primary_key=True)
    run: Mapped[str]

@app.task(bind=True)
def ship(self, number):
    with contextlib.closing(sqlite3.connect(DATABASE)) as connection:
        [(run,)] = connection.execute("SELECT run FROM orders WHERE number = ?", (number,))
    assert run == current_run().run_id
    sign("start", self)

@app.task(guard={"overlap": "queue_all"}, bind=True)
def pack(self, number):
    ship.run(number)
"""

#: A caller's program: one transaction for each order; those with an odd number are given up.
ORDER = """
from supervisor.integrations.sqlalchemy import trigger_on_commit
engine = team.create_engine(f"sqlite:///{team.DATABASE}")
team.Base.metadata.create_all(engine)
told = []
for number in range(4):
    with team.Session(engine) as session:
        run = trigger_on_commit(session, WHAT, (number,))
        session.add(team.Order(number=number, run=run))
        session.flush()
        if number % 2:
            session.rollback()
        else:
            session.commit()
    told.append(run)
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def team(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    project = Project(tmp_path_factory.mktemp("team"), f"{server.url.rsplit('/', 1)[0]}/13")
    emptied(project.url)
    with (project.directory / "team.py").open("a") as module:
        module.write(SHOP)
    project.schedule("jobs: {shipping: {task: team.ship, cron: '0 0 1 1 *', overlap: queue_all}}")
    try:
        project.beat()
        project.worker()
        wait_until(lambda: "shipping" in project.ledger.scheduled(), 20)
        yield project
    finally:
        project.stop()


@pytest.mark.parametrize(("what", "job"), [("'shipping'", "shipping"), ("team.pack", "team.pack")])
def test_only_a_committed_transaction_triggers_a_run_that_sees_its_row(
    team: Project, what: str, job: str
) -> None:
    (team.directory / "orders.db").unlink(missing_ok=True)
    zero, _, two, _ = team.code(ORDER.replace("WHAT", what))
    for run in (zero, two):
        team.run_when(run, "succeeded")
    assert {run.id for run in team.ledger.history(job)} == {zero, two}
    assert sorted(sign.run for sign in team.starts(job)) == sorted([zero, two])
