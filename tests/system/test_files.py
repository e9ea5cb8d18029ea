"""Private folders and files, and the folders in which MPI keeps its sessions."""

from __future__ import annotations

import os
import re
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mpiboot.core.checks import MpibootError
from mpiboot.system import files

UID = os.getuid()
HERE = files.container_name()


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# -- the private folder of a role ------------------------------------------------------------------


def test_a_role_has_a_private_folder_and_finds_it_again(tmp_path: Path) -> None:
    base = tmp_path / "with blank" / "deep"
    before = os.umask(0)
    try:
        made = files.runtime_dir(str(base), UID, "worker")
    finally:
        os.umask(before)
    assert made == base / HERE / "worker"
    assert mode(made) == mode(base) == 0o700
    assert list(made.iterdir()) == []
    assert files.find_role(str(base), UID, "worker", "") == made
    assert files.find_role(str(base), UID, "launcher", "") is None
    assert files.find_role(str(base), UID + 1, "worker", "") is None


def test_a_folder_of_an_earlier_try_is_used_again_and_made_private(tmp_path: Path) -> None:
    (tmp_path / HERE / "worker").mkdir(mode=0o755, parents=True)
    (tmp_path / HERE / "worker" / f".key.{os.getpid()}").write_text("half")
    folder = files.runtime_dir(str(tmp_path), UID, "worker")
    files.write_private(folder / "key", "whole")
    assert mode(folder) == mode(folder.parent) == 0o700
    assert [item.name for item in folder.iterdir()] == ["key"]


def test_a_folder_in_which_nothing_can_be_written_is_refused(tmp_path: Path) -> None:
    """A file may be made there, as on a full disk, but has no room for a byte."""
    uses = "import os, sys; from mpiboot.system import files; "
    uses += "files.runtime_dir(sys.argv[1], os.getuid(), 'worker')"
    argv = ["sh", "-c", 'ulimit -f 0; exec "$@"', "sh", sys.executable, "-c", uses, str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert "can't be written: File too large" in done.stderr


def nothing(_: Path) -> None:
    """Leave it as it is."""


@pytest.mark.parametrize(
    ("prepare", "below", "uid", "message"),
    [
        (nothing, None, UID, "not an absolute path"),
        (lambda place: place.symlink_to("/"), "", UID, "is a symbolic link"),
        (Path.touch, "", UID, "is not a folder"),
        (Path.mkdir, "", UID + 1, f"belongs to uid {UID}, not to uid {UID + 1}"),
        (Path.touch, f"{HERE}/worker/below", UID, "worker/below can't be written: Not a directory"),
    ],
)
def test_a_folder_that_can_not_be_used_is_an_error_with_its_reason(
    prepare: Callable[[Path], None], below: str | None, uid: int, message: str, tmp_path: Path
) -> None:
    (tmp_path / HERE).mkdir(mode=0o700)
    prepare(tmp_path / HERE / "worker")
    wanted = "run" if below is None else str(tmp_path / below)
    with pytest.raises(MpibootError, match=message) as caught:
        files.runtime_dir(wanted, uid, "worker")
    assert (caught.value.finding.check, caught.value.code) == ("runtime-folder", 73)


@pytest.mark.parametrize("odd", ["a b", "a\tb", "a${HOME}b"])
def test_a_path_that_mpirun_or_ssh_misreads_matters_only_to_these(tmp_path: Path, odd: str) -> None:
    base = tmp_path / odd
    with pytest.raises(MpibootError, match=r"b' has a blank or \$\{ in its path") as caught:
        files.runtime_dir(str(base), UID, "launcher", split=True)
    assert "MPIBOOT_RUNTIME_DIR" in caught.value.finding.hint
    assert not base.exists()
    assert files.runtime_dir(str(base), UID, "worker").is_dir()


@pytest.mark.parametrize(
    ("first", "tmpdir", "split", "taken"),
    [
        ("run", "{}/tmp", False, "run"),
        ("a file", "{}/tmp", False, "tmp/mpiboot-{}"),
        ("with blank", "{}/tmp", False, "with blank"),
        ("with blank", "{}/tmp", True, "tmp/mpiboot-{}"),
        ("a file", "{}/a b", True, ""),
        ("a file", "relative", True, ""),
    ],
)
def test_without_a_name_the_first_folder_that_works_is_taken(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    first: str,
    tmpdir: str,
    taken: str,
    *,
    split: bool,
) -> None:
    (tmp_path / "tmp").mkdir()
    (tmp_path / "a file").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(files, "_RUN", tmp_path / first)
    tmpdir = tmpdir.format(tmp_path)
    folder = files.runtime_dir("", UID, "test-role", tmpdir=tmpdir, split=split)
    base = tmp_path / taken.format(UID) if taken else Path(f"/tmp/mpiboot-{UID}")
    assert folder == base / HERE / "test-role"
    assert mode(folder) == 0o700
    files.remove_role(folder)
    assert not folder.exists()


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o2775])
def test_a_folder_that_another_user_could_replace_is_the_last_choice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], mode: int
) -> None:
    """As an emptyDir, in which everybody may rename everything."""
    volume, safe = tmp_path / "volume", tmp_path / "safe"
    for folder, its in ((volume, mode), (safe, 0o1777)):
        folder.mkdir()
        folder.chmod(its)
    bases = [volume / "mpiboot-1", volume / "below", safe / "mpiboot-1"]
    monkeypatch.setattr(files, "_bases", lambda _uid, _temporary: bases)
    assert files.runtime_dir("", UID, "worker").parent.parent == bases[2]
    assert capfd.readouterr().err == ""
    bases.pop()
    folder = files.runtime_dir("", UID, "worker")
    assert folder.parent.parent == bases[0]
    message = f"the private folder is {folder}: another user of this pod could replace it: "
    assert f"{message}{volume} has mode {mode:04o}, not sticky" in capfd.readouterr().err
    (tmp_path / "link").symlink_to(volume)  # one that the user has named is taken all the same
    assert files.runtime_dir(f"{tmp_path}/link/deep/down", UID, "worker").is_dir()
    assert f"could replace it: {volume} has mode {mode:04o}" in capfd.readouterr().err


