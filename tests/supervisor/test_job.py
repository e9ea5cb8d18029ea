from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpiboot.core.checks import BY_REFERENCE
from mpiboot.core.launch_spec import LaunchSpec
from mpiboot.core.setting_types import LogLevel
from mpiboot.supervisor import job as jobs
from mpiboot.supervisor import verdict as verdicts
from mpiboot.supervisor.job import Job
from mpiboot.supervisor.state import (
    FAMILIES,
    Action,
    AgentConnected,
    AgentEnded,
    AgentStarted,
    CountRanks,
    Event,
    Finish,
    HostEnding,
    HostFacts,
    KillMpirun,
    LogLine,
    MpirunEnded,
    RankEnd,
    RankEnded,
    RanksCounted,
    RanksLeft,
    ReleaseMpirun,
    SendSignal,
    SessionOver,
    Signalled,
    StartTimer,
    StopRanks,
    Timer,
    TimerFired,
    Verdict,
)

TERM, INT, USR1 = 15, 2, 10
HOSTS = ("w-1", "w-2")


def job(family: str = "openmpi4", hosts: tuple[str, ...] = HOSTS) -> LaunchSpec:
    return LaunchSpec(
        argv=(),
        family=family,
        remote_hosts=hosts,
        hosts=len(hosts),
        ranks=None,
        launch_timeout=120.0,
        grace=20.0,
        folder="",
        obstacles=(("OMPI_MCA_x", "hides the hostfile"),),
    )


def begun(spec: LaunchSpec | None = None) -> Job:
    """A job whose mpirun has just been started."""
    made = Job(spec or job())
    made.begin()
    return made


def changed(before: Job, **changes: Any) -> Job:  # noqa: ANN401 - fields of the spec
    """The same with another spec."""
    made = deepcopy(before)
    made.spec = replace(made.spec, **changes)
    return made


def go(events: Iterable[Event], start: Job | None = None) -> tuple[Job, tuple[Action, ...]]:
    state = deepcopy(start) if start else begun()
    done = [action for event in events for action in state.step(event)]
    return state, tuple(done)


def started(hosts: tuple[str, ...] = HOSTS) -> list[Event]:
    return [AgentStarted(host, pid) for pid, host in enumerate(hosts, 100)]


def running(family: str = "openmpi4", hosts: tuple[str, ...] = HOSTS) -> Job:
    connected = [AgentConnected(host) for host in hosts]
    events: list[Event] = [*started(hosts), *connected, RanksCounted(dict.fromkeys(hosts, 1))]
    state, _ = go(events, begun(job(family, hosts)))
    assert state.launched
    state.pending.clear()
    return state


def ended_well() -> list[Event]:
    return [AgentEnded(host, pid, 0) for pid, host in enumerate(HOSTS, 100)]


def fire_all(state: Job) -> tuple[Job, tuple[Action, ...]]:
    done: tuple[Action, ...] = ()
    for _ in range(10):
        # The order of the clock does not matter for whether there is an end.
        state, actions = go([TimerFired(timer) for timer in sorted(state.pending)], state)
        done += actions
    return state, done


def judged(events: Iterable[Event | HostFacts], start: Job | None = None) -> Verdict:
    """The verdict, when all timers have fired; what hosts answer comes after all events."""
    hosts, happened = list[HostFacts](), list[Event]()
    for item in events:
        if isinstance(item, HostFacts):
            hosts.append(item)
        else:
            happened.append(item)
    state, _ = fire_all(go(happened, start)[0])
    assert state.finished
    return verdicts.verdict(state, hosts)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("code", [0, 1, 3, 77, 128, 255])
def test_a_job_whose_daemons_end_well_keeps_the_programs_own_code(family: str, code: int) -> None:
    assert judged([*ended_well(), MpirunEnded(code)], running(family)).code == code
    assert judged([MpirunEnded(code), *ended_well()], running(family)).code == code


def test_a_job_without_remote_hosts_has_no_launch_phase() -> None:
    state = Job(job(hosts=()))
    assert (state.launched, state.begin()) == (True, [])
    assert judged([MpirunEnded(0)], state).code == 0


def test_a_failing_mpirun_without_its_agents_keeps_its_code() -> None:
    end = judged([MpirunEnded(213)])
    assert (end.code, end.reference) == (213, "")
    assert end.evidence == ("OMPI_MCA_x: hides the hostfile",)


