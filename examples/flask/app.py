"""A Flask app and its Celery app, as Flask's own pages make them, and one line more."""

import time

from celery import Celery, Task
from flask import Flask, current_app

from supervisor import start
from supervisor.app import supervise


def celery_init_app(app):
    class FlaskTask(Task):
        def __call__(self, *args, **kwargs):
            with app.app_context():
                return self.run(*args, **kwargs)

    celery_app = Celery(app.name, task_cls=FlaskTask)
    celery_app.config_from_object(app.config["CELERY"])
    supervise(celery_app, schedules="schedules")
    celery_app.set_default()
    app.extensions["celery"] = celery_app
    return celery_app


app = Flask(__name__)
app.config.from_mapping(SENDER="news@example.com", CELERY={"task_ignore_result": True})
celery_app = celery_init_app(app)


@celery_app.task
def write(subject):
    time.sleep(40)  # stands for the work
    return {"readers": [f"reader-{number}@example.com" for number in range(3)]}


@celery_app.task
def send(reader, subject):
    current_app.logger.warning("%s -> %s: %s", current_app.config["SENDER"], reader, subject)


@celery_app.task
def count_readers():
    return 3


@app.post("/newsletters/<subject>")
def order_newsletter(subject):
    """Has a letter written and sent. A letter that is requested twice is sent once."""
    sending = {"task": send, "priority": 1, "foreach": "readers", "on_item_failure": "ignore"}
    run = start(
        [(write, 2), sending],
        params={"subject": subject},
        job="newsletter",
        run_id=f"newsletter@{subject}",
        app=celery_app,
    )
    return {"run": run}, 202
