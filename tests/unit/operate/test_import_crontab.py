from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.errors import NotTranslatable
from supervisor.files.import_text import Found, Item, LeftOut, Remark, write
from supervisor.files.schedule_files import load
from supervisor.files.yaml_source import read as read_yaml
from supervisor.operate.import_crontab import name_of, read_crontab, shell_text

DEBIAN = """\
# /etc/crontab: system-wide crontab

SHELL=/bin/sh
MAILTO=""
# Example of job definition:
# .---------------- minute (0 - 59)
# |  .------------- hour (0 - 23)
# *  *  *  *  * user-name command to be executed
17 *\t* * *\troot\tcd / && run-parts --report /etc/cron.hourly
25 6\t* * *\troot\ttest -x /usr/sbin/anacron || { cd / && run-parts --report /etc/cron.daily; }
"""


def read(text: str, *, system: bool = False, timezone: str = "UTC") -> list[Item]:
    return read_crontab(text, file="tab", task="shell.run", timezone=timezone, system=system)


def only(text: str) -> Found:
    (item,) = read(text)
    assert isinstance(item, Found), item
    return item


def why(line: str) -> str:
    (item,) = read(line)
    assert isinstance(item, LeftOut), item
    assert (item.source, item.original) == ("tab:1", [line])
    return item.why


def test_a_line_becomes_a_job_of_the_given_task() -> None:
    job = only("*/5  8-18 * * MON-FRI   /opt/sync --all")
    assert job.source == "tab:1"
    assert job.name == "sync"
    assert job.values["task"] == "shell.run"
    assert job.values["cron"] == "*/5 8-18 * * MON-FRI"
    assert job.values["kwargs"] == {"command": "/opt/sync --all"}


@pytest.mark.parametrize("nickname", ["@hourly", "@daily", "@Midnight", "@weekly", "@annually"])
def test_nicknames_are_kept(nickname: str) -> None:
    assert only(f"{nickname} x").values["cron"] == nickname.lower()


def test_a_comment_right_above_a_job_is_its_description() -> None:
    job = only("# Backs up the shop,\n#   every night.\n30 2 * * * backup")
    assert job.values["description"] == "Backs up the shop, every night."


def test_a_comment_describes_one_job_only() -> None:
    first, second = read("# Backs up.\n0 1 * * * a\n0 2 * * * b")
    assert isinstance(first, Found) and isinstance(second, Found)
    assert (first.values["description"], second.values["description"]) == ("Backs up.", "")


@pytest.mark.parametrize(
    "comment",
    [
        "# of its own\n",
        "# m h  dom mon dow   command",
        "# 0 5 * * * /bin/switched-off",
        "# @reboot /bin/switched-off",
        "# " + 300 * "long ",
    ],
)
def test_other_comments_stay_comments(comment: str) -> None:
    remark, job = read(f"{comment}\n0 1 * * * a")
    assert remark == Remark([comment[2:].strip()])
    assert isinstance(job, Found)
    assert job.values["description"] == ""


def test_a_zone_holds_for_the_lines_below_it() -> None:
    first, second, third = read(
        "0 1 * * * a\nCRON_TZ=Europe/Berlin\n0 1 * * * b\nCRON_TZ=\n0 1 * * * c",
        timezone="America/New_York",
    )
    zones = [job.values["timezone"] for job in (first, second, third) if isinstance(job, Found)]
    assert zones == ["America/New_York", "Europe/Berlin", "America/New_York"]


def test_tz_is_a_zone_with_a_remark_and_gives_way_to_cron_tz() -> None:
    remark, before, after = read('TZ="Asia/Tokyo"\n0 1 * * * a\nCRON_TZ=UTC\n0 1 * * * b')
    assert isinstance(remark, Remark) and "Debian" in remark.lines[1]
    assert isinstance(before, Found) and before.values["timezone"] == "Asia/Tokyo"
    assert isinstance(after, Found) and after.values["timezone"] == "UTC"