@pytest.mark.parametrize(
    ("status", "words", "reference", "code"),
    [
        (255, "root@w-2: Permission denied (publickey).", "ssh-denied", 77),
        (255, "Host key verification failed.", "host-key-differs", 77),
        (255, "No ED25519 host key is known for w-2 ...", "host-key-differs", 77),
        (255, "ssh: connect to host w-2 port 22: Connection refused", "workers-unreachable", 69),
        (255, "ssh: connect to host w-2 port 22: Connection timed out", "workers-unreachable", 69),
        (255, "", "workers-unreachable", 69),
        (127, "", "program-missing", 127),
        (213, "", "daemon-failed", 69),
    ],
)
@pytest.mark.parametrize("family", FAMILIES)
def test_an_agent_that_is_never_connected_names_the_host_and_sshs_words(
    family: str, status: int, words: str, reference: str, code: int
) -> None:
    lines = (words,) if words else ()
    start = begun(job(family))
    events: list[Event] = [*started(), AgentEnded("w-2", 101, status, lines)]
    for mpirun in (MpirunEnded(status), MpirunEnded(0)):
        end = judged([*events, mpirun], start)
        assert (end.host, end.reference, end.code) == ("w-2", reference, code)
        assert words in end.message
    # and where mpirun waits for ever, it is ended
    state, _ = go(events, start)
    state, done = fire_all(state)
    assert verdicts.verdict(state).code == code
    assert SendSignal(TERM) in done
    assert KillMpirun() in done


def test_a_daemon_that_ends_with_a_failed_program_is_not_blamed() -> None:
    # Open MPI 5: the program is missing everywhere, prted ends with 1 and mpirun with 183
    state = running("openmpi5")
    assert judged([AgentEnded("w-1", 100, 1), MpirunEnded(183)], state).code == 183
    assert judged([MpirunEnded(183), AgentEnded("w-1", 100, 1)], state).code == 183
    # too many ranks: all of them end with 1
    assert judged([AgentEnded("w-1", 100, 1), MpirunEnded(1)], state).code == 1
    late = begun(job("openmpi5"))
    assert judged([*started(), AgentEnded("w-1", 100, 1), MpirunEnded(183)], late).code == 183


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("status", [0, 1, 14, 137, 205, 255])
@pytest.mark.parametrize("order", ["before", "after"])
def test_a_host_lost_while_running_is_69_whatever_mpirun_returns(
    family: str, status: int, order: str
) -> None:
    lost: list[Event | HostFacts] = [
        AgentEnded("w-2", 101, 255, ("Timeout, server w-2 not responding.",)),
        HostFacts("w-2", False, "No route to host"),
        AgentEnded("w-1", 100, 0),
    ]
    mpirun: list[Event | HostFacts] = [MpirunEnded(status)]
    events = lost + mpirun if order == "before" else mpirun + lost
    end = judged(events, running(family))
    if (order, status) == ("after", 0) and family != "openmpi5":
        assert end.code == 0
        return
    assert (end.code, end.reference, end.host) == (69, "host-lost", "w-2")
    assert "not responding" in end.message
    assert "No route to host" in end.message
    assert f"returned {status}" in end.message


def test_an_mpirun_that_goes_on_without_a_lost_host_is_ended() -> None:
    state, done = fire_all(go([AgentEnded("w-2", 101, 255)], running())[0])
    assert SendSignal(TERM) in done
    assert KillMpirun() in done
    assert verdicts.verdict(state).code == 69


@pytest.mark.parametrize(
    ("status", "signal", "told"), [(0, 0, False), (205, 0, True), (3, 0, False), (0, 9, False)]
)
def test_an_agent_killed_after_mpirun_is_told_where_its_host_may_be_lost(
    status: int, signal: int, *, told: bool
) -> None:
    end = MpirunEnded(status, signal)
    _, done = go([end, AgentEnded("w-1", 100, -9, killed=True)], running())
    message = LogLine(LogLevel.WARNING, "agent", "its launch agent was killed by SIGKILL", "w-1")
    assert (message in done) == told


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("number", [1, 2, 3, 15])
@pytest.mark.parametrize("status", [0, 1, 2, 15, 255])
def test_a_signal_is_forwarded_and_ends_in_128_plus_n(
    family: str, number: int, status: int
) -> None:
    for start in (begun(job(family)), running(family)):
        state, done = go([Signalled(number)], start)
        if start.launched:
            assert not [action for action in done if isinstance(action, SendSignal)]
            state, done = go([RanksLeft(None)], state)
        assert SendSignal(number) in done
        end = judged([MpirunEnded(status)], state)
        assert (end.code, end.reference) == (128 + number, "")


def test_a_signal_is_repeated_after_the_grace_and_then_mpirun_is_killed() -> None:
    state, done = go([Signalled(TERM)], running())
    assert done == (StopRanks(TERM, 20.0), StartTimer(Timer.GRACE, 20.0))
    state, done = go([TimerFired(Timer.GRACE)], state)
    assert done[1:] == (SendSignal(TERM), StartTimer(Timer.KILL, 5.0))
    state, done = go([TimerFired(Timer.KILL)], state)
    assert done == (KillMpirun(), StartTimer(Timer.KILLED, 5.0))
    state, done = go([TimerFired(Timer.KILLED)], state)
    assert done == (Finish(),)
    assert verdicts.verdict(state).code == 143


