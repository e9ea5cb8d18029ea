from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from mpiboot.core.checks import MpibootError
from mpiboot.system import files

UID = os.getuid()


def test_a_folder_for_mpi_that_can_not_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "tmp").touch()
    with pytest.raises(MpibootError, match="tmp can't be written: File exists") as caught:
        files.complete_tmpdir({}, tmp_path, tmp_path / "missing")
    assert caught.value.finding.check == "runtime-folder"


@pytest.mark.parametrize("value", ["", "relative", "{}", "{}/not/yet", "{}/link"])
def test_a_tmpdir_that_is_there_or_can_be_made(tmp_path: Path, value: str) -> None:
    (tmp_path / "link").symlink_to(tmp_path)

    files.check_tmpdir(value.format(tmp_path))

    assert not (tmp_path / "not").exists()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("{}/file", "file is not a folder"),
        ("{}/file/below", "file"),
        ("{}/" + "x" * 300, "File name too long"),
        ("{}/loop/x", "{}/loop"),
    ],
)
def test_a_tmpdir_that_no_mpi_can_use_is_named(tmp_path: Path, value: str, message: str) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to("loop")
    path = value.format(tmp_path)

    with pytest.raises(MpibootError) as caught:
        files.check_tmpdir(path)

    assert (caught.value.finding.check, caught.value.code) == ("tmpdir", 73)
    assert caught.value.finding.message.startswith(f"TMPDIR={path} can't be used: ")
    assert message.format(tmp_path) in caught.value.finding.message


def test_only_sessions_of_ended_processes_of_this_host_and_user_are_removed(tmp_path: Path) -> None:
    kept = (
        f"prted.host.{os.getpid()}.{UID}",
        f"prted.other.999999999.{UID}",
        f"prted.host.999999999.{UID + 1}",
        f"ompi.host.{UID}",
        f"prted.host.x.{UID}",
        "mine",
    )
    gone = (f"prted.host.999999999.{UID}", f"prterun.host.999999998.{UID}")
    for name in (*kept, *gone):
        (tmp_path / name / "0").mkdir(parents=True)
    (tmp_path / f"prte.host.999999997.{UID}").symlink_to(tmp_path / "mine")

    files.remove_stale_sessions({"TMPDIR": str(tmp_path)}, "host", UID)

    left = {item.name for item in tmp_path.iterdir()}
    assert left == {*kept, f"prte.host.999999997.{UID}", f"mpiboot-sessions.host.{UID}"}
    assert (tmp_path / "mine/0").is_dir()


SWEEP = """
import sys
from mpiboot.system import files
files.remove_stale_sessions({"TMPDIR": sys.argv[1]}, "host", int(sys.argv[2]))
print("swept", flush=True)
sys.stdin.read()
"""


def test_a_session_is_kept_while_another_container_of_this_host_name_lives(tmp_path: Path) -> None:
    """Its processes are in another PID namespace, and only its lock shows it."""
    sweep = (sys.executable, "-c", SWEEP, str(tmp_path), str(UID))
    session = tmp_path / f"prted.host.999999999.{UID}"
    pipe = subprocess.PIPE
    for again in range(3):
        with subprocess.Popen(sweep, stdin=pipe, stdout=pipe) as other:
            assert other.stdout is not None
            assert other.stdout.readline() == b"swept\n"
            session.mkdir()
            done = subprocess.run(sweep, stdin=subprocess.DEVNULL, capture_output=True, check=True)
            assert done.stdout == b"swept\n"
            assert session.is_dir()
            other.kill() if again else other.communicate()
        subprocess.run(sweep, stdin=subprocess.DEVNULL, capture_output=True, check=True)
        assert not session.exists()


def test_mpi_gets_a_folder_for_its_session_where_it_has_none(tmp_path: Path) -> None:
    expected = {"TMPDIR": str(tmp_path / "tmp")}
    for _ in range(2):  # what an earlier try left is no obstacle
        assert files.complete_tmpdir({}, tmp_path, tmp_path / "missing") == expected
    assert stat.S_IMODE((tmp_path / "tmp").stat().st_mode) == 0o700


@pytest.mark.parametrize("name", ["TMPDIR", "TEMP", "TMP"])
def test_a_folder_for_sessions_that_somebody_named_is_kept(tmp_path: Path, name: str) -> None:
    assert files.complete_tmpdir({name: "/any"}, tmp_path, tmp_path / "missing") == {}
    assert files.complete_tmpdir({}, tmp_path, tmp_path) == {}
    assert not (tmp_path / "tmp").exists()
