"""Tasks and results are msgpack, and JSON and YAML are taken."""

import datetime

import facts
from celery import Celery

app = Celery("packed")
app.config_from_object("settings")
app.conf.update(
    accept_content=["msgpack", "json", "yaml"],
    task_serializer="msgpack",
    result_serializer="msgpack",
)
facts.supervised(app)


@app.task(bind=True, name="blob")
def blob(self, data):
    return {**facts.seen(self), "data": bytes(data), "type": type(data).__name__}


@app.task(bind=True, name="plain", serializer="json")
def plain(self, at):
    return facts.seen(self)


@app.task(bind=True, name="text")
def text(self, words):
    return facts.seen(self)


def calls():
    return {
        "blob": blob.s(b"\x00\xff"),
        "plain": plain.s(str(datetime.date(2026, 1, 2))),
        "text": text.signature((["a"],), serializer="yaml"),
    }