def test_ranks_alone_are_told_and_mpirun_follows_the_last_of_them() -> None:
    state, _ = go([Signalled(TERM)], running())
    state, done = go([RanksLeft(4)], state)
    assert done == (
        LogLine(LogLevel.INFO, "signal", "sent SIGTERM to 4 ranks; waiting up to 20 s"),
    )
    state, done = go([RanksLeft(3)], state)
    assert done == ()
    state, done = go([RanksLeft(0)], state)
    assert done == (ReleaseMpirun(), StartTimer(Timer.GRACE, 5.0))
    state, done = go([TimerFired(Timer.GRACE)], state)
    assert done == (SendSignal(TERM), StartTimer(Timer.KILL, 5.0))
    assert judged([MpirunEnded(0)], state).code == 143


def test_ranks_that_ignore_it_are_told_of_when_the_grace_is_over() -> None:
    state, _ = go([Signalled(TERM), RanksLeft(4), RanksLeft(1)], running())
    _, done = go([TimerFired(Timer.GRACE)], state)
    message = "one rank did not end in time: mpirun ends what is left"
    assert done == (
        LogLine(LogLevel.WARNING, "signal", message),
        SendSignal(TERM),
        StartTimer(Timer.KILL, 5.0),
    )


def test_ranks_of_which_no_number_came_are_not_said_to_be_late() -> None:
    state, _ = go([Signalled(TERM)], running())
    _, (message, *_) = go([TimerFired(Timer.GRACE)], state)
    assert isinstance(message, LogLine)
    assert message.message == "no count of the ranks that are left came in time: mpirun ends them"


def test_a_host_whose_session_is_over_is_not_waited_for_while_ranks_save() -> None:
    lost = AgentEnded("w-2", 101, 255)
    state, _ = go([Signalled(TERM)], running())
    assert go([lost], state)[1] == (SessionOver("w-2"),)
    # Nobody is asked any more, or is asked as one of several sessions of that host.
    assert go([lost], go([RanksLeft(0)], state)[0])[1] == ()
    again, _ = go([AgentStarted("w-2", 201)], state)
    assert go([lost], again)[1] == ()
    # It was lost before.
    assert SessionOver("w-2") in go([lost, Signalled(TERM)], running())[1]


def test_a_pod_that_is_told_to_end_ends_the_job_and_every_rank_may_save() -> None:
    state, done = go([HostEnding("w-2")], running())
    assert done[1:] == (StopRanks(TERM, 20.0), StartTimer(Timer.GRACE, 20.0))
    state, _ = go([RanksLeft(2), AgentEnded("w-2", 101, 255), RanksLeft(0)], state)
    end = judged([MpirunEnded(205)], state)
    assert (end.code, end.reference, end.host) == (69, "host-lost", "w-2")


def test_a_job_whose_worker_told_first_is_told_to_end_itself() -> None:
    """All pods are told together: the launcher's own signal is no second one."""
    state, _ = go([HostEnding("w-1"), RanksLeft(2)], running())
    state, done = go([Signalled(TERM)], state)
    assert done == ()
    assert judged([MpirunEnded(1)], state).code == 143
    assert any(isinstance(item, SendSignal) for item in go([Signalled(TERM)], state)[1])


@pytest.mark.parametrize("signal", [0, 11])
def test_a_jobs_own_end_may_come_after_a_workers_and_mpiruns(signal: int) -> None:
    """4.1.4 was seen to crash as its daemons left."""
    ended: list[Event] = [HostEnding("w-1"), AgentEnded("w-1", 100, 255), MpirunEnded(1, signal)]
    state, done = go(ended, running())
    assert not any(isinstance(item, Finish) for item in done)
    assert judged([Signalled(TERM)], state).code == 143
    assert judged(ended, running()).reference == "host-lost"


@pytest.mark.parametrize(
    "events",
    [
        [Signalled(TERM)],
        [Signalled(INT, True)],  # a terminal has told mpirun already
        [HostEnding("w-1")],
        [AgentEnded("w-1", 100, 255)],  # its ranks can't save any more
    ],
    ids=str,
)
def test_a_pod_that_ends_with_the_job_is_no_news(events: list[Event]) -> None:
    assert go([HostEnding("w-2")], go(events, running())[0])[1] == ()


def test_nobody_but_a_host_of_the_job_ends_it() -> None:
    assert go([HostEnding("stranger")], running())[1] == ()


