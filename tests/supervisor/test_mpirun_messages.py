"""What mpirun reports of its ranks: text as each MPI wrote it.

That is Open MPI 4.1.4 and 5.0.7, MPICH 4.0.2 and 5.0.2, and Intel MPI 2021.18.1.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mpiboot.core.launch_spec import PLACEMENT
from mpiboot.supervisor import output
from mpiboot.supervisor.job import RankEnd, RankEnded
from mpiboot.supervisor.output import (
    HydraMessages,
    MpirunMessages,
    Parser,
    StderrMessages,
    first_failure,
    reports,
)

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
