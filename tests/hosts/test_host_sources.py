"""The hosts that settings or a platform name, from files and variables as it writes them."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from mpiboot.core import log
from mpiboot.core.checks import MpibootError
from mpiboot.core.model import LogFormat, Source
from mpiboot.core.settings import resolve
from mpiboot.hosts import hostfiles
from mpiboot.hosts.hostfiles import HostfilePath, JobHostfile, candidates, of_job
from mpiboot.job import platforms
from mpiboot.job.hostfile import parse

# Volcano v1.15.1: svc.go (GenerateHosts) and mpi.go (generateTaskHosts) for the job of its guide,
# docs/user-guide/how_to_use_mpi_plugin.md, with a task whose name has a hyphen.
MASTER = "lm-mpi-job-mpi-master-0.lm-mpi-job"
WORKERS = ("lm-mpi-job-mpi-worker-0.lm-mpi-job", "lm-mpi-job-mpi-worker-1.lm-mpi-job")
FILES = {"mpi_master.host": MASTER, "mpi_worker.host": "\n".join(WORKERS)}
ENVIRON = {
    "VC_MPI_MASTER_HOSTS": MASTER,
    "VC_MPI_MASTER_NUM": "1",
    "VC_MPI_WORKER_HOSTS": ",".join(WORKERS),
    "VC_MPI_WORKER_NUM": "2",
}
MPI_PLUGIN = {"MPI_HOST": ",".join(WORKERS)}
THIRD = {"VC_PS_HOSTS": "lm-mpi-job-ps-0.lm-mpi-job", "VC_PS_NUM": "1"}
OWN = "lm-mpi-job-mpi-master-0"
ALONE = "Volcano (the job's 1 other task)"


@pytest.fixture
def mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """What the svc plugin mounts; its files have no final newline."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    for key, value in ENVIRON.items():  # its ConfigMap has these keys too
        (tmp_path / key).write_text(value)
    monkeypatch.setattr(platforms, "VOLCANO_FOLDER", str(tmp_path))
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(nodename=OWN))
    return str(tmp_path)


def hostnames(*names: str) -> str:
    return "".join(f"{name}\n" for name in names)


FILE, BY_PLUGIN = "mpi_worker.host", "MPI_HOST of Volcano's mpi plugin"
FIRST = {"VC_A_HOSTS": "lm-mpi-job-a-0.lm-mpi-job", "VC_A_NUM": "1"}
EMPTY = {"VC_PS_HOSTS": "", "VC_PS_NUM": "0"}
ONLY = {name: value for name, value in ENVIRON.items() if "MASTER" in name}
BY_VARIABLE = "VC_MPI_WORKER_HOSTS", ALONE, hostnames(*WORKERS)
SEVERAL = "VC_A_HOSTS, VC_MPI_WORKER_HOSTS, VC_PS_HOSTS"
# "Using Platform LSF HPC" 7.3: a line for each slot in the file; host and slots in the variable.
LSF = {"LSB_JOBID": "7", "LSB_MCPU_HOSTS": "hostB 2 hostA 1 "}
BY_LSF = "LSB_MCPU_HOSTS", "LSF", "hostB slots=2\nhostA slots=1\n"


