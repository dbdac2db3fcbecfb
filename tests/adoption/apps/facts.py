"""What a task of a foreign app sees of itself, and the one line that is added to the app."""

import os


def supervised(app):
    """The one line; each app runs without it too."""
    if os.environ.get("SUPERVISED"):
        from supervisor.app import supervise

        supervise(app, schedules="schedules")
    return app


SEEN = (
    *(
        "args",
        "kwargs",
        "delivery_info",
        "expires",
        "timelimit",
        "headers",
        "callbacks",
        "errbacks",
    ),
    *("chain", "chord", "group", "retries", "is_eager", "called_directly", "ignore_result"),
    *("reply_to", "shadow", "stamps", "replaced_task_nesting", "argsrepr", "kwargsrepr"),
)

#: Without `track_started`: of a task that is a job the guard stores STARTED, of all its calls.
OWN = (
    *("name", "acks_late", "acks_on_failure_or_timeout", "ignore_result", "max_retries"),
    *("rate_limit", "reject_on_worker_lost", "send_events", "serializer", "soft_time_limit"),
    *("store_errors_even_if_ignored", "time_limit", "typing", "priority"),
)


def classes(of):
    """Names of the classes that are the app's own or Celery's.

    The guard of a task that is a job is a class with the name of the task's own.
    """
    found = (f"{each.__module__}.{each.__qualname__}" for each in of.__mro__)
    return list(dict.fromkeys(name for name in found if not name.startswith("supervisor.")))


def seen(task):
    """For a bound task to return."""
    request = task.request
    own = {name: getattr(task, name) for name in OWN}
    return {
        "classes": classes(type(task)),
        "backend": type(task.backend).__name__,
        **{name: str(value) for name, value in own.items()},
        **{f"request.{name}": repr(request.get(name)) for name in SEEN},
    }
