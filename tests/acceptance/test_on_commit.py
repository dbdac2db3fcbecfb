"""A shop whose transactions trigger runs, with a beat and a worker of its own."""

from __future__ import annotations

import pytest

from tests.acceptance.project import Project

#: The team's own code: a table, and a task that fails when it does not see its row.
SETTINGS = """
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

JOBS = "jobs: {shipping: {task: team.ship, cron: '0 0 1 1 *', overlap: queue_all}}"

#: A caller's program: one transaction for each order; those with an odd number are given up.
ORDER = """
from supervisor.features.on_commit.sqlalchemy import trigger_on_commit
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


@pytest.mark.parametrize(("what", "job"), [("'shipping'", "shipping"), ("team.pack", "team.pack")])
def test_a_transaction_that_commits_triggers_one_run(team: Project, what: str, job: str) -> None:
    (team.directory / "orders.db").unlink(missing_ok=True)
    zero, _, two, _ = team.code(ORDER.replace("WHAT", what))
    for run in (zero, two):
        team.run_when(run, "succeeded")
    assert {run.id for run in team.ledger.history(job)} == {zero, two}
    assert sorted(sign.run for sign in team.starts(job)) == sorted([zero, two])
