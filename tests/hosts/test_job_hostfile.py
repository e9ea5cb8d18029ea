from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from mpiboot.core import log
from mpiboot.core.checks import MpibootError
from mpiboot.core.model import LogFormat
from mpiboot.core.settings import resolve
from mpiboot.hosts import hostfiles
from mpiboot.hosts.hostfiles import JobHostfile, candidates
from mpiboot.job import platforms

GUARD = 20.0


@pytest.fixture(autouse=True)
def nothing_mounted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platforms, "HOSTFILE", "/nonexistent/mpi/hostfile")


async def find(
    path: Path | str = "",
    patience: float = GUARD,
    line: Sequence[Path] = (),
    environ: Mapping[str, str] | None = None,
) -> JobHostfile:
    environ = environ or {}
    resolved = resolve({"hostfile": str(path)} if path else {}, environ)
    return await hostfiles.of_job(resolved, environ, patience, [*map(str, line)])


async def failing(path: Path | str, patience: float = GUARD) -> MpibootError:
    with pytest.raises(MpibootError) as caught:
        await find(path, patience)
    return caught.value


async def later(action: Callable[[], object]) -> None:
    await asyncio.sleep(0.15)
    action()


def named(found: JobHostfile) -> list[tuple[str, int | None]]:
    return [(host.name, host.slots) for host in found.hostfile.hosts]


def test_the_order_is_setting_then_operator_then_default() -> None:
    environ = {"HYDRA_HOST_FILE": "/h", "OMPI_MCA_orte_default_hostfile": "/o", "X": "/x"}
    found = candidates(resolve({}, environ | {"MPI_HOSTFILE": "/s"}), environ)
    assert [(item.path, item.by) for item in found] == [
        ("/s", "MPI_HOSTFILE"),
        ("/o", "OMPI_MCA_orte_default_hostfile"),
        ("/h", "HYDRA_HOST_FILE"),
        (platforms.HOSTFILE, "default"),
    ]


async def test_a_hostfile_that_is_there_is_read_at_once(tmp_path: Path) -> None:
    path = tmp_path / "hostfile"
    # A byte order mark, a comment in Latin-1, Windows' ends of lines, and none at the last one.
    path.write_bytes(b"\xef\xbb\xbfw-0 slots=2 # f\xfcr uns\r\nw-1 slots=2")
    found = await find(path)
    assert named(found) == [("w-0", 2), ("w-1", 2)]
    assert (found.hostfile.path, found.hostfile.named_by) == (str(path), "--hostfile")
    assert found.is_file


@pytest.mark.parametrize("first", [None, "", "\n \n", "# still empty\n"])
async def test_a_file_that_comes_late_is_waited_for(tmp_path: Path, first: str | None) -> None:
    path = tmp_path / "hostfile"
    if first is not None:
        path.write_text(first)
    found, _ = await asyncio.gather(find(path), later(lambda: path.write_text("w-0 slots=1\n")))
    assert named(found) == [("w-0", 1)]


def versions(folder: Path, *texts: str) -> tuple[Path, Callable[[int], object]]:
    """A hostfile in a ConfigMap, and what swaps its version as a kubelet does."""
    for number, text in enumerate(texts):
        (folder / f"..{number}").mkdir()
        (folder / f"..{number}" / "hostfile").write_text(text)
    (folder / "..data").symlink_to("..0")
    (folder / "hostfile").symlink_to("..data/hostfile")

    def swap(number: int) -> None:
        (folder / "..new").symlink_to(f"..{number}")
        (folder / "..new").rename(folder / "..data")

    return folder / "hostfile", swap


async def test_another_version_counts_where_it_has_other_hosts_or_slots(tmp_path: Path) -> None:
    texts = "", "a\nb\n", "a\nb\n# the same\n", "a\nb slots=2\n", "c\n"
    path, swap = versions(tmp_path, *texts)
    found, _ = await asyncio.gather(find(path), later(lambda: swap(1)))
    seen = []
    for number in range(1, 5):
        swap(number)
        seen.append((found.has_changed(), named(found)))
        assert not found.has_changed()
    first = [("a", 1), ("b", 1)]
    changed = [(True, [("a", 1), ("b", 2)]), (True, [("c", 1)])]
    assert seen == [(False, first), (False, first), *changed]


