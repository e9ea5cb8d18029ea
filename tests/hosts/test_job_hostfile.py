from __future__ import annotations

import asyncio
import errno
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from mpiboot.core import log
from mpiboot.core.checks import MpibootError
from mpiboot.core.model import Level, Source
from mpiboot.core.setting_types import LogFormat
from mpiboot.hosts import hostfiles
from mpiboot.hosts.hostfiles import HostfilePath, JobHostfile, candidates, find

GUARD = 20.0


async def look(path: Path, patience: float = GUARD) -> JobHostfile:
    return await find(str(path), "--hostfile", {}, patience=patience, default="/nonexistent/hosts")


async def failing(path: Path, patience: float = GUARD) -> MpibootError:
    with pytest.raises(MpibootError) as caught:
        await look(path, patience)
    return caught.value


async def later(action: Callable[[], object]) -> None:
    await asyncio.sleep(0.15)
    action()


def test_the_order_is_setting_then_operator_then_default() -> None:
    environ = {"HYDRA_HOST_FILE": "/h", "OMPI_MCA_orte_default_hostfile": "/o", "X": "/x"}

    named = candidates("/s", "MPI_HOSTFILE", environ)

    assert [(item.path, item.by) for item in named] == [
        ("/s", "MPI_HOSTFILE"),
        ("/o", "OMPI_MCA_orte_default_hostfile"),
        ("/h", "HYDRA_HOST_FILE"),
        ("/etc/mpi/hostfile", "default"),
    ]


async def test_a_hostfile_that_is_there_is_read_at_once(tmp_path: Path) -> None:
    path = tmp_path / "hostfile"
    # A byte order mark, a comment in Latin-1, Windows' ends of lines, and none at the last one.
    path.write_bytes(b"\xef\xbb\xbfw-0 slots=2 # f\xfcr uns\r\nw-1 slots=2")

    found = await look(path)

    assert [host.name for host in found.hostfile.hosts] == ["w-0", "w-1"]
    assert (found.hostfile.path, found.hostfile.named_by) == (str(path), "--hostfile")
    assert found.warnings == ()


@pytest.mark.parametrize("first", [None, "", "\n \n", "# still empty\n"])
async def test_a_file_that_comes_late_is_waited_for(tmp_path: Path, first: str | None) -> None:
    path = tmp_path / "hostfile"
    if first is not None:
        path.write_text(first)

    found, _ = await asyncio.gather(look(path), later(lambda: path.write_text("w-0 slots=1\n")))

    assert [host.name for host in found.hostfile.hosts] == ["w-0"]


async def test_a_configmap_that_is_swapped_behind_its_links_is_seen(tmp_path: Path) -> None:
    for number, text in enumerate(("", "w-0 slots=1\n")):
        folder = tmp_path / f"..{number}"
        folder.mkdir()
        (folder / "hostfile").write_text(text)
    (tmp_path / "..data").symlink_to("..0")
    (tmp_path / "hostfile").symlink_to("..data/hostfile")

    def swap() -> None:
        (tmp_path / "..data_tmp").symlink_to("..1")
        (tmp_path / "..data_tmp").rename(tmp_path / "..data")

    found, _ = await asyncio.gather(look(tmp_path / "hostfile"), later(swap))

    assert found.hostfile.hosts[0].slots == 1


async def test_at_the_deadline_a_missing_file_is_missing_and_an_empty_one_invalid(
    tmp_path: Path,
) -> None:
    missing = await failing(tmp_path / "none", 0.1)
    dangling = tmp_path / "dangling"
    dangling.symlink_to("..data/hostfile")
    empty = tmp_path / "empty"
    empty.write_text("# no hosts\n")

    assert (missing.finding.check, missing.code) == ("hostfile-missing", 66)
    assert "named by --hostfile" in missing.finding.message
    assert (await failing(dangling, 0.1)).code == 66
    only_comments = await failing(empty, 0.1)
    assert only_comments.code == 65
    assert "only comments" in only_comments.finding.message