def test_how_ranks_are_told_is_the_jobs_own_choice() -> None:
    state = running()
    other = changed(state, stop_signal=USR1)
    assert go([Signalled(INT)], other)[1] == (StopRanks(USR1, 20.0), StartTimer(Timer.GRACE, 20.0))
    at_once = changed(state, grace=0.0)
    assert go([Signalled(TERM)], at_once)[1] == (SendSignal(TERM), StartTimer(Timer.GRACE, 0.0))


def test_a_launch_gets_a_short_grace_for_no_rank_has_anything_to_save() -> None:
    assert StartTimer(Timer.GRACE, 5.0) in go([Signalled(TERM)])[1]


def test_a_second_signal_shortens_the_grace_and_a_third_kills() -> None:
    state, _ = go([Signalled(TERM)], running())
    state, done = go([Signalled(INT)], state)
    assert done[1:] == (SendSignal(INT), StartTimer(Timer.KILL, 5.0))
    state, done = go([Signalled(TERM)], state)
    assert KillMpirun() in done
    assert judged([MpirunEnded(0, 9)], state).code == 143


def test_what_the_terminal_sent_to_mpirun_too_is_not_sent_twice() -> None:
    state, done = go([Signalled(INT, direct=True)], running())
    assert done == (StartTimer(Timer.GRACE, 20.0),)
    assert judged([MpirunEnded(0)], state).code == 130


def test_usr1_is_kept_from_an_mpirun_that_has_no_ranks_yet() -> None:
    _, done = go([*started(), AgentConnected("w-1"), Signalled(USR1)])
    assert not [action for action in done if isinstance(action, SendSignal)]
    assert any(isinstance(action, LogLine) and "SIGUSR1" in action.message for action in done)


def test_usr1_is_forwarded_and_nothing_else() -> None:
    state, done = go([Signalled(USR1)], running())
    assert done == (SendSignal(USR1),)
    assert vars(state) == vars(running())


SEGV = RankEnded(1, RankEnd.SIGNAL, "w-2", 11)
ABORT = RankEnded(0, RankEnd.ABORT, "w-1")


EXITED = RankEnded(1, RankEnd.STATUS, "w-2", code=3, last=True)
KILLED = RankEnded(None, RankEnd.SIGNAL, "w-1", 9)
LACKS = RankEnded(None, RankEnd.LACKS, "w-2", what="/x/it")


LAUNCHING = begun()
GONE = AgentEnded("w-2", 101, 255)
KILLED_AGENT = AgentEnded("w-2", 101, -9, killed=True)
OTHER_KILLED = AgentEnded("w-1", 100, -9, killed=True)
LOST_DAEMON = RankEnded(None, RankEnd.LOST, "w-2")
ANSWERS = HostFacts("w-2", True)
NOT_RESPONDING = AgentEnded("w-2", 101, 255, ("Timeout, server w-2 not responding.",))
NO_ANSWER = AgentEnded("w-2", 101, 255, ("w-2: Server not responding to keepalive",))
KEEP_ALIVE = "for MPIBOOT_SSH_KEEPALIVE, though it answers"
MISSING = (127, "program-missing", "w-2")
WELL, LOST_HOST, IN_TIME = (0, "", ""), (69, "host-lost", "w-2"), TimerFired(Timer.SUSPENSION)


