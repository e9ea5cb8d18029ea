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


def test_the_folder_that_the_user_names_gets_a_private_folder_for_the_role(tmp_path: Path) -> None:
    base = tmp_path / "with blank" / "deep"

    before = os.umask(0)
    try:
        folder = files.runtime_dir(str(base), UID, "worker")
    finally:
        os.umask(before)

    assert folder == base / HERE / "worker"
    assert mode(folder) == mode(base) == 0o700


def test_a_folder_of_an_earlier_try_is_used_again_and_made_private(tmp_path: Path) -> None:
    (tmp_path / HERE / "worker").mkdir(mode=0o755, parents=True)
    (tmp_path / HERE / "worker" / f".key.{os.getpid()}").write_text("half")

    folder = files.runtime_dir(str(tmp_path), UID, "worker")
    files.write_private(folder / "key", "whole")

    assert mode(folder) == mode(folder.parent) == 0o700
    assert [item.name for item in folder.iterdir()] == ["key"]


def test_the_folder_of_a_role_is_found_again_where_it_is_its_users_own(tmp_path: Path) -> None:
    made = files.runtime_dir(str(tmp_path), UID, "launcher")

    assert files.find_role(str(tmp_path), UID, "launcher", "") == made
    assert files.find_role(str(tmp_path), UID, "worker", "") is None
    assert files.find_role(str(tmp_path), UID + 1, "launcher", "") is None


@pytest.mark.parametrize("split", [True, False])
def test_a_blank_in_a_folder_of_its_own_choice_counts_where_somebody_splits_there(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    split: bool,  # noqa: FBT001
) -> None:
    spaced, plain = tmp_path / "with blank", tmp_path / "plain"
    monkeypatch.setattr(files, "_bases", lambda _uid, _temporary: (spaced, plain))

    folder = files.runtime_dir("", UID, "launcher", split=split)

    assert folder == (plain if split else spaced) / HERE / "launcher"
    assert files.find_role("", UID, "launcher", "") == folder


def test_what_is_written_to_try_a_folder_may_be_gone_already(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = files.write_private

    def write_and_lose(path: Path, content: str | bytes) -> None:
        write(path, content)
        path.unlink()  # another launcher of this pod, which tries the same folder

    monkeypatch.setattr(files, "write_private", write_and_lose)

    folder = files.runtime_dir(str(tmp_path), UID, "launcher")

    assert list(folder.iterdir()) == []


def test_a_folder_in_which_nothing_can_be_written_is_refused(tmp_path: Path) -> None:
    """A file may be made there, as on a full disk, but has no room for a byte."""
    uses = "import os, sys; from mpiboot.system import files; "
    uses += "files.runtime_dir(sys.argv[1], os.getuid(), 'worker')"
    done = subprocess.run(
        ["sh", "-c", 'ulimit -f 0; exec "$@"', "sh", sys.executable, "-c", uses, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
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
        (Path.touch, f"{HERE}/worker/below", UID, "worker/below can't be used: Not a directory"),
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


@pytest.mark.parametrize("tmpdir", ["a b", "relative"])
def test_a_tmpdir_that_can_not_hold_private_files_is_passed_over(
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    tmpdir: str,
) -> None:
    run = tmp_path_factory.mktemp("run")
    monkeypatch.setattr(files, "_RUN", run)
    monkeypatch.chdir(tmp_path)
    odd = tmpdir if tmpdir == "relative" else str(tmp_path / tmpdir)

    folder = files.runtime_dir("", UID, "test-role", tmpdir=odd, split=True)

    assert folder.parent.parent == run


@pytest.mark.parametrize("taken", ["run", "tmpdir"])
def test_without_a_name_the_first_folder_that_works_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: str
) -> None:
    run = tmp_path / "run"
    monkeypatch.setattr(files, "_RUN", run)
    if taken != "run":
        run.touch()
    folder = files.runtime_dir("", UID, "test-role", tmpdir=str(tmp_path))

    assert folder.name == "test-role"
    assert folder.parent.parent == (run if taken == "run" else tmp_path / f"mpiboot-{UID}")
    assert mode(folder) == 0o700


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o2775])
def test_a_folder_that_another_user_could_replace_is_the_last_choice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], mode: int
) -> None:
    """As an emptyDir, in which everybody may rename everything."""
    volume, safe = tmp_path / "volume", tmp_path / "safe"
    volume.mkdir()
    volume.chmod(mode)
    safe.mkdir()
    safe.chmod(0o1777)
    bases = [volume / "mpiboot-1", volume / "below", safe / "mpiboot-1"]
    monkeypatch.setattr(files, "_bases", lambda _uid, _temporary: bases)
    assert files.runtime_dir("", UID, "worker").parent.parent == bases[2]
    assert capfd.readouterr().err == ""

    bases.pop()
    folder = files.runtime_dir("", UID, "worker")
    assert folder.parent.parent == bases[0]
    message = f"the private folder is {folder}: another user of this pod could replace it: "
    message += f"{volume} has mode {mode:04o}, not sticky"
    assert message in capfd.readouterr().err