async def test_without_any_name_and_folder_there_is_nothing_to_wait_for() -> None:
    with pytest.raises(MpibootError) as caught:
        await find("", "", {}, patience=3600, default="/nonexistent/mpi/hostfile")

    assert caught.value.code == 66


@pytest.mark.parametrize("content", [b"w-0\0w-1\n", b"\xff\xfew\x00"])
async def test_a_binary_file_is_an_error_at_once(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "hostfile"
    path.write_bytes(content)

    wrong = await failing(path, 3600)

    assert wrong.code == 65
    assert "text" in wrong.finding.message


@pytest.mark.parametrize("path", [Path("/tmp"), Path("/dev/null")])
async def test_a_folder_and_a_device_are_errors_at_once(path: Path) -> None:
    wrong = await failing(path, 3600)
    assert ("a folder" if path.name == "tmp" else "not a regular file") in wrong.finding.message
    assert wrong.finding.hint == "name the file itself, such as /etc/mpi/hostfile"


@pytest.mark.parametrize("fifo", [False, True])
async def test_a_pipe_is_read_once_to_its_end(tmp_path: Path, *, fifo: bool) -> None:
    path = tmp_path / "fifo"
    if fifo:
        os.mkfifo(path)
        writer = -1
    else:
        reader, writer = os.pipe()
        path = Path(f"/dev/fd/{reader}")
    looking = asyncio.ensure_future(look(path))
    await asyncio.sleep(0.05)
    writer = os.open(path, os.O_WRONLY) if fifo else writer
    for piece in (b"w-0 slots=2\nw-", b"1 slots=3\n"):
        os.write(writer, piece)
        await asyncio.sleep(0.05)
        assert not looking.done()
    os.close(writer)
    found = await looking
    assert [(host.name, host.slots) for host in found.hostfile.hosts] == [("w-0", 2), ("w-1", 3)]
    assert not found.is_file
    assert (await look(path)).hostfile == found.hostfile


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "is a pipe that has got nothing yet: start what writes it, and"),
        (b"w-0\n", "is a pipe that is still open, after 4 bytes: start what writes it, and"),
        (b"w-0 # " + b"a" * (1 << 20), "has more than 1048576 bytes"),
        (b"", "is empty"),
    ],
)
async def test_a_pipe_without_end_or_hosts_is_an_error_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: bytes | None, message: str
) -> None:
    monkeypatch.setattr(hostfiles, "_WRITER", 0.0)
    path = tmp_path / "fifo"
    os.mkfifo(path)
    open_ = text == b"w-0\n"
    line = f"exec >'{path}'; cat; exec {'sleep 60' if open_ else ':'}" if text is not None else ":"
    (tmp_path / "text").write_bytes(text or b"")
    with (
        (tmp_path / "text").open("rb") as hosts,
        subprocess.Popen(["sh", "-c", line], stdin=hosts) as writer,  # noqa: ASYNC220 - it returns
    ):
        wrong = await failing(path, 2.0 if open_ else GUARD if text is not None else 0.1)
        writer.kill()
    assert wrong.finding.message.startswith(f"{path} (named by --hostfile)")
    assert message in wrong.finding.message


