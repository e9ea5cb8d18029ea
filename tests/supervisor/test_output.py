"""What mpirun writes goes on to the job's own streams: in order, whole, and whatever breaks."""

from __future__ import annotations

import asyncio
import os
import pty
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from mpiboot.core.launch_spec import PLACEMENT
from mpiboot.supervisor import output
from mpiboot.supervisor.job import Job, RankEnd, RankEnded
from mpiboot.supervisor.output import (
    HydraMessages,
    MpirunMessages,
    MpirunStreams,
    OutputWriter,
    Parser,
    StderrMessages,
    first_failure,
    reports,
)
from mpiboot.supervisor.signals import Handles
from tests.supervisor.test_job import job
from tests.waiting import until, until_in_loop

ENOUGH = 1 << 18


class Stream:
    """A stream of the job, and its reader."""

    def __init__(self) -> None:
        self.reader, self.handle = os.pipe()
        self.to = OutputWriter(self.handle)
        self.noted = threading.Event()
        self.to.notify = self.noted.set

    def take(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            data += os.read(self.reader, count - len(data))
        return data

    def end(self) -> None:
        self.to.end()
        until(lambda: self.to.done)


@pytest.fixture
def stream() -> Iterator[Stream]:
    made = Stream()
    yield made
    made.end()
    for end in (made.reader, made.handle):
        os.close(end)


def test_all_is_written_in_order_and_nothing_after_the_end(stream: Stream) -> None:
    expected = b"".join(b"%d\n" % number for number in range(100))
    for line in expected.splitlines(keepends=True):
        stream.to.write(line)
    stream.end()
    assert stream.noted.wait(60)
    stream.to.write(b"never")
    assert stream.to.left == 0
    assert os.read(stream.reader, 1 << 16) == expected


def test_there_is_room_until_so_much_waits_and_again_when_it_was_read(stream: Stream) -> None:
    stream.to.write(bytes(ENOUGH - 1))
    assert stream.to.has_room()
    # The thread stands in the middle of the first piece: none of it counts as written.
    stream.to.write(b"x")
    assert not stream.to.has_room()
    assert not stream.noted.is_set()
    stream.take(ENOUGH)
    assert stream.noted.wait(60)
    until(stream.to.has_room)


@pytest.mark.parametrize(("path", "wrong"), [("", None), ("/dev/full", "No space left on device")])
def test_where_nothing_can_be_written_any_more_all_is_lost_and_why_is_known(
    path: str, wrong: str | None
) -> None:
    """One who reads and goes has enough, which is no error."""
    reader, handle = os.pipe() if not path else (os.open(path, os.O_RDONLY), -1)
    os.close(reader)
    handle = os.open(path, os.O_WRONLY) if path else handle
    writing = OutputWriter(handle)
    writing.write(b"one")
    writing.write(b"two")
    writing.end()
    until(lambda: writing.done)
    assert (writing.broken, writing.left) == (True, 0)
    assert (writing.wrong.strerror if writing.wrong else None) == wrong
    os.close(handle)


def test_a_stream_that_somebody_made_non_blocking_is_written_to_the_end(stream: Stream) -> None:
    os.set_blocking(stream.handle, False)
    stream.to.write(bytes(1 << 20))
    assert stream.take(1 << 20) == bytes(1 << 20)
    stream.end()
    assert not stream.to.broken


def test_one_that_is_to_end_is_held_by_no_reader(stream: Stream) -> None:
    size = 0
    while stream.to.has_room():
        stream.to.write(bytes(1 << 16))
        size += 1 << 16
    stream.to.hurry()
    assert stream.noted.is_set()
    assert stream.to.has_room()
    assert stream.take(size) == bytes(size)


class Rig(Stream):
    """Pipes of an mpirun whose messages are lines; what they report is in ``ends``."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: list[RankEnded] = []
        self.streams = MpirunStreams(Handles(print), self.to, self.report, Job(job()))

    def report(self, ends: list[RankEnded]) -> None:
        self.ends += ends

    def pipe(self, parser: Parser | None = None) -> int:
        reader, writer = os.pipe()
        self.streams.add(reader, self.to, parser or Parser())
        return writer

    async def shows(self, text: bytes) -> None:
        loop = asyncio.get_running_loop()
        shown = await asyncio.wait_for(loop.run_in_executor(None, self.take, len(text)), 60)
        assert shown == text


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    made = Rig()
    yield made
    made.end()


async def test_without_room_nothing_is_read_until_there_is_some(rig: Rig) -> None:
    first, second = rig.pipe(), rig.pipe()
    rig.to.write(bytes(2 * ENOUGH))
    os.write(first, b"a")
    await until_in_loop(lambda: rig.to.left > 2 * ENOUGH)
    for writer in (first, second):
        os.write(writer, b"b")
    await asyncio.sleep(0.05)
    assert rig.to.left == 2 * ENOUGH + 1
    await rig.shows(bytes(2 * ENOUGH) + b"abb")


async def test_a_pipe_that_nobody_can_write_to_is_read_to_its_end_and_no_more(rig: Rig) -> None:
    first, second = rig.pipe(), rig.pipe()
    os.write(first, b"last")
    os.close(first)
    await rig.shows(b"last")
    await until_in_loop(lambda: rig.streams._pipes[0].over)
    os.write(second, b"other")
    await rig.shows(b"other")


async def test_a_stream_whose_reader_has_gone_is_closed_for_mpirun(rig: Rig) -> None:
    writer = rig.pipe()
    os.close(rig.reader)
    os.write(writer, b"nobody reads this")
    await until_in_loop(lambda: rig.to.broken)
    with suppress(BrokenPipeError):
        os.write(writer, b"nor this")
    await until_in_loop(lambda: rig.streams._pipes[0].over)
    with pytest.raises(BrokenPipeError):
        os.write(writer, b"x")
    rig.reader = os.open("/dev/null", os.O_RDONLY)


class Odd(Parser):
    """One that fails at what it doesn't expect, having kept the half of a line."""

    def parse(self, text: bytes, *, last: bool = False) -> tuple[bytes, list[RankEnded]]:
        whole, newline, self.held = text.rpartition(b"\n")
        if b"odd" in whole:
            raise ValueError("an odd line")
        return whole + newline, []


async def test_a_parser_that_fails_passes_everything_on(
    rig: Rig, capfd: pytest.CaptureFixture[str]
) -> None:
    writer = rig.pipe(Odd())
    for text, shown in (
        (b"one\nan o", b"one\n"),
        (b"dd line\nthe half", b"an odd line\nthe half"),
        (b" of a line\nodd again", b" of a line\nodd again"),
    ):
        os.write(writer, text)
        await rig.shows(shown)
    message = capfd.readouterr().err
    assert message.count("mpiboot: warning: [bug] the parser of mpirun's messages failed at") == 1
    assert "ValueError: an odd line; the job goes on without it" in message


async def test_who_handles_ends_of_ranks_and_fails_does_not_stop_the_stream(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(rig.streams, "report", {}.__getitem__)
    writer = rig.pipe()
    for _ in range(2):
        os.write(writer, b"text")
        await rig.shows(b"text")
    assert "TypeError: unhashable type: 'list'; the job goes on" in capfd.readouterr().err


async def test_what_is_left_at_the_end_is_read_but_not_for_ever(rig: Rig) -> None:
    """Another process may still write; an end without a newline is one, too."""
    writer = rig.pipe(output.MpirunMessages())
    os.write(writer, b"MPI_ABORT was invoked on rank 2 in communicator MPI_COMM_WORLD")
    rig.streams.read_last()
    assert rig.ends == []
    os.write(writer, b"\nmore")
    rig.streams.read_last()
    await rig.shows(b"MPI_ABORT was invoked on rank 2 in communicator MPI_COMM_WORLD\n\nmore\n")


OPENS = """
import sys
from mpiboot.supervisor.output import open_pipes
mixed, dropped = (word == "True" for word in sys.argv[2:])
pipes = open_pipes(mixed=mixed, dropped=dropped)
with open(sys.argv[1], "w") as file:
    print(*pipes, len(set(pipes.values())), file=file)
"""


@pytest.mark.parametrize(
    ("stdout", "stderr", "of_hydra", "of_open_mpi"),
    [
        ("pipe", "pipe", "1 2 2", "1 2 2"),
        ("pipe", "stdout", "0", "1 2 1"),
        ("file", "pipe", "1 2 2", "2 1"),
        ("pipe", "file", "1 2 2", "1 1"),
        ("file", "stdout", "0", "0"),
        ("socket", "null", "1 2 2", "1 1"),
        ("null", "null", "0", "0"),
        ("terminal", "pipe", "2 1", "2 1"),
        ("pipe", "closed", "0", "0"),
    ],
)
def test_which_streams_of_mpirun_are_pipes(
    tmp_path: Path, stdout: str, stderr: str, of_hydra: str, of_open_mpi: str
) -> None:
    """What Open MPI drops: what a pipe or socket has not taken. Files take everything."""
    ends: list[int] = []

    def stream(kind: str) -> int:
        if kind == "pipe":
            ends.extend(os.pipe())
        elif kind == "socket":
            ends.extend(end.detach() for end in socket.socketpair())
        elif kind == "terminal":
            ends.extend(pty.openpty())
        else:
            path = "/dev/null" if kind == "null" else tmp_path / "stream"
            ends.append(os.open(path, os.O_WRONLY | os.O_CREAT))
        return ends[-1]

    out = stream(stdout)
    err = out if stderr == "stdout" else stream("null" if stderr == "closed" else stderr)
    close = "import os\nos.close(2)\n" if stderr == "closed" else ""
    for words, expected in ((("True", "False"), of_hydra), (("False", "True"), of_open_mpi)):
        told = tmp_path / "told"
        argv = [sys.executable, "-c", close + OPENS, str(told), *words]
        subprocess.run(argv, stdout=out, stderr=err, check=True, timeout=60)
        assert told.read_text().split() == expected.split()
    for end in ends:
        os.close(end)


# What mpirun reports of its ranks: text as each MPI wrote it. That is Open MPI 4.1.4 and 5.0.7,
# MPICH 4.0.2 and 5.0.2, and Intel MPI 2021.18.1.


RULE = "-" * 74 + "\n"
PRIMARY = (
    f"{RULE}Primary job  terminated normally, but 1 process returned\n"
    f"a non-zero exit code. Per user-direction, the job has been aborted.\n{RULE}"
)
STATUS = (
    f"{RULE}mpirun detected that one or more processes exited with non-zero status, thus causing\n"
    "the job to be terminated. The first process to do so was:\n\n"
    f"  Process name: [[49297,1],3]\n  Exit code:    7\n{RULE}"
)
ABORT = (
    f"{RULE}MPI_ABORT was invoked on rank 2 in communicator MPI_COMM_WORLD\n"
    f"with errorcode 7.\n\nNOTE: invoking MPI_ABORT causes Open MPI to kill all MPI processes.\n"
    f"{RULE}"
)


def noticed(rank: int, host: str, number: int) -> str:
    message = f"mpirun noticed that process rank {rank} with PID 0 on node {host} exited on signal"
    return f"{RULE}{message} {number} (Killed).\n{RULE}"


def state(rank: int, what: str, job: int = 1) -> str:
    name = f"[prterun-w-13@{job},{rank}]"
    head = "[w:00013] [prterun-w-13@0,0] [1795290848.178639]"
    at = "AT ../../../prrte/src/mca/odls/base/odls_base_default_fns.c:1735"
    tail = f"PROC {name} STATE {what}"
    return f"{head} ACTIVATE {tail} {at}\n{head} ACTIVATING {tail}\n"


@pytest.mark.parametrize(
    ("text", "ends"),
    [
        ("", []),
        (PRIMARY, [RankEnded(None, RankEnd.STATUS)]),
        (
            PRIMARY + noticed(1, "pi-worker-1.pi.default.svc", 9),
            [RankEnded(1, RankEnd.SIGNAL, "pi-worker-1.pi.default.svc", 9)],
        ),
        (STATUS, [RankEnded(3, RankEnd.STATUS)]),
        (
            "mpirun has exited due to process rank 1 with PID 2 on\nnode w-1 exiting improperly. ",
            [RankEnded(1, RankEnd.SILENT, "w-1")],
        ),
        (ABORT, [RankEnded(2, RankEnd.ABORT)]),
        (state(1, "RUNNING") + state(0, "NORMALLY TERMINATED"), []),
        (state(0, "TERMINATED WITHOUT SYNC"), [RankEnded(0, RankEnd.SILENT)]),
        (
            state(0, "CALLED ABORT") + state(1, "ABORTED BY SIGNAL"),
            [RankEnded(0, RankEnd.ABORT), RankEnded(1, RankEnd.SIGNAL)],
        ),
        # A daemon is no rank, and a rank of a job that was spawned has a number of its own.
        (state(1, "ABORTED BY SIGNAL", job=0), []),
        (state(1, "ABORTED BY SIGNAL", job=2), []),
        (STATUS.replace("[49297,1]", "[49297,2]"), []),
    ],
)
def test_which_ranks_ended(text: str, ends: list[RankEnded]) -> None:
    assert output.ranks_ended(text.encode()) == ends


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ("[w-1:00092] *** An error occurred in MPI_Init\n[w-1:00092] *** reported by", "MPI_Init"),
        ("[w-0:00000] *** An error occurred in MPI_Allreduce\n", "MPI_Allreduce"),
        # What 5.0 says of a peer that is gone.
        ("[w-0:00000] *** An error occurred in Socket closed\n", ""),
        ("an error occurred in MPI_Init\n", ""),
    ],
)
def test_which_call_of_reports(text: str, call: str) -> None:
    failed = [RankEnded(None, RankEnd.MPI, what=call)]
    assert reports(text.encode()) == (failed if call else [])


