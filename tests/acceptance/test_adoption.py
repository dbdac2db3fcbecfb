"""An app that has schedules is adopted, runs them, and is given back to RedBeat's own scheduler."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from redbeat.decoder import RedBeatJSONDecoder
from redis import Redis

from tests.acceptance import warm
from tests.queues import take_all
from tests.waiting import status_of, wait_until

#: As it is before, and after: the line of supervise() is added by `adopted`.
APP = """\
import os
from celery import Celery
from celery.schedules import crontab

app = Celery("shop", broker=os.environ["SHOP_REDIS"])
app.conf.redbeat_redis_url = os.environ["SHOP_REDIS"]
app.conf.beat_scheduler = "redbeat.RedBeatScheduler"
app.conf.beat_max_loop_interval = 1
app.conf.task_routes = {"shop.slow": {"queue": "slow"}}
app.conf.beat_schedule = {
    "often": {"task": "shop.count", "schedule": 1.0, "args": [1]},
    "nightly": {"task": "shop.slow", "schedule": crontab(hour=2, minute=30)},
}
# supervise

@app.task(name="shop.count")
def count(number, **more):
    app.connection_for_write().default_channel.client.rpush(
        "counted", f"{number} {count.request.id} {more}")

@app.task(name="shop.slow")
def slow():
    pass
"""

SAVED = """\
import shop
from celery.schedules import crontab, schedule
from redbeat import RedBeatSchedulerEntry as Entry

app = shop.app
Entry("made later", "shop.count", schedule(1, app=app), args=[2], kwargs={"a": "b"},
      options={"expires": 30}, app=app).save()
Entry("off", "shop.count", crontab(minute="0", app=app), enabled=False, app=app).save()
"""


MORE = "jobs: {nightly: {task: shop.slow, every: 1h}}"


class Shop:
    """A project with a beat_schedule, and entries of RedBeat that it made at run time."""

    def __init__(self, directory: Path, url: str) -> None:
        self.directory = directory
        self.client = Redis.from_url(url, decode_responses=True)
        self.environ = {
            **os.environ,
            "SHOP_REDIS": url,
            "PYTHONPATH": str(directory),
            "SUPERVISOR_LOG_FORMAT": "json",
        }
        self.processes: list[warm.Started] = []
        self.write(APP)
        self.run("-c", SAVED)

    def write(self, text: str) -> None:
        (self.directory / "shop.py").write_text(text)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        done = warm.run(words, self.directory, self.environ)
        assert "Traceback" not in done.stderr, done.stderr
        return done

    def supervisor(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.run("-m", "supervisor", "-A", "shop", *words)

    def start(self, *words: str) -> warm.Started:
        with (self.directory / "log").open("ab") as log:
            words = ("-m", "celery", "-A", "shop", *words)
            process = warm.Started(words, self.directory, self.environ, log, log)
        self.processes.append(process)
        return process

    def stop(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.terminate()
                status_of(process, 60)

    def keys(self) -> set[str]:
        """Without those of Celery's remote control."""
        return {key for key in self.client.scan_iter() if not key.startswith("_kombu")}

    def entries(self) -> dict[str, dict[str, object]]:
        """RedBeat's, by their names."""
        keys = self.client.zrange("redbeat::schedule", 0, -1)
        texts = (self.client.hget(key, "definition") for key in keys)
        found = [json.loads(text or "{}", cls=RedBeatJSONDecoder) for text in texts]
        return {entry["name"]: {**entry, "args": entry["args"] or []} for entry in found}


@pytest.fixture
def shop(tmp_path: Path, redis_url: str) -> Shop:
    return Shop(tmp_path, redis_url)


SUPERVISED = APP.replace(
    "# supervise", 'from supervisor.app import supervise\nsupervise(app, schedules="schedules")'
)


def test_an_app_is_adopted_and_given_back_with_the_jobs_it_had(shop: Shop) -> None:
    try:
        adopt_run_and_release(shop)
    finally:
        shop.stop()


