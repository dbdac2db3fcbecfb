"""A Flask app whose tasks run in its context."""

import os

import facts
from celery import Celery, Task
from flask import Flask, current_app


def celery_init_app(flask):
    class FlaskTask(Task):
        def __call__(self, *args, **kwargs):
            with flask.app_context():
                return self.run(*args, **kwargs)

    made = Celery(flask.name, task_cls=FlaskTask)
    made.config_from_object(flask.config["CELERY"])
    facts.supervised(made)
    made.set_default()
    flask.extensions["celery"] = made
    return made


flask = Flask("web")
flask.config.from_mapping(
    CELERY={
        "broker_url": os.environ["FOREIGN_REDIS"],
        "result_backend": os.environ["FOREIGN_REDIS"],
        "task_ignore_result": False,
    },
    GREETING="hello",
)
app = celery_init_app(flask)


@app.task(bind=True, name="greet")
def greet(self):
    return {**facts.seen(self), "greeting": current_app.config["GREETING"]}


def calls():
    return {"greet": greet.s()}
