from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from mpiboot.errors import MpibootError
from mpiboot.system import files

UID = os.getuid()


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_folder_that_the_user_names_gets_a_private_folder_for_the_role(tmp_path: Path) -> None:
    base = tmp_path / "with blank" / "deep"

    folder = files.runtime_dir(str(base), UID, "worker")

    assert folder == base / "worker"
    assert mode(folder) == 0o700


def test_a_folder_of_an_earlier_try_is_used_again_and_made_private(tmp_path: Path) -> None:
    (tmp_path / "worker").mkdir(mode=0o755)
    (tmp_path / "worker" / f".key.{os.getpid()}").write_text("half")

    folder = files.runtime_dir(str(tmp_path), UID, "worker")
    files.write_private(folder / "key", "whole")

    assert mode(folder) == 0o700
    assert [item.name for item in folder.iterdir()] == ["key"]


def test_a_relative_folder_is_refused() -> None:
    with pytest.raises(MpibootError, match="not an absolute path") as caught:
        files.runtime_dir("run", UID, "worker")

    assert caught.value.finding.check == "runtime-folder"
    assert caught.value.code == 73


def test_a_role_folder_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "worker").symlink_to(tmp_path / "elsewhere")

    with pytest.raises(MpibootError, match="is a symbolic link"):
        files.runtime_dir(str(tmp_path), UID, "worker")


def test_a_role_folder_of_another_uid_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MpibootError, match=f"belongs to uid {UID}, not to uid {UID + 1}"):
        files.runtime_dir(str(tmp_path), UID + 1, "worker")


def test_a_named_folder_that_is_a_file_is_an_error_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(MpibootError, match=r"file/below can't be used: Not a directory"):
        files.runtime_dir(str(tmp_path / "file" / "below"), UID, "worker")


def test_a_blank_matters_only_where_somebody_splits_there(tmp_path: Path) -> None:
    base = tmp_path / "a b"

    with pytest.raises(MpibootError, match=r"a b' has a blank in its path") as caught:
        files.runtime_dir(str(base), UID, "launcher", split=True)

    assert "MPIBOOT_RUNTIME_DIR" in caught.value.finding.hint
    assert not base.exists()
    assert files.runtime_dir(str(base), UID, "worker").is_dir()


@pytest.mark.parametrize("tmpdir", ["a b", "relative"])
def test_a_tmpdir_that_can_not_hold_private_files_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tmpdir: str
) -> None:
    monkeypatch.chdir(tmp_path)
    odd = tmpdir if tmpdir == "relative" else str(tmp_path / tmpdir)

    folder = files.runtime_dir("", UID, "test-role", tmpdir=odd, split=True)

    assert folder.is_absolute()
    assert not folder.is_relative_to(tmp_path)
    folder.rmdir()


def test_without_a_name_the_first_folder_that_works_is_taken(tmp_path: Path) -> None:
    folder = files.runtime_dir("", UID, "test-role", tmpdir=str(tmp_path))

    assert folder.name == "test-role"
    assert folder.parent in (Path("/run/mpiboot"), tmp_path / f"mpiboot-{UID}")
    assert mode(folder) == 0o700
    folder.rmdir()


def test_a_file_is_replaced_whole_and_private_whatever_the_umask_is(tmp_path: Path) -> None:
    path = tmp_path / "file"
    old = os.umask(0)
    try:
        files.write_private(path, "one")
        with path.open(encoding="utf-8") as held:
            files.write_private(path, b"two\xff")
            assert held.read() == "one"
    finally:
        os.umask(old)

    assert path.read_bytes() == b"two\xff"
    assert mode(path) == 0o600


def test_a_file_that_cannot_be_written_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()

    with pytest.raises(MpibootError, match="can't be written"):
        files.write_private(tmp_path / "folder", "text")

    assert [item.name for item in tmp_path.iterdir()] == ["folder"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk_does_not_make_the_termination_message_fail() -> None:
    files.termination_message("/dev/full", "text")


def test_the_termination_message_is_cut_at_a_whole_character(tmp_path: Path) -> None:
    path = tmp_path / "termination-log"
    path.write_text("x" * 9000)
    before = path.stat().st_ino

    files.termination_message(str(path), "a" + "é" * 4000)

    data = path.read_bytes()
    assert len(data) == 4095
    assert data.decode() == "a" + "é" * 2047
    assert path.stat().st_ino == before


def test_no_termination_message_is_made_where_no_file_is(tmp_path: Path) -> None:
    files.termination_message(str(tmp_path / "none"), "text")

    assert not (tmp_path / "none").exists()


def test_a_fifo_of_an_earlier_try_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "fifo").write_text("stale")

    files.make_fifo(tmp_path / "fifo")

    assert (tmp_path / "fifo").is_fifo()
    assert mode(tmp_path / "fifo") == 0o600