@pytest.mark.parametrize(
    ("files", "environ", "path", "by", "text"),
    [
        # the other task's file, whose hosts may change, else the variables
        *((True, environ, FILE, ALONE, "") for environ in (ENVIRON, {})),
        (False, ENVIRON, *BY_VARIABLE),
        # the mpi plugin's word before a guess, also in a job whose controller updates no file
        (True, ENVIRON | THIRD | MPI_PLUGIN, FILE, BY_PLUGIN, ""),
        (False, MPI_PLUGIN, "MPI_HOST", BY_PLUGIN, hostnames(*WORKERS)),
        (
            *(False, THIRD | ENVIRON | FIRST, SEVERAL),
            "Volcano (the job's 3 other tasks)",
            hostnames(FIRST["VC_A_HOSTS"], *WORKERS, THIRD["VC_PS_HOSTS"]),
        ),
        (False, ENVIRON | EMPTY, *BY_VARIABLE),  # a task without pods is none
        (
            *(False, ONLY, "VC_MPI_MASTER_HOSTS"),
            *("Volcano (the job's only task)", hostnames(MASTER)),
        ),
        (False, LSF | {"LSB_DJOB_HOSTFILE": ""}, *BY_LSF),
        (False, LSF | {"LSB_DJOB_HOSTFILE": "/nowhere/hostfile"}, *BY_LSF),
        (False, LSF | {"LSB_DJOB_HOSTFILE": "/dev/null"}, *BY_LSF),
        # elsewhere; without LSF's job its variables are leftovers
        *(
            (False, environ, "", "", "")
            for environ in (
                {"PATH": "/bin", "MY_HOSTS": "a,b"},
                {"LSB_MCPU_HOSTS": "a 2"},
                {"LSB_JOBID": "7"},
            )
        ),
    ],
)
def test_the_hosts_that_a_platform_lists(
    mounted: str,
    monkeypatch: pytest.MonkeyPatch,
    environ: dict[str, str],
    path: str,
    by: str,
    text: str,
    *,
    files: bool,
) -> None:
    path = f"{mounted}/{path}" if path == FILE else path
    expected = HostfilePath(path, by, Source.PLATFORM, text) if path else None
    monkeypatch.setattr(platforms, "VOLCANO_FOLDER", mounted if files else "/nowhere")
    assert hostfiles.hosts_by_platform(environ, OWN) == expected


def test_where_the_launchers_own_task_is_not_known_none_is_guessed() -> None:
    """As on the node's network: its own task may be one of them."""
    with pytest.raises(MpibootError) as wrong:
        hostfiles.hosts_by_platform(ENVIRON, "node-7")
    assert wrong.value.code == 66
    assert "job's 2 tasks (mpi_master, mpi_worker)" in wrong.value.finding.message
    assert "MPIBOOT_WORKER_TASK=" in wrong.value.finding.hint


def test_lsfs_file_has_a_line_for_each_slot(tmp_path: Path) -> None:
    path = tmp_path / ".1258630735.7.hostfile"
    path.write_text("hostA\nhostA\nhostB\n")
    found = hostfiles.hosts_by_platform(LSF | {"LSB_DJOB_HOSTFILE": str(path)}, OWN)
    text = "hostA slots=2\nhostB slots=1\n"
    assert found == HostfilePath(str(path), "LSB_DJOB_HOSTFILE", Source.PLATFORM, text)


@pytest.mark.parametrize("value", ["a 2 b 1 a 3", "a", "a 2 b", "a b", "2 a"])
def test_lsfs_variable_is_hosts_and_slots(value: str) -> None:
    """One that it names twice has the sum."""
    found = hostfiles.hosts_by_platform(LSF | {"LSB_MCPU_HOSTS": value}, OWN)
    assert found is not None
    if value.endswith("3"):
        parsed = parse(found.text, found.path, found.by).hosts
        assert [(host.name, host.slots) for host in parsed] == [("a", 5), ("b", 1)]
        return
    with pytest.raises(MpibootError, match="LSB_MCPU_HOSTS:") as wrong:
        parse(found.text, found.path, found.by)
    assert wrong.value.code == 65


SET = {"replicas": "3", "service": "my-hpc-cluster", "name": "my-cnode"}
PODS = (
    "my-cnode-0.my-hpc-cluster\nmy-cnode-1.my-hpc-cluster\nmy-cnode-2.my-hpc-cluster",
    "my-cnode-[0-2].my-hpc-cluster",
)


LISTED = f"{THIRD['VC_PS_HOSTS']} slots=1\n{WORKERS[0]} slots=8\n{WORKERS[1]} slots=8\n"
TASKS, BY_TASK = {"worker_task": "ps:1,mpi-worker:8"}, "MPIBOOT_WORKER_TASK"
SET_BY_ENV = {f"MPIBOOT_{name.upper()}": value for name, value in SET.items()}


@pytest.mark.parametrize(
    ("flags", "environ", "path", "by", "text"),
    [
        *(({}, {BY_TASK: task}, FILE, BY_TASK, "") for task in ("mpi-worker", "mpi_worker")),
        (TASKS, {}, f"VC_PS_HOSTS, {FILE}", "--worker-task", LISTED),
        (SET, {}, PODS[1], "--replicas", PODS[0]),
        ({}, SET_BY_ENV, PODS[1], "MPIBOOT_REPLICAS", PODS[0]),
    ],
)
def test_the_hosts_that_a_setting_lists(
    mounted: str, flags: dict[str, str], environ: dict[str, str], path: str, by: str, text: str
) -> None:
    environ |= ENVIRON | THIRD
    found = hostfiles.hosts_by_setting(resolve(flags, environ), environ)
    source = Source.FLAG if flags else Source.ENVIRONMENT
    assert found == HostfilePath(path.replace(FILE, f"{mounted}/{FILE}"), by, source, text)


