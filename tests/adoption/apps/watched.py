"""An app with Sentry, whose events go to a file, and with events for what watches its workers."""

import json
from pathlib import Path

import facts
import sentry_sdk
from celery import Celery
from sentry_sdk.integrations.celery import CeleryIntegration
from sentry_sdk.transport import Transport


class ToFile(Transport):
    def capture_envelope(self, envelope):
        for item in envelope.items:
            event = item.payload.json
            if event and item.type in ("event", "transaction"):
                values = event.get("exception", {}).get("values", [])
                errors = [f"{value['type']}: {value['value']}" for value in values]
                line = [item.type, event.get("transaction"), errors, event.get("tags")]
                with Path("sentry").open("a") as file:
                    file.write(json.dumps(line) + "\n")


sentry_sdk.init(
    dsn="http://key@127.0.0.1:1/1",
    transport=ToFile,
    traces_sample_rate=1.0,
    integrations=[CeleryIntegration(monitor_beat_tasks=True)],
)

app = Celery("watched")
app.config_from_object("settings")
app.conf.update(worker_send_task_events=True, task_send_sent_event=True)
facts.supervised(app)


@app.task(bind=True, name="works")
def works(self):
    return facts.seen(self)


@app.task(name="breaks")
def breaks():
    raise LookupError("not there")


def calls():
    return {"works": works.s(), "breaks": breaks.s()}
