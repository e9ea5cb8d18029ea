"""The sentence of an end, word by word: what a person reads when a job has failed."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from mpiboot.supervisor import verdict as verdicts
from mpiboot.supervisor.job import (
    AgentConnected,
    AgentEnded,
    AgentStarted,
    Event,
    HostFacts,
    Job,
    MpirunEnded,
    RankEnd,
    RankEnded,
    RanksCounted,
    Timer,
    TimerFired,
    how,
)
from tests.supervisor.test_job import (
    ABORT,
    END,
    EXITED,
    KILLED,
    KILLED_AGENT,
    LACKS,
    LOST_DAEMON,
    LOST_HOST,
    OTHER_KILLED,
    SEGV,
    begun,
    ended_well,
    fire_all,
    go,
    job,
    judged,
    running,
    started,
    w1,
    w2,
)


def mpi_failed(call: str) -> RankEnded:
    return RankEnded(None, RankEnd.MPI, what=call)


SOMEWHERE = (
    "a rank failed, or mpirun could not start the program on some host: see mpirun's own lines"
)
UNKNOWN = ", and no rank is known to have failed: see the lines above"
RESET = w2(255, "Connection reset by peer")


def message(events: list[Event | HostFacts], start: Job | None = None) -> tuple[int, str, str, str]:
    found = judged(events, start)
    return found.code, found.reference, found.host, found.message


@pytest.mark.parametrize(
    ("status", "words", "remote", "said"),
    [
        (255, (), "ssh", "its ssh ended with 255"),
        (143, ("a",), "kubectl", "its kubectl ended with 143 (a)"),
        (7, ("a", "b"), "ssh", "its agent ended with 7 (a; b)"),
        (254, (), "ssh", "its agent ended with 254"),
        (-9, ("a",), "ssh", "its launch agent was killed by SIGKILL"),
        (-35, (), "ssh", "its launch agent was killed by signal 35"),
    ],
)
def test_how_an_agent_ended(status: int, words: tuple[str, ...], remote: str, said: str) -> None:
    assert how(AgentEnded("w", 1, status, words), remote) == said


def test_a_pod_that_kubectl_enters_is_named_as_such() -> None:
    head = "its kubectl session was lost while the job ran: its kubectl ended with 255"
    end = judged([RESET, MpirunEnded(205)], running(by_kubectl=True))
    assert end.message.startswith(head)


FAILED, NO_ORTED = "its orted failed", "the shell there found no orted (exit 127"
SAME = "has that image the same MPI?"
LOST_SESSION = (
    "its SSH session was lost while the job ran: its ssh ended with 255; whether the host still "
    "answers is not known (mpirun itself returned 1)"
)
UNBOUND = "bash: line 1: LD_LIBRARY_PATH: unbound variable"
SYMBOL = "orted: symbol lookup error: orted: undefined symbol: prte_fd_read"
MISSING = (127, "program-missing")
NOT_FOUND = "sh: 1: orted: not found"


@pytest.mark.parametrize(
    ("events", "mpirun", "end", "words"),
    [
        # The same words of another program than ssh say nothing.
        (
            [w2(3, "timed out")],
            *(3, (69, "daemon-failed"), f"{FAILED}: its agent ended with 3 (timed out)"),
        ),
        # A host that is connected had a daemon; one of the user's own agents tells nothing of that.
        ([AgentConnected("w-2"), w2(255)], 1, (69, "host-lost"), LOST_SESSION),
        ([RanksCounted({"w-2": 1}), w2(255)], 1, (69, "host-lost"), LOST_SESSION),
        (
            [w2(255)],
            *(1, (69, "workers-unreachable"), "no orted was started: its ssh ended with 255"),
        ),
        ([w2(127)], 127, MISSING, f"{NO_ORTED}): {SAME}"),
        ([w2(127, NOT_FOUND)], 127, MISSING, f"{NO_ORTED}: {NOT_FOUND}): {SAME}"),
        *(
            (
                [w2(127, text)],
                *(127, (69, "daemon-failed"), f"{FAILED}: its agent ended with 127 ({text})"),
            )
            for text in (UNBOUND, SYMBOL, "fish: Unsupported use of '='")
        ),
    ],
)
def test_an_agent_that_ended_before_ranks_were_seen(
    events: list[Event], mpirun: int, end: tuple[int, str], words: str
) -> None:
    found = message([AgentStarted("w-2", 101), *events, MpirunEnded(mpirun)])
    assert found == (*end, "w-2", words)


@pytest.mark.parametrize(
    ("status", "mpirun", "reference"),
    [
        (1, 1, ""),  # what 5.0's mpirun ends with after mistakes of all kinds
        (3, 3, "daemon-failed"),  # of a daemon that failed as it started, passed on
        (3, 205, "daemon-failed"),
        (3, 0, "daemon-failed"),
    ],
)
def test_a_daemons_own_status_counts_where_mpirun_passed_it_on(
    status: int, mpirun: int, reference: str
) -> None:
    start = go([*started(), AgentConnected("w-1")])[0]
    assert judged([w2(status), MpirunEnded(mpirun)], start).reference == reference
    # One that had run counts by itself.
    ran = judged([w2(status), MpirunEnded(mpirun)], running())
    assert ran.reference == ("host-lost" if mpirun in (0, 205) else "")


@pytest.mark.parametrize("number", [9, 15])
def test_what_agents_did_after_mpirun_was_killed_follows_from_it(number: int) -> None:
    after = judged([MpirunEnded(0, number), w1(255)], running())
    assert (after.code, after.reference) == (128 + number, "")
    before = judged([w1(255), MpirunEnded(0, number)], running())
    assert (before.code, before.reference) == (69, "host-lost")


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (1, f"mpirun ended with 1{UNKNOWN}"),
        *((status, SOMEWHERE) for status in (132, 134, 135)),
        (136, "a rank was ended by SIGFPE"),
        (143, "a rank was ended by SIGTERM"),
        (255, f"mpirun ended with 255{UNKNOWN}"),
    ],
)
def test_mpiruns_own_status_in_words(status: int, words: str) -> None:
    end = judged([MpirunEnded(status)], running(hosts=()))
    assert (end.code, end.reference, end.host, end.message) == (status, "", "", words)
    # Only a signal's number is a rank's own.
    assert end.failed == ("program" if words.endswith(("FPE", "PIPE", "by SIGTERM")) else "mpirun")


@pytest.mark.parametrize(
    ("family", "status", "reported", "limit"),
    [
        ("openmpi4", 110, False, True),
        ("openmpi5", 241, False, True),
        ("mpich", 255, True, True),
        ("mpich", 255, False, False),
        ("mpich", 0, True, False),  # a rank's own mpiexec wrote that
    ],
)
def test_mpiruns_own_time_limit_is_named(
    family: str, status: int, *, reported: bool, limit: bool
) -> None:
    events: list[Event] = [RankEnded(None, RankEnd.TIMED_OUT)] if reported else []
    limited = begun(job(family, ()))
    end = judged([*events, MpirunEnded(status)], limited)
    assert (end.code, end.message == verdicts.TIME_LIMIT) == (status, limit)
    assert end.failed == "mpirun" or not limit


@pytest.mark.parametrize(
    ("family", "libraries", "other"),
    [
        ("openmpi5", ["libmpi.so.12"], "libmpi.so.12 (MPICH or Intel MPI)"),
        ("openmpi4", ["libmpi.so.12", "libmpich.so.12"], "libmpi.so.12, libmpich.so.12 (MPICH or"),
        ("mpich", ["libmpi.so.40"], "libmpi.so.40 (Open MPI)"),
        ("openmpi5", ["libmpi.so.40"], ""),
        # Both, one that has joined by PMIx, none, an unknown one, an unknown mpirun.
        ("openmpi5", ["libmpi.so.12", "libmpi.so.40"], ""),
        ("openmpi5", ["connected", "libmpi.so.12"], ""),
        ("", ["libmpi.so.12"], ""),
    ],
)
def test_ranks_with_another_mpis_library_are_named_where_that_is_known(
    family: str, libraries: list[str], other: str
) -> None:
    said = verdicts.other_mpi(family, libraries)
    assert said.startswith(f"the ranks have loaded {other}" if other else "")
    assert bool(said) == bool(other)


def short(text: str) -> str:
    """A message without the words that many share: ``(7)`` is what mpirun itself returned."""
    text = text.replace("with code ", "").replace(" (first failure)", "")
    return re.sub(r" \((?:first failure; )?mpirun itself returned (\d+)\)", r" (\1)", text)


SOME, SILENT = RankEnded(None, RankEnd.STATUS), RankEnded(3, RankEnd.SILENT, "w-1")
FIVE, FOUR = RankEnded(3, RankEnd.STATUS), RankEnded(3, RankEnd.STATUS, "w-1", code=4)
UNNUMBERED = RankEnded(3, RankEnd.SIGNAL)  # 5.0 reports no number: mpirun's own status has it
ABORTED, FAULT = RankEnded(1, RankEnd.SIGNAL, "w-1", 6), RankEnded(3, RankEnd.SIGNAL, "w-1", 11)
INIT, RECV = mpi_failed("MPI_Init"), mpi_failed("MPI_Recv")
BY_MPI = "MPI itself failed in"
AT_START = f"{BY_MPI} MPI_Init: its lines above say why"
BY_SEGV = (1, "w-2", "SIGSEGV", "rank 1 was ended by SIGSEGV")
BY_9 = (None, "w-1", "SIGKILL", "a rank was ended by SIGKILL (255)")


@pytest.mark.parametrize(
    ("family", "events", "status", "code", "end"),
    [
        ("openmpi5", [SEGV], 139, 139, BY_SEGV),
        ("openmpi5", [SEGV], 255, 255, (*BY_SEGV[:3], f"{BY_SEGV[3]} (255)")),
        ("openmpi5", [UNNUMBERED], 135, 135, (3, "", "SIGBUS", "rank 3 was ended by SIGBUS")),
        ("openmpi5", [UNNUMBERED], 255, 255, (3, "", "", "rank 3 was ended by a signal (255)")),
        # 4.1's status for this one also means that some host lacks the program.
        ("openmpi4", [ABORTED], 134, 134, (1, "w-1", "SIGABRT", "rank 1 was ended by SIGABRT")),
        # A peer found the connection closed before the dead rank's end was reported.
        ("openmpi5", [ABORT, UNNUMBERED], 14, 14, (3, "", "", "rank 3 was ended by a signal (14)")),
        ("openmpi5", [ABORT], 7, 7, (0, "w-1", "", "rank 0 aborted (MPI_Abort, or MPI itself) 7")),
        ("openmpi5", [FIVE], 5, 5, (3, "", "", "rank 3 exited 5")),
        # Which is mpirun's own code of a time limit, too.
        ("openmpi5", [FIVE], 241, 241, (3, "", "", "rank 3 exited 241")),
        ("openmpi4", [FIVE], 110, 110, (3, "", "", "rank 3 exited 110")),
        ("openmpi5", [SILENT], 7, 7, (3, "w-1", "", "rank 3 ended without MPI_Finalize, 7")),
        # One that is named later is the one.
        ("openmpi5", [SOME, FOUR, SOME], 4, 4, (3, "w-1", "", "rank 3 exited 4")),
        # No success, whatever mpirun returns.
        ("openmpi5", [FAULT], 0, 139, (3, "w-1", "SIGSEGV", "rank 3 was ended by SIGSEGV (0)")),
        ("openmpi5", [UNNUMBERED], 0, 1, (3, "", "", "rank 3 was ended by a signal (0)")),
        ("openmpi5", [SILENT], 0, 1, (3, "w-1", "", "rank 3 ended without MPI_Finalize, 1 (0)")),
        # Hydra's status is that of all ranks in one: MPICH's the signal's number, Intel's 255.
        ("intel", [KILLED], 255, 137, BY_9),
        ("mpich", [SEGV], 11, 139, (*BY_SEGV[:3], f"{BY_SEGV[3]} (11)")),
        # Intel MPI kills the others of a rank that failed; its list of all ranks counts.
        ("intel", [KILLED, EXITED], 255, 3, (1, "w-2", "", "rank 1 exited 3 (255)")),
        ("intel", [EXITED], 3, 3, (1, "w-2", "", "rank 1 exited 3")),
        # A rank's own mpirun may lack a program, and its rank go on.
        (
            *("intel", [LACKS, SEGV._replace(last=True)], 255, 139),
            (*BY_SEGV[:3], f"{BY_SEGV[3]} (255)"),
        ),
        # MPI itself failed, and the program is not blamed, but for what explains that.
        ("openmpi4", [INIT], 14, 14, (None, "", "", AT_START)),
        ("openmpi4", [ABORT, INIT], 14, 14, (0, "w-1", "", AT_START)),
        (
            *("openmpi4", [ABORT, RECV], 17, 17),
            (0, "w-1", "", f"{BY_MPI} MPI_Recv: its lines above say why"),
        ),
        ("openmpi4", [FIVE, RECV], 17, 17, (3, "", "", "rank 3 exited 17")),
        ("openmpi4", [RECV, SEGV], 139, 139, BY_SEGV),
        ("openmpi4", [RECV], 0, 0, (None, "", "", "the program succeeded")),
        # What follows a job's end is no failure of MPI's.
        ("openmpi4", [END, INIT], 1, 143, (None, "", "", "ended by SIGTERM (1)")),
    ],
)
def test_the_rank_that_ended_first_is_named(
    family: str,
    events: list[Event],
    status: int,
    code: int,
    end: tuple[int | None, str, str, str],
) -> None:
    found = judged([*events, *ended_well(), MpirunEnded(status)], running(family))
    assert (found.rank, found.host, found.signal, short(found.message)) == end
    assert (found.code, found.failed) == (code, "mpi" if BY_MPI in end[3] else "program")
    # A job that tolerates failures; an mpirun that was killed itself.
    if status == 0 and found.code:
        meant = running(family, tolerates_failure=True)
        assert judged([*events, *ended_well(), MpirunEnded(0)], meant).code == 0
    assert judged([*events, *ended_well(), MpirunEnded(0, 9)], running(family)).rank is None


OOM = "out of memory: the kernel killed a process of this pod"
GONE = "its name no longer resolves"
BY_KILL, BY_TERM = RankEnded(1, RankEnd.SIGNAL, "w-2", 9), RankEnded(0, RankEnd.SIGNAL, "w-1", 15)
HERE = HostFacts("me", True, here=True, memory=OOM)
OOM_1, OOM_2 = HostFacts("w-1", True, memory=OOM), HostFacts("w-2", True, memory=OOM)
LACKS_1, LACKS_2 = HostFacts("w-1", True, lacks="X"), HostFacts("w-2", True, lacks="X too")
DEAD_1, DEAD_2 = HostFacts("w-1", False), HostFacts("w-2", False)
GONE_1, GONE_2 = replace(DEAD_1, gone=GONE), replace(DEAD_2, gone=GONE)
SESSION = "w-2: its SSH session was lost while the job ran"
LOST, LOST_205, ALL_KILLED = w2(255), [w2(255), MpirunEnded(205)], [OTHER_KILLED, KILLED_AGENT]
EXITED_3, WARNED = RankEnded(0, RankEnd.STATUS, "w-1"), "w-9: warned"
BY_PRTED = AgentEnded("w-2", 101, 255, by_daemon=True)
BROKEN = w2(255, "the connection is lost")


@pytest.mark.parametrize(
    ("family", "events", "end", "said"),
    [
        # A process may have been killed for memory hours ago, and the job have done without it: it
        # explains a SIGKILL on that host.
        ("openmpi5", [BY_KILL, MpirunEnded(137), OOM_2], (137, "", "w-2"), [f"w-2: {OOM}"]),
        ("openmpi5", [BY_KILL, MpirunEnded(137), OOM_1], (137, "", "w-2"), ["", f"w-1: {OOM}"]),
        # Fault: it became "ended by SIGKILL" there. 5.0 at times hears first of a rank that it
        # ended itself, so that memory is the likely cause, and no more is known.
        ("openmpi5", [BY_TERM, MpirunEnded(143), OOM_2], (143, "", "w-1"), [f"w-2: {OOM}"]),
        ("openmpi5", [MpirunEnded(3), OOM_1], (3, "", ""), ["", f"w-1: {OOM}", WARNED]),
        # What was taken for a lost host was the end of its ssh, or of the pool, here.
        (
            *("openmpi4", [w2(137), MpirunEnded(205), HERE]),
            *((69, "launcher-memory", "me"), ["", SESSION]),
        ),
        ("openmpi4", [*LOST_205, HERE], LOST_HOST, ["", f"me: {OOM}"]),
        # A host that is gone, the blamed one first; one that can't be reached is shown as that.
        ("openmpi4", [*LOST_205, GONE_1, GONE_2], LOST_HOST, [f"w-2: {GONE}", f"w-1: {GONE}"]),
        ("openmpi4", [*LOST_205, DEAD_2], LOST_HOST, []),
        (
            *("openmpi4", [*LOST_205, HostFacts("w-1"), HostFacts("w-2")]),
            *(LOST_HOST, ["2 of 2 hosts could not be queried in time"]),
        ),
        # Of several whose agents mpirun has killed the only one that is gone.
        *(
            ("openmpi4", [*ALL_KILLED, MpirunEnded(205), *hosts], (69, "host-lost", host), [])
            for hosts, host in (
                ([HostFacts("w-1", True), DEAD_2], "w-2"),
                ([DEAD_1, DEAD_2], ""),
                ([], ""),
            )
        ),
        # What a host lacks, by its own answer, where mpirun's status leaves that open.
        (
            *("openmpi4", [MpirunEnded(132), LACKS_1, LACKS_2]),
            *((*MISSING, "w-1"), ["", "w-2: X too"]),
        ),
        # Intel MPI's proxy ends with 255 there; what another host lacks explains no loss.
        ("intel", [LOST, MpirunEnded(255), LACKS_2], (*MISSING, "w-2"), []),
        ("intel", [LOST, MpirunEnded(255), LACKS_1], LOST_HOST, []),
        # Fault: 5.0's prted of a host that has only ranks spawned later ends so, and the program
        # is well. A session that broke has words of the pool's, and mpirun reports a loss.
        ("openmpi5", [BY_PRTED, MpirunEnded(0)], (0, "", ""), []),
        ("openmpi5", [BROKEN, MpirunEnded(0)], LOST_HOST, []),
        ("openmpi5", [BY_PRTED, LOST_DAEMON, MpirunEnded(0)], LOST_HOST, []),
    ],
)
def test_what_hosts_answer_counts_by_itself(
    family: str, events: list[Event | HostFacts], end: tuple[int, str, str], said: list[str]
) -> None:
    """``said`` is what hosts reported, the cause, and behind an empty word the evidence."""
    hosts = [item for item in events if isinstance(item, HostFacts)]
    happened = [item for item in events if isinstance(item, Event)]
    state, _ = fire_all(go([*happened, *ended_well()], running(family))[0])
    found = verdicts.verdict(state, hosts, {"w": WARNED} if WARNED in said else {})
    assert (found.code, found.reference, found.host) == end
    lines = [*found.reported, *([""] if found.evidence else []), *found.evidence]
    assert len(lines) >= len(said)
    assert all(line.startswith(start) for line, start in zip(lines, said, strict=False))
    assert found.gone == any(host.name == found.host and host.answered is False for host in hosts)


@pytest.mark.parametrize(
    ("family", "status", "hosts", "end"),
    [
        # A session on a node under pressure: mpirun reports that the program succeeded.
        ("openmpi5", 0, [HostFacts("w-1", True), HostFacts("w-2", True)], (0, "")),
        ("openmpi5", 0, [DEAD_2], (69, "w-2")),
        ("openmpi5", 0, [], (69, "w-1")),
        ("openmpi5", 3, [HostFacts("w-2", True)], (3, "")),
        ("openmpi4", 0, [DEAD_2], (0, "")),
        ("mpich", 0, [], (0, "")),
    ],
)
def test_a_session_that_stays_open_after_mpirun_is_a_loss_where_its_host_is_gone(
    family: str, status: int, hosts: list[HostFacts], end: tuple[int, str]
) -> None:
    found = judged([MpirunEnded(status), TimerFired(Timer.AGENTS), *hosts], running(family))
    assert (found.code, found.host) == end


def test_hosts_are_queried_about_bad_ends_alone() -> None:
    ends: list[list[Event]] = [[MpirunEnded(0), *ended_well()], [END, MpirunEnded(1)]]
    ends += [[MpirunEnded(1)], [BY_KILL, MpirunEnded(0)], [RESET, MpirunEnded(0)]]
    found = [verdicts.needs_hosts(go(events, running())[0]) for events in ends]
    assert found == [False, False, True, True, True]


def test_what_was_warned_of_before_the_start_is_evidence() -> None:
    state, _ = go([MpirunEnded(0, 6)], running(hosts=()))
    warned = {"host-names": "pi-x: too long", "working-directory": "/x is not there"}
    assert verdicts.verdict(state, (), warned).evidence == tuple(warned.values())