@pytest.mark.parametrize(
    ("start", "events", "end", "words"),
    [
        # Before anybody saw its sessions begin.
        (LAUNCHING, [*started(), *ended_well(), MpirunEnded(0)], WELL, "the program succeeded"),
        # A keep-alive that failed, of a host whose port answers; and a daemon that was killed.
        *(
            (running(), [agent, ANSWERS, MpirunEnded(1)], (69, "daemon-failed", "w-2"), KEEP_ALIVE)
            for agent in (NOT_RESPONDING, NO_ANSWER)
        ),
        (
            running(),
            [GONE, ANSWERS, MpirunEnded(0), AgentEnded("w-1", 100, 0)],
            *(LOST_HOST, "still answers"),
        ),
        # orted answers SIGTERM with 1; mpirun then with 205, or 5.0 with 0.
        *(
            (running(kind), [AgentEnded("w-2", 101, 1), MpirunEnded(code)], LOST_HOST, "with 1")
            for kind, code in (("openmpi4", 205), ("openmpi5", 0))
        ),
        # An mpirun that kills its late agents keeps its own code.
        *(
            (running(), events, (status, "", ""), "")
            for status in (3, 137, 139)
            for events in (
                [AgentEnded("w-1", 100, -9), MpirunEnded(status)],
                [MpirunEnded(status), AgentEnded("w-1", 100, -9)],
            )
        ),
        # An agent that was killed while the job ran is a loss.
        *(
            (
                running(),
                [AgentEnded("w-1", 100, -9), *mpirun],
                *((69, "host-lost", "w-1"), "agent was killed by SIGKILL"),
            )
            for mpirun in ([], [MpirunEnded(0)], [MpirunEnded(9)])
        ),
        # One that is surely lost is asked about beside one that may be.
        (
            running("openmpi5"),
            [
                *(AgentEnded("w-1", 100, 1), GONE, MpirunEnded(3)),
                *(HostFacts("w-2", False), IN_TIME),
            ],
            *(LOST_HOST, "does not answer any more"),
        ),
        # Of agents that mpirun killed the lost host's is the one that mpirun names, whichever ended
        # first; after a failed program none.
        *(
            (running("openmpi5"), [*events, ANSWERS, IN_TIME], *(LOST_HOST, "lost while the job"))
            for events in (
                [KILLED_AGENT, LOST_DAEMON, OTHER_KILLED, MpirunEnded(0)],
                [OTHER_KILLED, LOST_DAEMON, KILLED_AGENT, MpirunEnded(0)],
                [LOST_DAEMON, OTHER_KILLED, KILLED_AGENT, MpirunEnded(0)],
                [LOST_DAEMON, OTHER_KILLED, MpirunEnded(255), KILLED_AGENT],
                [LOST_DAEMON, MpirunEnded(0), OTHER_KILLED, KILLED_AGENT],
                # An agent that ended by itself needs no such name.
                [OTHER_KILLED, GONE, MpirunEnded(0)],
                [GONE, OTHER_KILLED, MpirunEnded(0)],
                [OTHER_KILLED, MpirunEnded(0), GONE],
            )
        ),
        *(
            (running(family), events, (69, "host-lost", ""), which)
            for family, code in (("openmpi5", 0), ("openmpi4", 205))
            for events, which in (
                ([KILLED_AGENT, OTHER_KILLED, MpirunEnded(code)], "agents of w-2, w-1 ("),
                ([OTHER_KILLED, MpirunEnded(code), KILLED_AGENT], "agents of w-1, w-2 ("),
            )
        ),
        # A host whose daemon another one was to start (routed=binomial) never had an agent.
        *(
            (
                go([AgentStarted("w-1", 100), AgentConnected("w-1")])[0],
                [*events, MpirunEnded(255)],
                *((78, "agent-not-started", ""), "no daemon on w-2"),
            )
            for events in (
                [AgentEnded("w-1", 100, -9, killed=True)],
                [RankEnded(None, RankEnd.LOST, "w-1"), AgentEnded("w-1", 100, 1)],
            )
        ),
        # 4.1 ends with the signal of the agent over which it gave up: it killed the others later.
        (running(), [KILLED_AGENT, OTHER_KILLED, MpirunEnded(9)], LOST_HOST, "killed by SIGKILL"),
        (running("openmpi5"), [MpirunEnded(3), KILLED_AGENT, OTHER_KILLED], (3, "", ""), ""),
        # A program that mpirun could not execute, by its own words, whatever its agents end with;
        # not where the job ran, and ended otherwise.
        *(
            (
                start,
                [LACKS, GONE, MpirunEnded(code)],
                MISSING,
                "execute the program /x/it",
            )
            for start, code in ((running(), 132), (running("openmpi5"), 66), (LAUNCHING, 1))
        ),
        # Hydra has one status for all ends, or Intel MPI's dies of SIGPIPE.
        *(
            (running("intel"), [*before, LACKS, *more, MpirunEnded(*code)], MISSING, "/x/it")
            for code in ((255,), (0, 13))
            for before, more in (
                ([], [EXITED]),
                ([], [KILLED, *ended_well()]),
                ([AgentEnded("w-1", 100, 0), AgentEnded("w-2", 101, 5)], []),
            )
        ),
        (running(), [LACKS, *ended_well(), MpirunEnded(3)], (3, "", ""), "ended with 3"),
        (running(), [LACKS, *ended_well(), MpirunEnded(0)], WELL, ""),
        # A suspended job blames no host, whoever of workers and launcher is told first.
        *(
            (running("openmpi5"), events, (143, "", ""), "ended by SIGTERM")
            for events in (
                [GONE, AgentEnded("w-1", 100, 255), MpirunEnded(0), Signalled(TERM)],
                [Signalled(TERM), GONE, AgentEnded("w-1", 100, 255), MpirunEnded(0)],
                [KILLED_AGENT, MpirunEnded(0), OTHER_KILLED, Signalled(TERM)],
            )
        ),
        # Mpirun killed by somebody, and what an MPI's own status means.
        (
            running(),
            [MpirunEnded(0, 9), AgentEnded("w-1", 100, 255)],
            *((137, "", ""), "mpirun itself was killed by SIGKILL"),
        ),
        (running(), [*ended_well(), MpirunEnded(132)], (132, "", ""), "could not execute"),
        (running(), [*ended_well(), MpirunEnded(139)], (139, "", ""), "SIGSEGV"),
        # A rank that a signal of ours ended is no reason; a lost host explains its rank.
        (running(), [Signalled(TERM), SEGV, MpirunEnded(1)], (143, "", ""), "ended by SIGTERM"),
        (running("openmpi5"), [SEGV, GONE, MpirunEnded(139)], LOST_HOST, "was lost"),
        (
            running(),
            [RankEnded(1, RankEnd.SIGNAL, "w-2", 15), MpirunEnded(143)],
            (143, "", "w-2"),
            "rank 1 was ended by SIGTERM, from elsewhere or by mpirun after another rank's end",
        ),
        # The code of a spawned rank is not the job's: mpiexec lists it, and returns 0.
        (
            running("mpich"),
            [
                RankEnded(2, RankEnd.STATUS, "w-2", code=3, last=True),
                *(*ended_well(), MpirunEnded(0)),
            ],
            *(WELL, ""),
        ),
        # A host with spawned ranks alone may be lost, too.
        (
            running("mpich"),
            [
                AgentStarted("w-9", 200, spawned=True),
                AgentConnected("w-9"),
                AgentEnded("w-9", 200, 255),
            ],
            *((69, "host-lost", "w-9"), ""),
        ),
        # A client that was killed at the memory limit.
    ],
)
def test_how_it_ends(
    start: Job, events: list[Event | HostFacts], end: tuple[int, str, str], words: str
) -> None:
    found = judged(events, start)
    assert (found.code, found.reference, found.host) == end
    assert words in found.message
    assert (found.rank, found.signal) == ((1, "SIGTERM") if "rank 1 was" in words else (None, ""))