LINE = "-" * 74
# As 4.1.4 and 5.0.7 write them.
LOST_4 = f"""{LINE}
ORTE has lost communication with a remote daemon.

  HNP daemon   : [[40298,0],0] on node launcher
  Remote daemon: [[40298,0],2] on node w-1.w.default.svc

This is usually due to either a failure of the TCP network
connection to the node, or possibly an internal failure of
the daemon itself. We cannot recover from this failure, and
therefore will terminate the job.
{LINE}
"""
LOST_5 = (
    LOST_4.replace("ORTE", "PRTE")
    .replace("[[40298,0],0]", "[prterun-launcher-22@0,0]")
    .replace("[[40298,0],2]", "[prterun-launcher-22@0,2]")
    .replace("w-1.w.default.svc", "w-1")
)
NO_FILE_4 = f"""{LINE}
mpirun was unable to launch the specified application as it could not access
or execute an executable:

Executable: /opt/only/here it is
Node: w-1.w.default.svc

while attempting to start process rank 1.
{LINE}
"""
NO_NAME_4 = f"""{LINE}
mpirun was unable to find the specified executable file, and therefore
did not launch the job.  This error was first reported for process
rank 1; it may have occurred for other processes as well.

NOTE: A common cause for this error is misspelling a mpirun command
      line parameter option (remember that mpirun interprets the first
      unrecognized command line token as the executable).

Node:       w-1
Executable: here
{LINE}
"""
# 5.0 indents both, and says that it lacks permissions.
NO_FILE_5, NO_NAME_5 = (
    text.replace("mpirun", "prterun").replace("Exec", "   Exec").replace("Node", "   Node")
    for text in (NO_FILE_4, NO_NAME_4)
)
NO_FILE_HYDRA = "{} ({}): execvp error on file {} (No such file or directory)\n".format
NO_FILE_MPICH_4 = NO_FILE_HYDRA(
    "[proxy:0:0@w-1] HYDU_create_process", "utils/launch/launch.c:73", "/x/a (b) c"
)
NO_FILE_MPICH_5 = NO_FILE_HYDRA(
    "[proxy:1@w-1] HYDU_create_process", "/mpich-5.0.2/src/pm/hydra/lib/utils/launch.c:73", "x"
)
NO_FILE_INTEL = NO_FILE_HYDRA(
    "[proxy:0:1@w-1] HYD_spawn", "../../libhydra/spawn/intel/hydra_spawn.c:177", "/no/such"
)
NO_FOLDER = f"""{LINE}
mpirun was unable to launch the specified application as it could not
change to the specified working directory:

Working directory: /x
Node: w-1

while attempting to start process rank 1.
{LINE}
Node: w-1
Executable: no message of its own
"""


