"""A Celery app without a web framework: feeds are imported on schedule, and when a program asks."""

import sys
import time

from celery import Celery

from supervisor import current_run, jobs
from supervisor.app import supervise

app = supervise(Celery("proj"), schedules="schedules")

ENTRIES = 40


@app.task
def import_feed(feed):
    for number in range(1, ENTRIES + 1):
        time.sleep(1)  # stands for a download
        if run := current_run():
            run.progress(number, ENTRIES, f"entries of {feed}")
    return ENTRIES


if __name__ == "__main__":
    run = jobs.trigger("import-feed", kwargs={"feed": sys.argv[1]}, app=app)
    sys.stdout.write(f"{run}\n")