@pytest.mark.parametrize("line", ["PATH=/bin:/usr/bin", "MAILTO=root", "SHELL = /bin/bash"])
def test_what_commands_no_longer_get_is_reported(line: str) -> None:
    assert why(line).startswith(line.split("=")[0].strip())


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("0 1 * * * echo a%b", "bare %"),
        ("5/15 * * * * x", "single value"),
        ("0 1 * * 1,mon/2 x", "single value"),
        ("0~30 * * * * x", "minute field"),
        ("*/90 * * * * x", "use 'every'"),
        ("0 0 31 2 * x", "never fires"),
        ("@fortnightly x", "not a known nickname"),
        ("just words", "neither"),
    ],
)
def test_what_cannot_be_translated_says_why(line: str, reason: str) -> None:
    assert reason in why(line)


def test_escaped_percent_signs_are_percent_signs() -> None:
    assert shell_text(r"date +\%F >> \\x") == r"date +%F >> \\x"
    with pytest.raises(NotTranslatable):
        shell_text(r"date +\\%F")


def test_a_system_crontab_has_a_user_column() -> None:
    items = [item for item in read(DEBIAN, system=True) if isinstance(item, Found)]
    assert [item.comments for item in items] == [["tab:9, as user root"], ["tab:10, as user root"]]
    assert [item.name for item in items] == ["run-parts-cron.hourly", "run-parts-cron.daily"]
    assert items[0].values["kwargs"] == {"command": "cd / && run-parts --report /etc/cron.hourly"}
    assert items[0].values["description"] == ""


def test_lines_may_end_as_on_windows() -> None:
    assert only("0 1 * * * x\r\n").values["kwargs"] == {"command": "x"}


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("/opt/shop/bin/backup.sh full >> /var/log/backup.log 2>&1", "backup-full"),
        ("cd /srv/app && . venv/bin/activate && python manage.py clearsessions", None),
        ("FOO=1 nice -n 10 python3 manage.py clearsessions --all", "manage-clearsessions"),
        ("python3.11 -m shop.reports daily", "shop.reports-daily"),
        ("bash -c 'echo hello'", "bash"),
        ("curl -fsS https://example.org/ping", "curl"),
        ("[ -x /usr/bin/certbot ] && certbot -q renew", "certbot-renew"),
        ("( sleep 5; rm -rf /var/cache/* )", "rm"),
        ("echo 'unbalanced", "echo"),
        ("true", "true"),
        ("cd /", "command"),
    ],
)
def test_a_job_is_named_as_a_person_would_name_it(command: str, name: str | None) -> None:
    assert name_of(command) == (name or "manage-clearsessions")


def test_what_is_written_loads_with_unique_names(tmp_path: Path) -> None:
    text = DEBIAN + '0 1 * * *\tshop\tbackup full\n0 2 * * *\tshop\tbackup full\n@reboot root "x"\n'
    text += "0~30 * * * * root y\n"
    written = write(["Imported."], read(text, system=True))
    (tmp_path / "jobs.yaml").write_text(written.text)
    specs = load(tmp_path / "jobs.yaml").specs
    assert list(specs) == [
        "run-parts-cron.hourly",
        "run-parts-cron.daily",
        "backup-full",
        "backup-full-2",
        "x",
    ]
    assert (specs["x"].run_at_start, specs["x"].cron) == (True, None)
    assert written.reports == [
        "tab:14: not translated: '0~30 * * * *': '0~30' is not valid in the minute field; "
        "it may hold 0-59"
    ]
    assert "  #   0~30 * * * * root y\n" in written.text


WORDS = ["0", "*", "*/5", "1-5", "@daily", "%", "\\%", "#", "=", "TZ", "'", '"', "root", "&&", "x"]


@given(
    st.lists(st.lists(st.sampled_from(WORDS), max_size=9).map(" ".join) | st.text()), st.booleans()
)
def test_any_text_gives_a_file_that_can_be_read(lines: list[str], system: bool) -> None:
    written = write([], read("\n".join(lines), system=system))
    document = read_yaml(written.text)
    assert document.faults == []
    assert list(document.data["jobs"]) == written.jobs
