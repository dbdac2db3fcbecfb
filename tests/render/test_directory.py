"""What rendering does to a directory that is not empty."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from supervisor.deploy.directory import Difference, ForeignFile, difference, write


def test_files_are_added_changed_and_removed_once(tmp_path: Path) -> None:
    write(tmp_path, "systemd", {"a": "old\n", "gone.d/b": "old\n"})
    files = {"a": "new\n", "c": "old\n"}
    expected = Difference(added=("c",), changed=("a",), removed=("gone.d/b",))
    assert difference(tmp_path, "systemd", files) == expected
    assert write(tmp_path, "systemd", files) == expected
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "c"]
    assert (tmp_path / "a").read_text().splitlines()[1:] == ["new"]
    assert not write(tmp_path, "systemd", files)


def test_foreign_files_and_their_folders_stay(tmp_path: Path) -> None:
    write(tmp_path, "systemd", {"x.d/a": "old\n"})
    (tmp_path / "x.d" / "theirs").write_text("theirs\n")
    write(tmp_path, "compose", {"other": "theirs\n"})
    write(tmp_path, "systemd", {})
    assert (tmp_path / "x.d" / "theirs").read_text() == "theirs\n"
    assert (tmp_path / "other").exists()
    assert not (tmp_path / "x.d" / "a").exists()


def test_a_foreign_file_in_the_way_stops_it_before_anything_is_written(tmp_path: Path) -> None:
    (tmp_path / "b").write_text("theirs\n")
    with pytest.raises(ForeignFile):
        write(tmp_path, "systemd", {"a": "old\n", "b": "old\n"})
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_a_link_is_foreign(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.write_text("old\n")
    out = tmp_path / "out"
    out.mkdir()
    (out / "a").symlink_to(theirs)
    with pytest.raises(ForeignFile):
        write(out, "systemd", {"a": "new\n"})
    assert theirs.read_text() == "old\n"


def test_a_copy_of_a_rendered_file_is_its_owners(tmp_path: Path) -> None:
    write(tmp_path, "kubernetes", {"overlays/ours/a": "old\n"})
    shutil.copytree(tmp_path / "overlays" / "ours", tmp_path / "overlays" / "theirs")
    write(tmp_path, "kubernetes", {})
    assert [path.name for path in (tmp_path / "overlays").iterdir()] == ["theirs"]