@pytest.mark.parametrize(
    ("text", "host", "program"),
    [
        (LOST_4, "w-1.w.default.svc", ""),
        (LOST_5, "w-1", ""),
        (NO_FILE_4, "w-1.w.default.svc", "/opt/only/here it is"),
        (NO_NAME_4, "w-1", "here"),
        (NO_FILE_5, "w-1.w.default.svc", "/opt/only/here it is"),
        (NO_NAME_5, "w-1", "here"),
        (NO_FILE_MPICH_4, "w-1", "/x/a (b) c"),
        (NO_FILE_MPICH_5, "w-1", "x"),
        (NO_FILE_INTEL, "w-1", "/no/such"),
        ("execvp error on file x (No such file or directory)\n", "", ""),
        (NO_FOLDER, "", ""),
        ("lost communication with a remote daemon of mine\n", "", ""),
    ],
)
def test_which_host_is_lost_or_lacks_the_program(text: str, host: str, program: str) -> None:
    how = RankEnd.LACKS if program else RankEnd.LOST
    told = [RankEnded(None, how, host, what=program)] if host else []
    assert reports(f"before\n{text}after\n".encode()) == told


def read(parser: Parser, text: bytes, size: int = 4000) -> tuple[bytes, list[RankEnded]]:
    """What is forwarded of a text that comes in pieces, and what it reports."""
    shown, ends = b"", list[RankEnded]()
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    for piece in (*pieces, b""):
        held, parser.held = parser.held, b""
        more, found = parser.parse(held + piece, last=not piece)
        shown, ends = shown + more, ends + found
    return shown, list(dict.fromkeys(ends))  # of one that comes again the first counts