def adopt_run_and_release(shop: Shop) -> None:
    beat = shop.start("beat")  # RedBeat's own
    wait_until(lambda: shop.client.llen("celery") > 2, 60)
    beat.terminate()
    status_of(beat, 60)
    before = shop.entries()
    take_all(shop.client)

    adopted = shop.supervisor("adopt")
    assert "adopted.yaml: 4 jobs" in adopted.stdout
    assert len(adopted.stderr.splitlines()) == 1
    assert "entry: made later" in (shop.directory / "schedules" / "adopted.yaml").read_text()

    shop.write(SUPERVISED)
    assert "4 jobs in 1 file, no problems" in shop.supervisor("check").stdout
    shop.start("beat")
    shop.start("worker", "-Q", "celery,slow", "-c", "2")
    wait_until(lambda: sum("often@" in line for line in counted(shop)) > 2, 90)
    plain = sum("@" not in line for line in counted(shop))  # before the files were loaded
    wait_until(lambda: sum("often@" in line for line in counted(shop)) > 5, 90)
    wait_until(lambda: sum("made-later@" in line for line in counted(shop)) > 2, 90)
    assert sum("@" not in line for line in counted(shop)) == plain, "an entry runs beside its job"
    assert shop.entries().keys() >= {"often", "nightly", "made later", "off"}
    refused = shop.supervisor("release")
    assert (refused.returncode, "these are running" in refused.stderr) == (4, True)
    assert len(shop.entries()) >= 4
    shop.stop()

    shop.client.set("supervisor:of-others", "1")
    dry = shop.supervisor("release", "--dry-run")
    assert dry.returncode == 0, dry.stderr
    assert "RedBeat's entries would be written: 4" in dry.stdout
    assert shop.client.exists("supervisor:jobs")
    released = shop.supervisor("release")
    assert (released.returncode, released.stderr) == (0, "")
    kept = {"supervisor:of-others", "counted", "redbeat::schedule", "redbeat::statics"}
    names = {key.removeprefix("redbeat:") for key in shop.keys() - kept}
    assert names == {"often", "nightly", "made later", "off", *names & {"celery.backend_cleanup"}}
    assert shop.client.function_list() == []

    after = shop.entries()
    for name in ("often", "nightly", "off"):
        assert after[name] == before[name]
    assert after["made later"] == {**before["made later"], "options": {"expires": 30.0}}

    shop.write(APP)
    number = len(counted(shop))
    shop.start("beat")
    wait_until(lambda: shop.client.llen("celery") > 4, 60)
    messages = [json.loads(text) for text in shop.client.lrange("celery", 0, -1)]
    assert {message["headers"]["task"] for message in messages} == {"shop.count"}
    assert not any("@" in message["headers"]["id"] for message in messages)
    assert len(counted(shop)) == number


def counted(shop: Shop) -> list[str]:
    return shop.client.lrange("counted", 0, -1)


def test_a_dry_run_says_what_would_change_and_changes_nothing(shop: Shop) -> None:
    shop.run("-c", SAVED.replace("made later", "made/later"))
    keys = shop.keys()
    done = shop.supervisor("adopt", "--dry-run")
    assert done.returncode == 0
    lines = [line.strip() for line in done.stdout.splitlines()]
    ours = "'supervisor.beat.scheduler:SupervisedScheduler'"
    assert f"beat_scheduler: 'redbeat.RedBeatScheduler' -> {ours}" in lines
    assert "shop.count: of made later, made/later, off, often" in lines
    assert "RedBeat: 3 jobs to be imported" in lines
    assert "beat_schedule: 2 jobs to be imported" in lines
    result = json.loads(shop.supervisor("adopt", "--dry-run", "--json").stdout)
    assert result["tasks"]["shop.count"]["jobs"] == ["made later", "made/later", "off", "often"]
    assert len(result["schedules"]["RedBeat"]["jobs"]) == 3
    assert result["settings"]["beat_scheduler"]["after"] == ours.strip("'")
    assert shop.keys() == keys
    assert not (shop.directory / "schedules").exists()


def test_adopting_again_overwrites_nothing_and_leaves_out_what_is_a_job(shop: Shop) -> None:
    (shop.directory / "schedules").mkdir()
    (shop.directory / "schedules" / "more.yaml").write_text(MORE)
    [written] = json.loads(shop.supervisor("adopt", "--json").stdout)["results"]
    assert (written["name"], len(written["jobs"])) == ("schedules/adopted.yaml", 3)
    dry = shop.supervisor("adopt", "--dry-run")
    assert (dry.returncode, "The app has no schedule that is not a job" in dry.stdout) == (0, True)
    again = shop.supervisor("adopt", "--force")
    assert "adopted.yaml: 3 jobs" in again.stdout
    result = shop.supervisor("adopt", "-o", "schedules/new.yaml")
    assert "nothing was written" in result.stdout
    shop.run("-c", SAVED.replace("made later", "newer"))
    assert "new.yaml: 1 job\n" in shop.supervisor("adopt", "-o", "schedules/new.yaml").stdout
    refused = shop.supervisor("adopt")
    assert (refused.returncode, "--force overwrites it" in refused.stderr) == (4, True)
