"""What rendering does to a directory that is not empty."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.render.directory import Difference, ForeignFile, difference, write
from supervisor.render.templating import marker

MINE = f"{marker('systemd')}\n"


def test_files_are_added_changed_and_removed_and_a_second_time_nothing_is(tmp_path: Path) -> None:
    write(tmp_path, "systemd", {"a": MINE, "gone.d/b": MINE})
    files = {"a": f"{MINE}new\n", "c": MINE}
    expected = Difference(added=("c",), changed=("a",), removed=("gone.d/b",))
    assert difference(tmp_path, "systemd", files) == expected
    assert write(tmp_path, "systemd", files) == expected
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "c"]
    assert (tmp_path / "a").read_text() == f"{MINE}new\n"
    assert not write(tmp_path, "systemd", files)


def test_foreign_files_and_their_folders_stay(tmp_path: Path) -> None:
    write(tmp_path, "systemd", {"x.d/a": MINE})
    (tmp_path / "x.d" / "theirs").write_text("theirs\n")
    (tmp_path / "other").write_text(f"{marker('compose')}\n")
    write(tmp_path, "systemd", {})
    assert (tmp_path / "x.d" / "theirs").read_text() == "theirs\n"
    assert (tmp_path / "other").exists()
    assert not (tmp_path / "x.d" / "a").exists()


def test_a_foreign_file_in_the_way_stops_it_before_anything_is_written(tmp_path: Path) -> None:
    (tmp_path / "b").write_text("theirs\n")
    with pytest.raises(ForeignFile):
        write(tmp_path, "systemd", {"a": MINE, "b": MINE})
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_a_link_is_foreign(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.write_text(MINE)
    out = tmp_path / "out"
    out.mkdir()
    (out / "a").symlink_to(theirs)
    with pytest.raises(ForeignFile):
        write(out, "systemd", {"a": f"{MINE}new\n"})
    assert theirs.read_text() == MINE
