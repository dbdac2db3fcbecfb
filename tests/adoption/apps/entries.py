"""RedBeat: its settings in capitals, a schedule of its own, and entries made while it runs."""

import os
from pathlib import Path

import facts
from celery import Celery

app = Celery("entries")
app.config_from_object("settings")
app.conf.update(
    REDBEAT_REDIS_URL=os.environ["FOREIGN_REDIS"],
    REDBEAT_KEY_PREFIX="entries:",
    REDBEAT_LOCK_TIMEOUT=30,
    beat_scheduler="redbeat.RedBeatScheduler",
    beat_max_loop_interval=1,
    beat_schedule={"static": {"task": "tick", "schedule": 2.0, "args": ("static",)}},
)
facts.supervised(app)


@app.task(bind=True, name="tick")
def tick(self, word):
    with Path("witness").open("a") as file:
        file.write(f"{word} {self.request.headers} {self.request.delivery_info['routing_key']}\n")


@app.task(bind=True, name="seen")
def seen(self):
    return facts.seen(self)


def calls():
    return {"seen": seen.s()}
