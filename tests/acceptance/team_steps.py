"""Tasks of the team that are steps: beside the app's module when the tests deploy it."""

import os
import signal
import time
from pathlib import Path

from team import app, sign

from supervisor import current_run
from supervisor.ledger.ledger import Ledger

HERE = Path(__file__).parent

finish = Ledger.finish


def fault_of(run_id, when):
    """Asked for by a test: `<run>.<step>.<when>`, once."""
    flag = HERE / f"{run_id.replace('~', '.')}.{when}"
    try:
        flag.rename(f"{flag}.done")
    except FileNotFoundError:
        return
    if (HERE / f"{flag}.done").read_text() == "worker":
        os.kill(os.getppid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def finish_with_faults(self, run_id, *arguments, **more):
    fault_of(run_id, "before")
    finished = finish(self, run_id, *arguments, **more)
    fault_of(run_id, "after")
    return finished


Ledger.finish = finish_with_faults


@app.task(bind=True)
def extract(self, tree="."):
    sign("start", self)
    sign("end", self)
    return {"files": [f"{tree}/{name}" for name in ("a", "b", "c")]}


@app.task(bind=True)
def convert(self, files, suffix):
    sign("start", self)
    sign("end", self)
    return {"converted": [f"{file}.{suffix}" for file in files]}


@app.task(bind=True)
def return_no_json(self):
    """Returns what no JSON can hold."""
    sign("start", self)
    return {"files": HERE.open}


@app.task(bind=True)
def index(self):
    sign("start", self)
    sign("end", self)
    (HERE / "index.txt").write_text(" ".join(current_run().params["converted"]))


@app.task(bind=True)
def words(self, file, tree, seconds=0.0):
    run = current_run()
    sign("start", self)
    time.sleep(seconds)
    if file == "bad":
        raise ValueError("a bad file")
    with (HERE / "words.txt").open("a") as out:
        out.write(f"{run.item} {file} {tree}\n")
    sign("end", self)


@app.task(bind=True)
def note(self):
    """Any step."""
    sign("start", self)
    sign("end", self)


@app.task(bind=True)
def slow(self, seconds=60):
    sign("start", self)
    time.sleep(seconds)
    sign("end", self)