def test_a_message_on_stderr_may_come_in_pieces_and_all_goes_on() -> None:
    text = (LOST_5 + NO_FILE_5 + "a\n\0b\n\0").encode()
    lacks = RankEnded(None, RankEnd.LACKS, "w-1.w.default.svc", what="/opt/only/here it is")
    lost = RankEnded(None, RankEnd.LOST, "w-1")
    assert read(StderrMessages(), text, 1) == (text, [lost, lacks])


@pytest.mark.parametrize("size", [1, 7, 100, 4000])
def test_mpiruns_messages_go_on_without_states_and_what_is_harmless(size: int) -> None:
    text = PRIMARY.encode() + b"\xff odd\n"
    states = state(1, "RUNNING") + state(4, "ABORTED BY SIGNAL")
    for name in ("rsh", "ssh"):
        states += f"[l:23] plm:{name}: Warning: setpgid(29,29) failed in parent with EACCES\n"
    whole = states.encode() + text + state(1, "IOF COMPLETE").encode() + b"without \0an end"
    shown, ends = read(MpirunMessages(), whole, size)
    assert RankEnded(4, RankEnd.SIGNAL) in ends
    assert shown == text + b"without an end\n"


@pytest.mark.parametrize(
    ("family", "local", "environ", "led"),
    [
        ("openmpi4", False, {}, True),
        ("openmpi5", False, {}, True),
        # A rank there would get the variable without the handle.
        ("openmpi4", True, {}, False),
        ("mpich", False, {}, False),
        ("openmpi4", False, {"OPAL_OUTPUT_STDERR_FD": "5"}, False),
    ],
)
def test_which_mpirun_gets_a_descriptor_for_its_messages(
    family: str, environ: dict[str, str], *, local: bool, led: bool
) -> None:
    found = output.variables(family, environ, local=local)
    assert ("200" in found.values()) == led