@pytest.mark.parametrize("seen", [True, False])
def test_hydras_daemons_that_fail_over_a_failed_rank_are_no_lost_hosts(seen: bool) -> None:  # noqa: FBT001
    """Those of a short job may have run unseen; one that isn't there is another matter."""
    launched = go(started(), begun(job("mpich")))[0]
    before = running("mpich") if seen else launched
    end = judged([KILLED, AgentEnded("w-1", 100, 7), MpirunEnded(255)], before)
    assert (end.code, end.reference) == (137, "")
    coded = judged([AgentEnded("w-1", 100, 7), MpirunEnded(3)], before)
    assert (coded.code, coded.reference) == (3, "")
    untold = judged([AgentEnded("w-1", 100, 7), MpirunEnded(255)], before)
    assert untold.reference == ("" if seen else "daemon-failed")
    lacking = judged([AgentEnded("w-1", 100, 127), MpirunEnded(255)], launched)
    assert lacking.code == 127


def test_every_reference_is_a_row_and_every_delay_is_known() -> None:
    assert {timer for timer in Timer if timer not in jobs.DELAYS} == {
        Timer.LAUNCH,
        Timer.GRACE,
    }
    assert {row for _, row in verdicts.SSH_WORDS} <= set(BY_REFERENCE)


def ends_job(actions: Iterable[Action]) -> bool:
    return any(
        isinstance(item, (StopRanks, KillMpirun))
        or (isinstance(item, SendSignal) and item.number not in (10, 12))
        for item in actions
    )


def warnings(actions: Iterable[Action]) -> list[str]:
    return [
        f"{item.host}: {item.message}" if item.host else item.message
        for item in actions
        if isinstance(item, LogLine) and item.level is LogLevel.WARNING
    ]


GOES_ON = ", and mpirun goes on without it. Check the others: mpiboot doctor ranks"
LATE = TimerFired(Timer.RANK_ENDED)


@pytest.mark.parametrize(
    ("start", "events", "message"),
    [
        *(
            (running(), [RankEnded(1, how, "w-2")], f"w-2: rank 1 ended badly{GOES_ON}")
            for how in (RankEnd.SIGNAL, RankEnd.ABORT, RankEnd.STATUS, RankEnd.SILENT)
        ),
        # MPICH waits in MPI_Init for it. Open MPI ends such a job.
        (
            running("mpich"),
            [LACKS, LACKS],
            f"w-2: mpirun could not find or execute the program /x/it{GOES_ON}",
        ),
        (running(), [LACKS], ""),
        # A rank that runs an mpiexec of its own shows that one's words: they are no proof.
        (running("mpich"), [SEGV], ""),
        (running("intel"), [SEGV], ""),
        # The job may be meant to go on without it.
        (changed(running(), tolerates_failure=True), [SEGV], ""),
        (running(), [SEGV, Signalled(TERM)], ""),
        (running(), [SEGV, MpirunEnded(3)], ""),
    ],
)
def test_an_mpirun_that_goes_on_without_a_rank_is_warned_of_and_not_ended(
    start: Job, events: list[Event], message: str
) -> None:
    state, _ = go(events, start)
    told, actions = go([LATE, LATE], state)
    assert warnings(actions) == ([message] if message else [])
    assert not ends_job(actions)
    if not told.being_ended and told.ended is None:
        assert judged([*ended_well(), MpirunEnded(3)], told).reference == ""