NO_TASK = "--worker-task=worker: "


@pytest.mark.parametrize(
    ("flags", "environ", "code", "message"),
    [
        ({"worker_task": "worker"}, ENVIRON, 66, "mpi_master, mpi_worker"),
        (
            {"worker_task": "mpi-worker:0"},
            ENVIRON,
            2,
            "is mpi-worker:0: expected TASK or TASK:SLOTS",
        ),
        ({"worker_task": "worker"}, {}, 66, "VC_*_HOSTS: none"),
        *(
            (
                {name: value for name, value in SET.items() if name != missing},
                *({}, 78, f"without --{missing}: "),
            )
            for missing in SET
        ),
    ],
)
def test_a_setting_that_lists_no_hosts_is_refused(
    flags: dict[str, str], environ: dict[str, str], code: int, message: str
) -> None:
    with pytest.raises(MpibootError) as wrong:
        hostfiles.hosts_by_setting(resolve(flags, {}), environ)
    assert wrong.value.code == code
    assert message in wrong.value.finding.message
    assert flags.get("worker_task") != "worker" or NO_TASK in wrong.value.finding.message


async def test_a_launcher_reads_them_where_nothing_names_a_hostfile(
    mounted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hostfile that is mounted or named comes first; a task's file is read again."""
    assert mounted == str(tmp_path)
    path, none = tmp_path / "hostfile", str(tmp_path / "none" / "hostfile")
    path.write_text("w-0 slots=2\n")

    async def find(default: str, hostfile: str = "", line: Sequence[str] = ()) -> JobHostfile:
        monkeypatch.setattr(platforms, "HOSTFILE", default)
        flags = {"hostfile": hostfile} if hostfile else {}
        return await of_job(resolve(flags, {}), {}, 0.0, line)

    found = await find(none)
    assert [(host.name, host.slots) for host in found.hostfile.hosts] == [
        (name, 1) for name in WORKERS
    ]
    assert (found.hostfile.named_by, found.hostfile.source) == (ALONE, Source.PLATFORM)
    assert not found.has_changed()
    (tmp_path / "mpi_worker.host").write_text(WORKERS[0])
    assert found.has_changed()
    assert [host.name for host in found.hostfile.hosts] == [WORKERS[0]]
    assert found.hostfile.source is Source.PLATFORM
    for found in (
        await find(str(path)),
        await find(none, str(path)),
        await find(none, "", [str(path)]),
    ):
        assert (found.hostfile.hosts[0].name, found.hostfile.source) == ("w-0", None)


async def test_a_list_by_setting_comes_before_what_the_operator_names(tmp_path: Path) -> None:
    """It is never read again."""
    path = tmp_path / "hostfile"
    path.write_text("other\n")
    environ = {"HYDRA_HOST_FILE": str(path), "VC_W_HOSTS": "w-0,w-1", "VC_W_NUM": "2"}
    listed = await of_job(resolve({"worker_task": "w"}, {}), environ, 0.0)
    assert [host.name for host in listed.hostfile.hosts] == ["w-0", "w-1"]
    assert (listed.hostfile.named_by, listed.hostfile.source) == ("--worker-task", Source.FLAG)
    assert (listed.is_file, listed.has_changed()) == (False, False)
    flags = {"worker_task": "w", "hostfile": str(path)}
    found = await of_job(resolve(flags, {}), {"VC_W_HOSTS": "w-0", "VC_W_NUM": "1"}, 0.0)
    assert ([host.name for host in found.hostfile.hosts], found.is_file) == (["other"], True)


# The file itself


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
    hints = {LOOP: f"uid {os.getuid()} must be able", "is not a regular file": "name a file with"}
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
        (":", "is still being read: no writer has opened and closed the pipe"),
        ("printf 'w-0\\n'; sleep 60", "is still being read"),
        ("printf ''", "is empty"),
    ],
)
async def test_a_pipe_without_end_or_hosts_is_an_error_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writer: str, message: str
) -> None:
    monkeypatch.setattr(hostfiles, "_READ_S", 0.0)
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
