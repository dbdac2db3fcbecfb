"""Pickles, signed by Celery's `auth` serializer."""

import subprocess
from pathlib import Path

import facts
from celery import Celery

if not Path("key.pem").exists():
    # The serial number is in each message: a random one's length would differ between two keys.
    make = (
        "openssl req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem"
        " -subj /CN=signed -set_serial 1"
    )
    subprocess.run(make.split(), check=True, capture_output=True)

app = Celery("signed")
app.config_from_object("settings")
app.conf.update(
    security_key="key.pem",
    security_certificate="cert.pem",
    security_cert_store="cert.pem",
    security_digest="sha256",
    task_serializer="auth",
    event_serializer="auth",
    accept_content=["auth"],
    result_accept_content=["json"],
)
app.setup_security(serializer="pickle")
facts.supervised(app)


@app.task(bind=True, name="measure")
def measure(self, numbers):
    return {**facts.seen(self), "type": type(numbers).__name__, "sum": sum(numbers)}


def calls():
    return {"a set": measure.s({1, 2, 3})}