COUNT = TimerFired(Timer.LAUNCH)
NONE = "w-2 (1 of 2 remote hosts): no orted runs there 2m after mpirun's start"


@pytest.mark.parametrize(
    ("events", "ranks", "message"),
    [
        # A worker that shows no process of the launch.
        ([], {"w-1": 0, "w-2": None}, f"{NONE}; w-2: its agent was started, and is not connected"),
        ([AgentConnected("w-2")], {"w-2": None}, f"{NONE}; w-2: its agent was started, and is con"),
        ([AgentEnded("w-2", 101, 0)], {"w-2": None}, f"{NONE}; w-2: its agent ended with 0"),
        # MPICH starts a host's ranks without waiting for other hosts.
        ([], {"w-1": 3, "w-2": None}, NONE),
        ([], {"w-1": 0, "w-2": 0}, "no rank runs on any host that answers, 2m after mpirun's"),
        # Ranks run where mpirun wants them, and a host whose ranks have ended has no daemon.
        ([], {"w-1": 1, "w-2": 0}, ""),
        ([AgentEnded("w-2", 101, 0)], {"w-1": 1, "w-2": None}, ""),
        ([AgentConnected("w-2"), AgentEnded("w-2", 101, 0)], {"w-1": 0, "w-2": None}, ""),
        # Nobody answers, or only some host of which nothing is known.
        ([], {}, "no host reports whether mpirun's daemons run there"),
        ([], {"w-1": 1}, ""),
    ],
)
def test_daemons_that_are_not_there_are_warned_of_and_end_a_job_where_the_user_set_the_time(
    events: list[Event], ranks: dict[str, int | None], message: str
) -> None:
    """Fault: a job whose mpirun could not be watched was ended at the default time."""
    start = begun(replace(job(), end_late=False))
    state, actions = go([*started(), *events, COUNT], start)
    assert CountRanks() in actions
    told, actions = go([RanksCounted(ranks)], state)
    assert [text.startswith(message) for text in warnings(actions)] == ([True] if message else [])
    assert not ends_job(actions)
    assert judged([MpirunEnded(0), *ended_well()], told).code == 0
    ending = changed(state, end_late=True)
    _, actions = go([RanksCounted(ranks)], ending)
    assert ends_job(actions) == bool(message and ranks)
    if message and ranks:
        end = judged([RanksCounted(ranks), MpirunEnded(1)], ending)
        assert (end.code, end.reference) == (69, "launch-timeout")
        assert "; ".join((end.message, *end.evidence)).startswith(message)


def test_a_host_without_an_agent_needs_no_daemon() -> None:
    """As with ``--mca orte_max_vm_size 1``: which hosts are used is mpirun's decision."""
    state, done = go([*started(("w-1",)), AgentConnected("w-1"), TimerFired(Timer.RANKS)])
    assert CountRanks() in done
    state, done = go([RanksCounted({"w-1": 2, "w-2": None}), COUNT], state)
    assert (warnings(done), state.cause, Timer.LAUNCH in state.pending) == ([], None, False)
    assert judged([AgentEnded("w-1", 100, 0), MpirunEnded(0)], state).code == 0


def test_ranks_are_counted_some_time_after_the_last_agent_until_some_are_seen() -> None:
    count = StartTimer(Timer.RANKS, 10.0)
    state, done = go([*started(), *map(AgentConnected, HOSTS)])
    assert done.count(count) == 4
    assert done[-1] == LogLine(LogLevel.INFO, "launch", "all 2 remote daemons started")
    state, _ = go([RanksCounted({"w-1": 1, "w-2": 1})], state)
    assert go([AgentStarted("w-3", 200), AgentConnected("w-3")], state)[1] == ()
    # An agent of the user's tells nothing of its session.
    _, done = go([*started(), RanksCounted({"w-1": 1, "w-2": 0})])
    assert done[-1] == LogLine(LogLevel.INFO, "launch", "ranks run on 1 host")
    (one,) = [
        action
        for action in go([AgentConnected("w-1")], begun(job(hosts=("w-1",))))[1]
        if isinstance(action, LogLine)
    ]
    assert one.message == "the remote daemon started"