@pytest.mark.parametrize("text", [None, "", "# nobody\n", "a slots=\n", "a\0"])
async def test_a_version_that_cannot_be_used_is_no_change(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "hostfile"
    path.write_text("a\n")
    found = await find(path)
    path.unlink() if text is None else path.write_text(text)
    assert not found.has_changed()
    assert named(found) == [("a", 1)]
    path.write_text("a slots=4\n")
    assert found.has_changed()


LOOP = "can't be read: Too many levels of symbolic links"


@pytest.mark.parametrize(
    ("make", "patience", "code", "message"),
    [
        ("", 0.1, 66, " (named by --hostfile) does not exist after 0.1 s"),
        ("", 0.0, 66, " (named by --hostfile) does not exist"),
        ("ln -s ..data/hostfile hostfile", 0.1, 66, "does not exist"),
        ("echo '# no hosts' > hostfile", 0.1, 65, "has only comments after 0.1 s"),
        ("printf '\\377\\376w\\0' > hostfile", 3600, 65, "is not text"),
        ("mkdir hostfile", 3600, 65, "is not a regular file"),
        ("ln -s /dev/null hostfile", 3600, 65, "is not a regular file"),
        ("ln -s hostfile hostfile", 3600, 65, LOOP),
    ],
)
async def test_what_is_no_hostfile_is_an_error(
    tmp_path: Path, make: str, patience: float, code: int, message: str
) -> None:
    """At once where waiting can't help; what is missing or empty has until the deadline."""
    subprocess.run(["sh", "-c", make], cwd=tmp_path, check=True)  # noqa: ASYNC221 - at once
    wrong = await failing(tmp_path / "hostfile", patience)
    assert wrong.code == code
    assert message in wrong.finding.message
    assert ("after" in wrong.finding.message) == (patience == 0.1)
    hints = {LOOP: f"let uid {os.getuid()} read it", "is not a regular file": "name a file with"}
    assert hints.get(message, "") in wrong.finding.hint


async def test_without_any_name_and_folder_there_is_nothing_to_wait_for() -> None:
    assert (await failing("", 3600)).code == 66


async def test_a_pipe_is_read_once_to_its_end() -> None:
    reader, writer = os.pipe()
    looking = asyncio.ensure_future(find(f"/dev/fd/{reader}"))
    for piece in (b"w-0 slots=2\nw-", b"1 slots=3\n"):
        os.write(writer, piece)
        await asyncio.sleep(0.05)
        assert not looking.done()
    os.close(writer)
    found = await looking
    assert named(found) == [("w-0", 2), ("w-1", 3)]
    assert not found.is_file


@pytest.mark.parametrize(
    ("writer", "message"),
    [
        (":", "is not read to its end yet: start what writes a pipe, and let that end"),
        ("printf 'w-0\\n'; sleep 60", "is not read to its end yet"),
        ("printf ''", "is empty"),
    ],
)
async def test_a_pipe_without_end_or_hosts_is_an_error_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writer: str, message: str
) -> None:
    monkeypatch.setattr(hostfiles, "_READING", 0.0)
    path = tmp_path / "fifo"
    os.mkfifo(path)
    line = writer if writer == ":" else f"exec > '{path}'; {writer}"
    with subprocess.Popen(["sh", "-c", line]) as writing:  # noqa: ASYNC220 - it returns
        wrong = await failing(path, 0.5 if "yet" in message else GUARD)
        writing.kill()
    assert wrong.finding.message.startswith(f"{path} (named by --hostfile) {message}")
    if writer == ":":
        os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))  # the thread that still reads ends


async def test_the_hostfiles_of_a_lines_programs_are_all_waited_for_and_made_one(
    tmp_path: Path,
) -> None:
    """They come before the one that a setting names."""
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_text("w-0 slots=2\n")
    waiting = asyncio.ensure_future(find(tmp_path / "other", line=[first, second]))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    second.write_text("w-1 slots=1\nw-0 slots=4\n")
    found = await waiting
    assert named(found) == [("w-0", 2), ("w-1", 1)]
    assert [file.path for file in found.hostfile.parts] == [str(first), str(second)]
    assert found.hostfile.parts[0].named_by == "the mpirun line"
    assert not found.is_file


async def test_what_is_waited_for_is_logged_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Where its folder is missing too: a volume may be mounted late at a path that one named."""
    log.configure(form=LogFormat.JSON)
    path = tmp_path / "none" / "hostfile"
    assert (await failing(path, 1.2)).finding.message.endswith(" after 1.2 s")
    (line,) = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert (line["event"], line["path"], line["gives_up_in"]) == ("hostfile", str(path), 1.2)
    expected = f"waiting for the hostfile: {path} (named by --hostfile) does not exist; gives up in"
    assert line["message"] == f"{expected} 1s"
