"""What mpirun says of its ranks: text as Open MPI 4.1.4 and 5.0.7 wrote it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpiboot.core.launch_spec import PLACEMENT
from mpiboot.supervisor import output
from mpiboot.supervisor.job import RankEnd, RankEnded
from mpiboot.supervisor.output import MpirunMessages, MpirunPipe, ReportsPipe, StderrPipe, reports
from mpiboot.system import process

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
        (state(12, "ABORTED BY SIGNAL"), [RankEnded(12, RankEnd.SIGNAL)]),
        (state(0, "EXITED WITH NON-ZERO STATUS"), [RankEnded(0, RankEnd.STATUS)]),
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
        ("*** An error occurred in MPI_Init_thread\n*** on a NULL", "MPI_Init_thread"),
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


class Stream:
    """A pipe that mpirun writes to, and what was forwarded of it."""

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()
        self.shown = b""

    def forward(self, data: bytes) -> None:
        self.shown += data

    def read(self, pipe: MpirunPipe, text: bytes, size: int = 4000) -> list[RankEnded]:
        """Write a text in pieces of a size, and read each."""
        ends: list[RankEnded] = []
        for at in range(0, len(text), size):
            os.write(self.writer, text[at : at + size])
            ends += pipe.read()
        return ends


@pytest.fixture
def stream() -> Iterator[Stream]:
    made = Stream()
    yield made
    os.close(made.reader)
    os.close(made.writer)


def test_what_an_mpirun_without_nul_bytes_of_its_own_writes_stays_as_it_is(stream: Stream) -> None:
    text = f"a\n\0b\n{NO_FILE_INTEL}\0".encode()
    ends = stream.read(ReportsPipe(stream.reader, stream.forward), text)
    assert ends == [RankEnded(None, RankEnd.LACKS, "w-1", what="/no/such")]
    assert stream.shown == text


def test_a_message_on_stderr_may_come_in_pieces(stream: Stream) -> None:
    text = (LOST_5 + NO_FILE_5).encode()
    ends = stream.read(StderrPipe(stream.reader, stream.forward), text, 1)
    assert stream.shown == text
    # It may be reported again: the first of each counts.
    lacks = RankEnded(None, RankEnd.LACKS, "w-1.w.default.svc", what="/opt/only/here it is")
    assert list(dict.fromkeys(ends)) == [RankEnded(None, RankEnd.LOST, "w-1"), lacks]


def test_messages_go_on_and_states_do_not(stream: Stream) -> None:
    text = noticed(1, "w-1", 9).encode() + b"\xff odd\n"
    whole = state(1, "RUNNING").encode() + text + state(1, "IOF COMPLETE").encode()
    ends = stream.read(MpirunMessages(stream.reader, stream.forward), whole)
    assert ends == [RankEnded(1, RankEnd.SIGNAL, "w-1", 9)]
    assert stream.shown == text


@pytest.mark.parametrize("size", [1, 7, 100, 4000])
def test_pieces_of_any_size_make_the_same(stream: Stream, size: int) -> None:
    messages = MpirunMessages(stream.reader, stream.forward)
    text = (PRIMARY + state(4, "ABORTED BY SIGNAL") + "left without an end").encode()
    assert stream.read(messages, text, size)[-1] == RankEnded(4, RankEnd.SIGNAL)
    assert stream.shown == PRIMARY.encode()
    assert messages.read_last() == []
    assert stream.shown == PRIMARY.encode() + b"left without an end\n"


WARNING = b"[l:23] plm:%s: Warning: setpgid(29,29) failed in parent with errno=EACCES(13)\n"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (b"one\n" + WARNING % b"rsh" + b"two\0\n\0three\0", b"one\ntwo\nthree\n"),
        (b"one\n" + WARNING % b"ssh" + b"two\n", b"one\ntwo\n"),
        (b"\0", b""),
    ],
)
def test_neither_nul_bytes_nor_what_is_harmless_reaches_the_log(
    stream: Stream, text: bytes, shown: bytes
) -> None:
    os.write(stream.writer, text)
    MpirunMessages(stream.reader, stream.forward).read_last()
    assert stream.shown == shown


@pytest.mark.parametrize(
    ("family", "local", "environ", "led"),
    [
        ("openmpi4", False, {}, True),
        ("openmpi5", False, {}, True),
        ("openmpi5", True, {}, True),
        # A rank there would get the variable without the handle.
        ("openmpi4", True, {}, False),
        ("mpich", False, {}, False),
        ("openmpi4", False, {"OPAL_OUTPUT_STDERR_FD": "5"}, False),
        ("openmpi5", False, {"PRTE_MCA_state_base_verbose": "5"}, False),
    ],
)
def test_which_mpirun_gets_a_descriptor_for_its_messages(
    family: str, environ: dict[str, str], *, local: bool, led: bool
) -> None:
    found = output.variables(family, environ, local=local)
    assert ("200" in found.values()) == led


def test_where_files_are_few_no_mpirun_gets_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "max_open_files", lambda: 200)
    assert output.variables("openmpi4", {}, local=False) == {}


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
