"""Calls to other services in greenlets, and work of the CPU in processes."""

import facts
from celery import Celery

app = Celery("mixed")
app.config_from_object("settings")
app.conf.task_routes = {"io.*": {"queue": "io"}}
facts.supervised(app)


@app.task(bind=True, name="io.fetch")
def fetch(self, number):
    import time

    time.sleep(0.2)  # gevent's own, in its worker
    return {**facts.seen(self), "sleep": time.sleep.__module__}


@app.task(bind=True, name="work")
def work(self):
    return facts.seen(self)


def calls():
    return {"work": work.s(), **{f"fetch {number}": fetch.s(number) for number in range(10)}}