# What a kubelet mounts.
KUBELET = "/var/lib/kubelet/pods"
MOUNTS = (
    "617 616 0:300 / / rw,relatime - overlay overlay rw\n"
    f"640 617 259:1 {KUBELET}/UID/etc-hosts /etc/hosts rw - ext4 /dev/nvme0n1p1 rw\n"
    f"641 617 259:1 {KUBELET}/UID/containers/NAME/START /dev/termination-log rw - ext4 /dev/a rw\n"
    # Another pod's volume, as an agent on the node may have it.
    "650 617 0:9 /pods/00000000-0000-4000-8000-000000000000/volumes/x /x rw - tmpfs tmpfs rw\n"
)
ONE, OTHER = "4f6e2a91-1111-4222-8333-444455556666", "5a6e2a91-1111-4222-8333-444455556666"


def name_of(proc: Path, uid: str, container: str = "main", start: str = "0a1b2c3d") -> str:
    """The name of a container whose /proc has these mounts; without a UID it has no pod's."""
    (proc / "self").mkdir(parents=True)
    text = MOUNTS.replace("UID", uid).replace("NAME", container).replace("START", start)
    (proc / "self/mountinfo").write_text(text if uid else text.partition("\n")[0])
    (proc / "sys/kernel/random").mkdir(parents=True)
    (proc / "sys/kernel/random/boot_id").write_text("feedc0de-0000-4000-8000-000000000000\n")
    return files.container_name(proc)


def test_two_pods_that_share_a_hostname_and_a_volume_have_folders_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "a-long-name" * 5)
    one = name_of(tmp_path / "one", ONE)
    assert name_of(tmp_path / "again", ONE, start="99999999") == one
    assert name_of(tmp_path / "static", ONE.replace("-", "")) == one
    others = {
        name_of(tmp_path / "other", OTHER),
        name_of(tmp_path / "beside", ONE, "sidecar"),
        name_of(tmp_path / "unknown", ""),
        files.container_name(tmp_path / "none"),
    }
    assert len({one, *others}) == 5
    assert one.startswith(socket.gethostname()[:24])
    assert re.fullmatch(r"[A-Za-z0-9._-]{1,24}-[0-9a-f]{8}", one)


# -- files -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("umask", [0, 0o777])
def test_a_file_is_replaced_whole_and_private_whatever_the_umask_is(
    tmp_path: Path, umask: int
) -> None:
    path = tmp_path / "file"
    old = os.umask(umask)
    try:
        files.write_private(path, "one")
        with path.open(encoding="utf-8") as held:
            files.write_private(path, b"two\xff")
            assert held.read() == "one"
    finally:
        os.umask(old)
    assert path.read_bytes() == b"two\xff"
    assert mode(path) == 0o600
    for _ in range(2):  # also where an earlier try has left something
        files.make_fifo(path)
        assert path.is_fifo()
        assert mode(path) == 0o600


def test_a_file_that_cannot_be_written_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(MpibootError, match="can't be written"):
        files.write_private(tmp_path / "folder", "text")
    assert [item.name for item in tmp_path.iterdir()] == ["folder"]


# -- where MPI keeps its sessions ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "wrong"),
    [
        *((value, "") for value in ("", "relative", "{}", "{}/not/yet", "{}/link")),
        ("{}/file", "{}/file is not a folder"),
        ("{}/file/below", "{}/file is not a folder"),
        ("{}/loop/x", "{}/loop is not a folder"),
    ],
)
def test_a_tmpdir_that_no_mpi_can_use_is_named(tmp_path: Path, value: str, wrong: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "loop").symlink_to("loop")
    path = value.format(tmp_path)
    if not wrong:
        files.check_tmpdir(path)
        assert not (tmp_path / "not").exists()
        return
    with pytest.raises(MpibootError) as caught:
        files.check_tmpdir(path)
    assert (caught.value.finding.check, caught.value.code) == ("tmpdir", 73)
    message = f"TMPDIR={path} can't be used: {wrong.format(tmp_path)}"
    assert caught.value.finding.message == message


def test_mpi_gets_a_folder_for_its_sessions_where_it_has_none(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    for name in ("TMPDIR", "TEMP", "TMP"):
        assert files.complete_tmpdir({name: "/any"}, tmp_path, missing) == {}
    assert files.complete_tmpdir({}, tmp_path, tmp_path) == {}
    assert not (tmp_path / "tmp").exists()
    for _ in range(2):  # what an earlier try left is no obstacle
        expected = {"TMPDIR": str(tmp_path / "tmp")}
        assert files.complete_tmpdir({}, tmp_path, missing) == expected
    assert mode(tmp_path / "tmp") == 0o700
    (tmp_path / "tmp").rmdir()
    (tmp_path / "tmp").touch()
    with pytest.raises(MpibootError, match="tmp can't be written: File exists") as caught:
        files.complete_tmpdir({}, tmp_path, missing)
    assert caught.value.finding.check == "runtime-folder"


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
    for again in range(2):
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
