"""Schedule files in a ConfigMap: the same jobs, and an edit of it is noticed."""

from __future__ import annotations

from pathlib import Path
from shutil import rmtree

import pytest
import yaml

from supervisor.beat.watching import Watching
from supervisor.catalog.schedule_files import load
from supervisor.deploy import targets
from supervisor.deploy.directory import texts_of
from supervisor.errors import SupervisorError
from tests.tools.deploy.jobs import ROOT, plan_of
from tests.waiting import wait_until

JOB = "jobs: {a: {task: t, cron: '0 3 * * *'}}\n"


def config_map(directory: Path) -> dict[str, str]:
    text = targets.render_helm(plan_of(), texts_of(directory))["jobs.yaml"]
    return yaml.safe_load(text)["schedules"]  # type: ignore[no-any-return]


def mount(directory: Path, data: dict[str, str], version: str) -> None:
    """As a kubelet does: a new folder, and one link that is exchanged."""
    (directory / version).mkdir(parents=True)
    for name, text in data.items():
        (directory / version / name).write_text(text)
        if not (directory / name).is_symlink():
            (directory / name).symlink_to(f"..data/{name}")
    (directory / "..data_tmp").symlink_to(version)
    (directory / "..data_tmp").rename(directory / "..data")


def test_the_config_map_holds_the_jobs_of_the_examples(tmp_path: Path) -> None:
    mount(tmp_path / "mounted", config_map(ROOT / "schedules"), "..1")
    assert load(tmp_path / "mounted").digest == load(ROOT / "schedules").digest


def test_only_schedule_files_go_in(schedules: Path) -> None:
    (schedules / "jobs.yaml").write_text(JOB)
    (schedules / ".jobs.yaml.swp").write_text("")
    (schedules / "picture.png").write_bytes(b"\xff\xfe\xff")
    (schedules / "secrets.env").write_text("PASSWORD=hunter2\n")
    (schedules / "notes.txt").symlink_to("/etc/passwd")
    (schedules / "env.txt").symlink_to("/proc/self/environ")
    assert config_map(schedules).keys() == {"jobs.yaml"}


def test_a_mounted_config_map_gives_the_same_config_map(tmp_path: Path) -> None:
    """Its files are links, all of them inside the directory."""
    data = {"jobs.yaml": JOB, "more.yaml": "jobs: {}\n"}
    mount(tmp_path / "mounted", data, "..1")
    assert texts_of(tmp_path / "mounted") == data


def test_one_file_brings_no_other_file(schedules: Path) -> None:
    (schedules / "jobs.yaml").write_text(JOB)
    (schedules / "other.yaml").write_text("jobs: {}\n")
    assert texts_of(schedules / "jobs.yaml").keys() == {"jobs.yaml"}


def test_a_name_that_no_config_map_can_hold_is_named(schedules: Path) -> None:
    name = "f\u00eates.yaml"
    (schedules / name).write_text(JOB)
    with pytest.raises(SupervisorError, match=name):
        texts_of(schedules)


def test_what_is_too_large_is_refused(schedules: Path) -> None:
    (schedules / "jobs.yaml").write_text("jobs: {}\n" + "# x\n" * 250_000)
    with pytest.raises(SupervisorError, match="too many"):
        texts_of(schedules)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("jobs: {}\n", id="plain"),
        pytest.param("jobs: {}", id="no-end-of-line"),
        pytest.param("\n\njobs: {}\n\n\n", id="empty-lines"),
        pytest.param("  \njobs: {} # \t tab\n", id="blanks"),
        pytest.param("# {{ braces }} and 'quotes' \"too\"\r\njobs: {}\r\n", id="foreign-ends"),
        pytest.param("# \u00fc\u2028\u0085\ufeff\njobs: {}\n", id="odd-characters"),
        pytest.param("  # indented\njobs: {}\n", id="indented"),
    ],
)
def test_every_character_of_a_file_arrives(schedules: Path, text: str) -> None:
    (schedules / "jobs.yaml").write_text(text, newline="")
    assert config_map(schedules)["jobs.yaml"] == text


def test_exchanging_the_link_is_noticed_and_the_new_jobs_are_read(tmp_path: Path) -> None:
    mounted = tmp_path / "mounted"
    mount(mounted, {"jobs.yaml": "jobs: {old: {task: t, every: 1m}}\n"}, "..1")
    watching = Watching(mounted)
    assert watching.has_changed()
    assert not watching.has_changed()
    assert set(load(mounted).specs) == {"old"}
    mount(mounted, {"jobs.yaml": "jobs: {new: {task: t, every: 1m}}\n"}, "..2")
    wait_until(watching.has_changed)
    assert set(load(mounted).specs) == {"new"}


@pytest.mark.parametrize("name", ["schedules", ".venv/schedules"])
def test_a_directory_that_was_removed_and_made_again_is_followed(tmp_path: Path, name: str) -> None:
    directory = tmp_path / name
    directory.mkdir(parents=True)
    watching = Watching(directory)
    assert watching.has_changed()
    for number in range(5):
        rmtree(directory)
        directory.mkdir()
        (directory / "jobs.yaml").write_text(f"# {number}\n")
        assert [watching.has_changed() for _ in range(3)] == [False, True, False]