def test_a_ranks_host(tmp_path: Path) -> None:
    folder = str(tmp_path)
    assert output.host_of(folder, 1) == ""
    (tmp_path / PLACEMENT).write_text(
        "(rank, host, exe, pid) = (0, w-0, ./a, 16)\n"
        "(rank, host, exe, pid) = (1, w-1, ./a, b (1, 2), 17)\n"
        "(rank, host, exe, pid) = (11, w-2, ./a, 17)"
    )
    found = [output.host_of(folder, rank) for rank in (0, 1, 11, 2)]
    assert found == ["w-0", "w-1", "w-2", ""]


HYDRAS_RULE = "=" * 83 + "\n"
TITLE = f"[mpiexec@{os.uname().nodename}] Exit codes: "
MPICH = (
    f"\n{HYDRAS_RULE}=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n"
    "=   PID 54 RUNNING AT w-1.job.ns.svc\n=   EXIT CODE: {}\n"
    "=   CLEANING UP REMAINING PROCESSES\n=   YOU CAN IGNORE THE BELOW CLEANUP MESSAGES\n"
    f"{HYDRAS_RULE}"
)
INTEL = (
    f"\n{HYDRAS_RULE}=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n"
    "=   RANK 1 PID 35 RUNNING AT w-1\n=   KILLED BY SIGNAL: 15 (Terminated)\n"
    f"{HYDRAS_RULE}"
)
TIMED_OUT = RankEnded(None, RankEnd.TIMED_OUT)
SAID = "YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)\n"