@pytest.mark.parametrize("host", [*HOSTS, "stranger"])
def test_a_host_whose_spawned_ranks_end_goes_on(host: str) -> None:
    """Hydra starts an agent more for them, on any host; the ranks that spawned them compute on."""
    spawned: list[Event] = [AgentStarted(host, 200, spawned=True), AgentEnded(host, 200, 0)]
    state, actions = go(spawned, running("mpich"))
    assert (state.ended_well, actions) == (set(), ())
    assert judged([*ended_well(), MpirunEnded(0)], state).code == 0


hosts = st.sampled_from((*HOSTS, "stranger"))
pids = st.integers(100, 103)
happenings: st.SearchStrategy[Event] = st.one_of(
    st.builds(AgentStarted, hosts, pids),
    st.builds(AgentConnected, hosts),
    st.builds(
        AgentEnded,
        hosts,
        pids,
        st.sampled_from((-9, 0, 1, 127, 143, 255)),
        st.just(()),
        st.booleans(),
        st.booleans(),
    ),
    st.builds(RanksCounted, st.dictionaries(hosts, st.sampled_from((None, 0, 2)))),
    st.builds(RankEnded, st.integers(0, 3), st.sampled_from(RankEnd), hosts, st.integers(0, 15)),
    st.builds(Signalled, st.sampled_from((1, 2, 3, 10, 12, 15)), st.booleans()),
    st.builds(HostEnding, hosts),
    st.builds(RanksLeft, st.sampled_from((None, 0, 1, 4))),
    st.builds(MpirunEnded, st.sampled_from((0, 1, 3, 205, 255)), st.just(0)),
    st.builds(MpirunEnded, st.just(0), st.sampled_from((9, 11, 15))),
    st.builds(TimerFired, st.sampled_from(Timer)),
)


def loses(state: Job, event: Event) -> bool:
    """Whether this event alone forbids a 0."""
    if state.finished:
        return False
    match event:
        case AgentEnded(host=host, pid=pid, status=status):
            others = state.agents - {(host, pid)}
            over = state.ended == MpirunEnded(0) and not state.stage
            over = over and 0 not in state.family.lost
            return status != 0 and not over and not any(name == host for name, _ in others)
        case Signalled(number=number):
            return number not in (10, 12)
        case _:
            return False


@settings(max_examples=300)
@given(
    st.sampled_from(sorted(FAMILIES)),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.lists(happenings, max_size=25),
)
def test_no_sequence_ends_in_0_after_a_loss_or_a_signal_and_none_without_an_end(
    family: str,
    launched: bool,  # noqa: FBT001
    tolerates_failure: bool,  # noqa: FBT001
    end_late: bool,  # noqa: FBT001
    events: list[Event],
) -> None:
    # Chance would seldom let every daemon start.
    state = running(family) if launched else begun(job(family))
    state = changed(state, tolerates_failure=tolerates_failure, end_late=end_late)
    finishes = 0
    bad = may_end = False
    for event in events:
        bad = bad or loses(state, event)
        late = end_late and isinstance(event, RanksCounted)
        may_end = may_end or bad or late or isinstance(event, HostEnding)
        may_end = may_end or (isinstance(event, AgentEnded) and event.status != 0)
        before = deepcopy(state)
        actions = state.step(event)
        finishes += actions.count(Finish())
        assert not before.finished or (actions == [] and vars(state) == vars(before))
        assert may_end or not ends_job(actions)
    state, done = fire_all(state)
    finishes += done.count(Finish())
    assert state.finished or not bad
    if not state.finished:
        finishes += state.step(MpirunEnded(0)).count(Finish())
        state, done = fire_all(state)
        finishes += done.count(Finish())
    assert state.finished
    assert finishes == 1
    end = verdicts.verdict(state)
    assert 0 <= end.code <= 255
    assert end.reference == "" or BY_REFERENCE[end.reference].code == end.code
    if bad:
        assert end.code != 0
    # what is finished stays so
    assert state.step(MpirunEnded(0)) == []


def test_the_first_lost_host_waits_a_moment_for_the_signal_that_explains_it() -> None:
    lost = (AgentEnded(host, pid, 255) for pid, host in enumerate(HOSTS, 100))
    gone: list[Event] = [*lost, MpirunEnded(205)]
    state, done = go(gone, running("openmpi5"))
    assert done.count(StartTimer(Timer.SUSPENSION, 2.0)) == 1
    assert not state.finished
    assert judged([Signalled(TERM)], state).code == 143
    assert judged([TimerFired(Timer.SUSPENSION)], state).code == 69