async def test_a_pipe_that_is_not_the_jobs_is_left_to_the_program(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.write(writer, b"input")
    (tmp_path / "hostfile").write_text("w-0\n")
    line = (str(tmp_path / "hostfile"),)
    found = await find(f"/dev/fd/{reader}", "x", {}, patience=0, default="/no", line=line)
    assert "not a regular file" in found.warnings[0].message
    assert os.read(reader, 9) == b"input"


async def test_a_file_that_can_not_be_opened_is_no_question_of_its_lines(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    wrong = await failing(loop, 3600)
    assert wrong.finding.message.endswith("can't be read: Too many levels of symbolic links")
    assert "uid" not in wrong.finding.hint


async def test_a_file_that_this_user_may_not_open_names_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(*_: object) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(hostfiles, "os", SimpleNamespace(**{**vars(os), "open": denied}))
    wrong = await failing(tmp_path / "hostfile", 3600)
    assert wrong.finding.message.endswith("can't be read: Permission denied")
    assert wrong.finding.hint == f"let uid {os.getuid()} read it and the folders above it"


async def test_two_hostfiles_that_differ_are_said(tmp_path: Path) -> None:
    used, other = tmp_path / "used", tmp_path / "other"
    used.write_text("w-0 slots=2\n")
    other.write_text("w-0 slots=2\nw-1 slots=2\n")
    environ = {"HYDRA_HOST_FILE": str(other), "OMPI_MCA_orte_default_hostfile": str(used)}

    found = await find(str(used), "MPI_HOSTFILE", environ, patience=GUARD, default=str(other))

    assert [item.level for item in found.warnings] == [Level.WARN]
    assert f"HYDRA_HOST_FILE={other} differs (2 hosts, 4 slots)" in found.warnings[0].message
    assert f"{used} (named by MPI_HOSTFILE)" in found.warnings[0].message


async def test_the_lines_own_hostfile_comes_first_and_others_that_differ_are_said(
    tmp_path: Path,
) -> None:
    used, other = tmp_path / "used", tmp_path / "other"
    used.write_text("w-0 slots=2\n")
    other.write_text("w-1 slots=2\n")

    found = await find(
        str(other), "MPI_HOSTFILE", {}, patience=GUARD, default="/nonexistent/x", line=(str(used),)
    )

    assert (found.hostfile.path, found.hostfile.named_by) == (str(used), "the mpirun line")
    (warning,) = found.warnings
    assert f"MPI_HOSTFILE={other} differs (1 host, 2 slots); " in warning.message
    assert f"mpiboot uses {used} (named by the mpirun line)" in warning.message


async def test_the_hostfiles_of_a_lines_programs_are_all_waited_for_and_made_one(
    tmp_path: Path,
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_text("w-0 slots=2 fast\n")
    waiting = asyncio.ensure_future(
        find("", "", {}, patience=GUARD, default="/no", line=(str(first), str(second)))
    )
    await asyncio.sleep(0.1)
    assert not waiting.done()
    second.write_text("w-1 slots=1\nw-0 slots=4\n")

    found = await waiting

    assert [(host.name, host.slots) for host in found.hostfile.hosts] == [("w-0", 2), ("w-1", 1)]
    assert [file.path for file in found.hostfile.parts] == [str(first), str(second)]
    assert not found.is_file
    assert not found.warnings


@pytest.mark.parametrize("text", ["w-0:2\n", "# the same hosts\nw-0 slots=2"])
async def test_two_hostfiles_that_mean_the_same_are_no_matter(tmp_path: Path, text: str) -> None:
    used, other = tmp_path / "used", tmp_path / "other"
    used.write_text("w-0 slots=2\n")
    other.write_text(text)

    found = await find(str(used), "x", {}, patience=GUARD, default=str(other))

    assert found.warnings == ()


@pytest.mark.parametrize("content", [None, b"", b"\0", b"w-0 slots=abc\n"])
async def test_a_second_hostfile_that_is_broken_is_only_a_warning(
    tmp_path: Path, content: bytes | None
) -> None:
    used, other = tmp_path / "used", tmp_path / "other"
    used.write_text("w-0 slots=2\n")
    if content is not None:
        other.write_bytes(content)

    found = await find(
        str(used), "x", {"HYDRA_HOST_FILE": str(other)}, patience=GUARD, default="/nonexistent/x"
    )

    assert [item.level for item in found.warnings] == [Level.WARN]
    assert "HYDRA_HOST_FILE" in found.warnings[0].message


async def test_what_is_waited_for_is_told_once_with_its_end(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log.configure()
    path = tmp_path / "none"
    wrong = await failing(path, 0.3)
    (line,) = capfd.readouterr().err.splitlines()
    message, _, end = line.partition("; gives up in ")
    assert message.startswith(f"mpiboot: waiting for the hostfile: {path} (named by --hostfile)")
    assert end in ("0s", "1s")
    assert wrong.finding.message.endswith(" after 0.3 s")
    assert not (await failing(path, 0.0)).finding.message.endswith(" s")


@pytest.mark.parametrize("there", [False, True])
async def test_a_platform_is_asked_for_hosts_where_nothing_else_has_them(
    tmp_path: Path,
    there: bool,  # noqa: FBT001 - a row of the table
) -> None:
    default = tmp_path / "hostfile"
    if there:
        default.write_text("w-0\n")
    hosts = HostfilePath("VC_WORKER_HOSTS", "MPI_HOST", Source.PLATFORM, "v-0\n")
    found = await find("", "", {}, patience=0, default=str(default), platform=lambda: hosts)
    assert [host.name for host in found.hostfile.hosts] == ["w-0" if there else "v-0"]
    assert found.is_file == there


async def test_a_hostfile_is_looked_for_ever_less_often_and_told_again_after_28_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Where its folder is missing too: a volume may be mounted late at a path that one named."""
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        assert len(pauses) < 1000, "it never ends"
        pauses.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    clock = SimpleNamespace(monotonic=lambda: 1000.0 + sum(pauses))
    monkeypatch.setattr(hostfiles, "time", clock)
    log.configure(form=LogFormat.JSON)
    path = tmp_path / "none" / "hostfile"
    wrong = await failing(path, 60.0)
    log.configure()
    assert wrong.finding.message.endswith(" after 1m")
    assert pauses[:6] == [0.02, 0.04, 0.08, 0.16, 0.32, 0.5]
    assert max(pauses) == 0.5
    assert sum(pauses) == pytest.approx(60.0)
    told = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert {(item["event"], item["path"]) for item in told} == {("hostfile", str(path))}
    left = [item["gives_up_in"] for item in told]
    assert len(left) == 3
    assert left[0] == 60.0
    assert 31.5 <= left[1] <= 32.0
    assert 3.0 <= left[2] <= 4.0


async def test_another_version_counts_where_it_has_other_hosts_or_slots(tmp_path: Path) -> None:
    for number, text in enumerate(("a\nb\n", "a\nb\n# the same\n", "a\nb slots=2\n", "c\n")):
        (tmp_path / f"..{number}").mkdir()
        (tmp_path / f"..{number}" / "hostfile").write_text(text)
    data, path = tmp_path / "..data", tmp_path / "hostfile"
    data.symlink_to("..0")
    path.symlink_to("..data/hostfile")
    found = await find(str(path), "--hostfile", {}, patience=0, default="/none")
    seen = []
    for number in range(4):  # as a kubelet does it
        (tmp_path / "..new").symlink_to(f"..{number}")
        (tmp_path / "..new").rename(data)
        seen.append((found.has_changed(), [(x.name, x.slots) for x in found.hostfile.hosts]))
        assert not found.has_changed()
    first = [("a", 1), ("b", 1)]
    changed = [(True, [("a", 1), ("b", 2)]), (True, [("c", 1)])]
    assert seen == [(False, first), (False, first), *changed]


@pytest.mark.parametrize("text", [None, "", "# nobody\n", "a slots=\n", "a\0"])
async def test_a_version_that_cannot_be_used_is_no_change(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "hostfile"
    path.write_text("a\n")
    found = await find(str(path), "--hostfile", {}, patience=0, default="/none")
    path.unlink() if text is None else path.write_text(text)
    assert not found.has_changed()
    assert [host.name for host in found.hostfile.hosts] == ["a"]
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    assert not found.has_changed()
    path.unlink()
    path.write_text("a slots=4\n")
    assert found.has_changed()