@pytest.mark.parametrize("size", [1, 7, 64, 1000])
@pytest.mark.parametrize(
    ("block", "end"),
    [
        (MPICH.format(9), RankEnded(None, RankEnd.SIGNAL, "w-1.job.ns.svc", 9)),
        # 128 more where there is a core file.
        (MPICH.format(139), RankEnded(None, RankEnd.SIGNAL, "w-1.job.ns.svc", 11)),
        (INTEL, RankEnded(1, RankEnd.SIGNAL, "w-1", 15)),
        ("[mpiexec@l] APPLICATION TIMED OUT, TIMEOUT = 3s\n", TIMED_OUT),
        ("I_MPI_JOB_TIMEOUT = 3 second(s): job ending due to application timeout\n", TIMED_OUT),
    ],
)
def test_the_rank_that_a_signal_ended_is_read_and_passed_on(
    block: str, end: RankEnded, size: int
) -> None:
    text = f"epoch 1\n{block}{SAID}epoch 2, without an end".encode()
    assert read(HydraMessages(take_out=True), text, size) == (text, [end])


@pytest.mark.parametrize("size", [1, 7, 64, 1000])
@pytest.mark.parametrize("number", ["", ":1"])
def test_lines_with_statuses_are_mpiboots_alone(size: int, number: str) -> None:
    """Intel MPI writes a number behind each host."""
    listed = f"[w-0.job.ns.svc] 15\n[w-1.job.ns.svc{number}] 768\n"
    end = RankEnded(None, RankEnd.STATUS, "w-1.job.ns.svc", code=3, last=True)
    found = read(HydraMessages(take_out=True), f"last words[{TITLE}{listed}{SAID}".encode(), size)
    assert found == (f"last words[{SAID}".encode(), [end])


@pytest.mark.parametrize("end", ["", "\n"])
def test_a_user_who_wants_them_sees_them(end: str) -> None:
    text = f"{TITLE}[w-0.job.ns.svc] 0,256{end}".encode()
    exited = RankEnded(None, RankEnd.STATUS, "w-0.job.ns.svc", code=1, last=True)
    assert read(HydraMessages(take_out=False), text) == (text, [exited])


def test_what_only_resembles_them_goes_on() -> None:
    text = f"{TITLE}\n[w-0] fine\n{TITLE[:-3]}x\n[w-0.job.ns.svc] 256\n{TITLE[:9]}"
    assert read(HydraMessages(take_out=True), text.encode()) == (
        text.replace(TITLE, "").encode(),
        [],
    )


@pytest.mark.parametrize(
    ("statuses", "signal", "code"),
    [
        ((0, 0), None, None),
        ((9, 11, 9), 11, 0),
        ((15, 9), 9, 0),
        ((0, 15), 15, 0),
        ((9, 768), 0, 3),
    ],
)
def test_what_mpirun_ended_itself_explains_less(
    statuses: tuple[int, ...], signal: int | None, code: int | None
) -> None:
    """Measured with 5.0.2: beside a rank that SIGABRT ended its host's others have 9."""
    found = first_failure({"w-0": statuses})
    assert [(end.signal, end.code) for end in found] == ([] if signal is None else [(signal, code)])