@pytest.mark.parametrize("below", ["", "deep/down"])
def test_a_named_folder_that_another_user_could_replace_is_taken_with_a_word(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], below: str
) -> None:
    volume, link = tmp_path / "volume", tmp_path / "link"
    volume.mkdir()
    volume.chmod(0o777)
    link.symlink_to(volume)
    folder = files.runtime_dir(str(link / below), UID, "worker")
    assert folder.is_dir()
    assert f"could replace it: {volume} has mode 0777" in capfd.readouterr().err


def mounts(folder: Path, *lines: str) -> Path:
    """A /proc whose mount table has these lines."""
    (folder / "self").mkdir(parents=True)
    (folder / "self/mountinfo").write_text("".join(f"{line}\n" for line in lines))
    (folder / "sys/kernel/random").mkdir(parents=True)
    (folder / "sys/kernel/random/boot_id").write_text("feedc0de-0000-4000-8000-000000000000\n")
    return folder


def pod(uid: str, container: str = "main", start: str = "0a1b2c3d") -> tuple[str, ...]:
    """What a kubelet mounts."""
    kubelet = f"/var/lib/kubelet/pods/{uid}"
    return (
        "617 616 0:300 / / rw,relatime - overlay overlay rw",
        f"640 617 259:1 {kubelet}/etc-hosts /etc/hosts rw - ext4 /dev/nvme0n1p1 rw",
        f"641 617 259:1 {kubelet}/containers/{container}/{start} /dev/termination-log rw - ext4 /d",
        # Another pod's volume, as an agent on the node may have it.
        "650 617 0:9 /pods/00000000-0000-4000-8000-000000000000/volumes/x /x rw - tmpfs tmpfs rw",
    )


ONE, OTHER = "4f6e2a91-1111-4222-8333-444455556666", "5a6e2a91-1111-4222-8333-444455556666"


def test_two_pods_that_share_a_hostname_and_a_volume_have_folders_of_their_own(
    tmp_path: Path,
) -> None:
    one = files.container_name(mounts(tmp_path / "one", *pod(ONE)))
    again = files.container_name(mounts(tmp_path / "again", *pod(ONE, start="99999999")))
    other = files.container_name(mounts(tmp_path / "other", *pod(OTHER)))
    beside = files.container_name(mounts(tmp_path / "beside", *pod(ONE, "sidecar")))
    static = files.container_name(mounts(tmp_path / "static", *pod(ONE.replace("-", ""))))
    unknown = files.container_name(mounts(tmp_path / "unknown", *pod(ONE)[:1]))

    assert one == again == static
    assert len({one, other, beside, unknown}) == 4
    assert one.startswith(socket.gethostname()[:24])
    assert len(one) <= 33


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


def test_a_file_that_cannot_be_written_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()

    with pytest.raises(MpibootError, match="can't be written"):
        files.write_private(tmp_path / "folder", "text")

    assert [item.name for item in tmp_path.iterdir()] == ["folder"]


@pytest.mark.parametrize("earlier", [True, False])
def test_a_fifo_is_made_also_where_an_earlier_try_left_something(
    tmp_path: Path,
    earlier: bool,  # noqa: FBT001
) -> None:
    if earlier:
        (tmp_path / "fifo").write_text("stale")

    files.make_fifo(tmp_path / "fifo")

    assert (tmp_path / "fifo").is_fifo()
    assert mode(tmp_path / "fifo") == 0o600


def test_without_a_mount_table_the_host_has_one_name_all_the_same(tmp_path: Path) -> None:
    name = files.container_name(tmp_path / "none")
    assert name == files.container_name(tmp_path / "none")
    assert re.fullmatch(r"[A-Za-z0-9._-]+-[0-9a-f]{8}", name)
