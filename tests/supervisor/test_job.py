"""A started job: what each event has done, and how it ends."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpiboot.core.checks import BY_REFERENCE
from mpiboot.core.model import LogLevel
from mpiboot.supervisor import verdict as verdicts
from mpiboot.supervisor.job import (
    FAMILIES,
    Action,
    AgentConnected,
    AgentEnded,
    AgentStarted,
    CountRanks,
    Event,
    HostEnding,
    HostFacts,
    Job,
    LaunchSpec,
    LogLine,
    MpirunEnded,
    RankEnd,
    RankEnded,
    RanksCounted,
    RanksLeft,
    SendSignal,
    Signalled,
    StartTimer,
    StopRanks,
    Timer,
    TimerFired,
    Verdict,
    lacks,
)
from tests.fakes import launches

HUP, INT, QUIT, KILL_9, USR1, USR2, TERM, CONT = 1, 2, 3, 9, 10, 12, 15, 18
HOSTS = ("w-1", "w-2")


def job(family: str = "openmpi4", hosts: tuple[str, ...] = HOSTS, **more: Any) -> LaunchSpec:  # noqa: ANN401 - fields of the spec
    obstacles = (("OMPI_MCA_x", "hides the hostfile"),)
    more = {"flags": {"launch_timeout": "120"}, "obstacles": obstacles, **more}
    return launches.spec(family, remote_hosts=hosts, **more)


def begun(spec: LaunchSpec | None = None) -> Job:
    """A job whose mpirun has just been started."""
    made = Job(spec or job())
    made.begin()
    return made


def changed(before: Job, spec: LaunchSpec) -> Job:
    """The same with another spec."""
    made = deepcopy(before)
    made.spec = spec
    return made


def go(events: Iterable[Event], start: Job | None = None) -> tuple[Job, tuple[Action, ...]]:
    state = deepcopy(start) if start else begun()
    done = [action for event in events for action in state.step(event)]
    return state, tuple(done)


def started(hosts: tuple[str, ...] = HOSTS) -> list[Event]:
    return [AgentStarted(host, pid) for pid, host in enumerate(hosts, 100)]


def running(family: str = "openmpi4", hosts: tuple[str, ...] = HOSTS, **more: Any) -> Job:  # noqa: ANN401 - fields of the spec
    events = [*started(hosts), *map(AgentConnected, hosts)]
    state, _ = go(
        [*events, RanksCounted(dict.fromkeys(hosts, 1))], begun(job(family, hosts, **more))
    )
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
    listed = list(events)
    hosts = [item for item in listed if isinstance(item, HostFacts)]
    state, _ = go([item for item in listed if isinstance(item, Event)], start)
    state, _ = fire_all(state)
    assert state.finished
    return verdicts.verdict(state, hosts)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("code", [0, 1, 3, 77, 128, 255])
def test_a_job_whose_daemons_end_well_keeps_the_programs_own_code(family: str, code: int) -> None:
    assert judged([*ended_well(), MpirunEnded(code)], running(family)).code == code
    assert judged([MpirunEnded(code), *ended_well()], running(family)).code == code


@pytest.mark.parametrize(
    ("status", "words", "reference", "code"),
    [
        (255, "ssh: connect to host w-2 port 22: Connection refused", "workers-unreachable", 69),
        (255, "", "workers-unreachable", 69),
        (127, "", "program-missing", 127),
        (213, "", "daemon-failed", 69),
    ],
)
@pytest.mark.parametrize("family", FAMILIES)
def test_an_agent_that_is_never_connected_names_the_host_and_sshs_words(
    family: str, status: int, words: str, reference: str, code: int
) -> None:
    start = begun(job(family))
    events: list[Event] = [*started(), AgentEnded("w-2", 101, status, (words,) if words else ())]
    for mpirun in (MpirunEnded(status), MpirunEnded(0)):
        end = judged([*events, mpirun], start)
        assert (end.host, end.reference, end.code) == ("w-2", reference, code)
        assert words in end.message
    # Where mpirun waits forever, it is ended.
    state, done = fire_all(go(events, start)[0])
    assert verdicts.verdict(state).code == code
    assert {SendSignal(TERM), SendSignal(KILL_9)} <= {*done}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("status", [0, 1, 14, 137, 205, 255])
@pytest.mark.parametrize("order", ["before", "after"])
def test_a_host_lost_while_running_is_69_whatever_mpirun_returns(
    family: str, status: int, order: str
) -> None:
    words = ("Timeout, server w-2 not responding.",)
    lost: list[Event | HostFacts] = [AgentEnded("w-2", 101, 255, words), AgentEnded("w-1", 100, 0)]
    lost.insert(0 if order == "after" else 2, MpirunEnded(status))
    end = judged([*lost, HostFacts("w-2", False, "No route to host")], running(family))
    if (order, status) == ("after", 0) and family != "openmpi5":
        assert end.code == 0
        return
    assert (end.code, end.reference, end.host) == (69, "host-lost", "w-2")
    for part in (*words, "No route to host", f"returned {status}"):
        assert part in end.message


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("number", [HUP, INT, QUIT, TERM])
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


def line(message: str, host: str = "", level: LogLevel = LogLevel.WARNING) -> LogLine:
    return LogLine(level, "signal", message, host)


def fired(timer: Timer) -> TimerFired:
    return TimerFired(timer)


LOST = AgentEnded("w-2", 101, 255)
GRACE, FOLLOW = StartTimer(Timer.GRACE, 20.0), StartTimer(Timer.GRACE, 5.0)
KILL, KILLED_TIMER = StartTimer(Timer.KILL, 5.0), StartTimer(Timer.KILLED, 5.0)
SAVE, GRACE_OVER = (StopRanks(TERM), GRACE), TimerFired(Timer.GRACE)
NO_COUNT = "the ranks did not end in time: mpirun ends what is left"
ONE_LEFT = "1 rank did not end in time: mpirun ends what is left"
SENT = line("sent SIGTERM to 4 ranks; waiting up to 20 s", level=LogLevel.INFO)
ENDING = line("its pod is being ended: all ranks of the job get time to save", "w-2")
END, SAVING = Signalled(TERM), [Signalled(TERM)]


@pytest.mark.parametrize(
    ("before", "event", "done"),
    [
        ([], END, SAVE),
        (SAVING, GRACE_OVER, (line(NO_COUNT), SendSignal(TERM), KILL)),
        ([END, GRACE_OVER], fired(Timer.KILL), (SendSignal(KILL_9), KILLED_TIMER)),
        ([END, GRACE_OVER, fired(Timer.KILL)], fired(Timer.KILLED), ()),
        # The ranks alone get it, and mpirun follows the last of them.
        (SAVING, RanksLeft(4), (SENT,)),
        ([END, RanksLeft(4)], RanksLeft(3), ()),
        ([END, RanksLeft(4)], RanksLeft(0), (SendSignal(CONT), FOLLOW)),
        ([END, RanksLeft(0)], GRACE_OVER, (SendSignal(TERM), KILL)),
        ([END, RanksLeft(4), RanksLeft(1)], GRACE_OVER, (line(ONE_LEFT), SendSignal(TERM), KILL)),
        # A second signal shortens the grace, and a third one kills.
        (SAVING, Signalled(INT), (line(NO_COUNT), SendSignal(INT), KILL)),
        ([END, Signalled(INT)], END, (SendSignal(KILL_9), KILLED_TIMER)),
        # What a terminal has sent to mpirun too is not sent twice.
        ([], Signalled(INT, direct=True), (GRACE,)),
        ([], Signalled(USR1, direct=True), ()),
        ([], Signalled(USR1), (SendSignal(USR1),)),
        ([MpirunEnded(0)], Signalled(USR1), ()),
        (SAVING, LOST, ()),
        ([LOST], END, SAVE),
        # A pod that is being terminated, which is no news where the job is ended or can't save; and
        # all pods of a job are terminated together, so that the launcher's signal is no second one.
        ([], HostEnding("w-2"), (ENDING, *SAVE)),
        ([], HostEnding("stranger"), ()),
        (SAVING, HostEnding("w-2"), ()),
        ([Signalled(INT, direct=True)], HostEnding("w-2"), ()),
        ([HostEnding("w-1")], HostEnding("w-2"), ()),
        ([AgentEnded("w-1", 100, 255)], HostEnding("w-2"), ()),
        ([HostEnding("w-1"), RanksLeft(2)], END, ()),
    ],
    ids=str,
)
def test_what_is_done_at_an_event(
    before: list[Event], event: Event, done: tuple[Action, ...]
) -> None:
    state, _ = go(before, running())
    assert go([event], state)[1] == done


def test_signals_before_ranks_run_and_how_ranks_are_stopped_is_the_jobs_choice() -> None:
    assert go([END], running(flags={"stop_signal": "USR1"}))[1] == (StopRanks(USR1), GRACE)
    assert go([END], running(flags={"grace": "0"}))[1] == (
        SendSignal(TERM),
        StartTimer(Timer.GRACE, 0.0),
    )
    # No rank has anything to save yet; and 5.0 takes daemons that aren't there for an error.
    assert FOLLOW in go([END])[1]
    _, done = go([*started(), AgentConnected("w-1"), Signalled(USR1)])
    message = "SIGUSR1 is not forwarded: no rank runs yet"
    assert done[-1] == line(message, level=LogLevel.INFO)
    assert not [action for action in done if isinstance(action, SendSignal)]


@pytest.mark.parametrize("signal", [0, 11])
def test_a_jobs_own_end_may_come_after_a_workers_and_mpiruns(signal: int) -> None:
    """4.1.4 was seen to crash as its daemons left."""
    ended: list[Event] = [HostEnding("w-1"), AgentEnded("w-1", 100, 255), MpirunEnded(1, signal)]
    state, _ = go(ended, running())
    assert not state.finished
    assert judged([END], state).code == 143
    assert judged(ended, running()).reference == "host-lost"


SUSPENSION = Timer.SUSPENSION
KILLED_OTHER: Event = AgentEnded("w-2", 101, -9, killed=True)


@pytest.mark.parametrize(
    ("family", "events", "waits"),
    [
        ("openmpi4", [LOST], True),
        ("openmpi4", [LOST, END], False),
        ("openmpi5", [KILLED_OTHER], True),
        # A program that failed has its own status, and its end waits for nothing.
        ("openmpi5", [KILLED_OTHER, MpirunEnded(0)], True),
        ("openmpi5", [KILLED_OTHER, MpirunEnded(3)], False),
    ],
)
def test_a_signal_that_explains_a_loss_is_waited_for(
    family: str, events: list[Event], *, waits: bool
) -> None:
    assert (SUSPENSION in go(events, running(family))[0].pending) == waits


SEGV = RankEnded(1, RankEnd.SIGNAL, "w-2", 11)
ABORT = RankEnded(0, RankEnd.ABORT, "w-1")
EXITED = RankEnded(1, RankEnd.STATUS, "w-2", code=3, last=True)
KILLED = RankEnded(None, RankEnd.SIGNAL, "w-1", 9)
LACKS = RankEnded(None, RankEnd.LACKS, "w-2", what="/x/it")


def w1(status: int, *, killed: bool = False) -> AgentEnded:
    return AgentEnded("w-1", 100, status, killed=killed)


def w2(status: int, *words: str, killed: bool = False) -> AgentEnded:
    return AgentEnded("w-2", 101, status, words, killed=killed)


LAUNCHING, TREE = begun(), go([AgentStarted("w-1", 100), AgentConnected("w-1")])[0]
KILLED_AGENT, OTHER_KILLED = w2(-9, killed=True), w1(-9, killed=True)
LOST_DAEMON = RankEnded(None, RankEnd.LOST, "w-2")
ANSWERS = HostFacts("w-2", True)
MISSING, NO_DAEMON = (127, "program-missing", "w-2"), (78, "agent-not-started", "")
WELL, LOST_HOST, SOME_HOST = (0, "", ""), (69, "host-lost", "w-2"), (69, "host-lost", "")
IN_TIME, TERMED = TimerFired(Timer.SUSPENSION), RankEnded(1, RankEnd.SIGNAL, "w-2", 15)
BY_TERM = "rank 1 was ended by SIGTERM, from elsewhere or by mpirun after another rank's end"
SPAWNED = [AgentStarted("w-9", 200), AgentConnected("w-9"), AgentEnded("w-9", 200, 255)]


@pytest.mark.parametrize(
    ("start", "events", "end", "words"),
    [
        # Before anybody saw its sessions begin.
        (LAUNCHING, [*started(), *ended_well(), MpirunEnded(0)], WELL, "the program succeeded"),
        # A failed mpirun without its agents keeps its code.
        (LAUNCHING, [MpirunEnded(213)], (213, "", ""), "mpirun ended with 213 and started no"),
        # Open MPI 5: the program is missing everywhere, prted ends with 1 and mpirun with 183; and
        # with too many ranks all of them end with 1.
        (running("openmpi5"), [w1(1), MpirunEnded(183)], (183, "", ""), ""),
        (begun(job("openmpi5")), [*started(), w1(1), MpirunEnded(183)], (183, "", ""), ""),
        (running(), [LOST, ANSWERS, MpirunEnded(0), w1(0)], LOST_HOST, "still answers"),
        # orted answers SIGTERM with 1; mpirun then with 205, or 5.0 with 0.
        (running(), [w2(1), MpirunEnded(205)], LOST_HOST, "with 1"),
        (running("openmpi5"), [w2(1), MpirunEnded(0)], LOST_HOST, "with 1"),
        # An mpirun that kills its late agents keeps its own code.
        *(
            (running(), events, (status, "", ""), "")
            for status in (3, 137, 139)
            for events in ([w1(-9), MpirunEnded(status)], [MpirunEnded(status), w1(-9)])
        ),
        # An agent that was killed while the job ran is a loss.
        *(
            (running(), [w1(-9), *mpirun], (69, "host-lost", "w-1"), "agent was killed by SIGKILL")
            for mpirun in ([], [MpirunEnded(0)], [MpirunEnded(9)])
        ),
        # One that is surely lost is asked about beside one that may be.
        (
            running("openmpi5"),
            [w1(1), LOST, MpirunEnded(3), HostFacts("w-2", False), IN_TIME],
            *(LOST_HOST, "does not answer any more"),
        ),
        # Of agents that mpirun killed the lost host's is the one that mpirun names, whichever ended
        # first; after a failed program none. One that ended on its own needs no such name.
        *(
            (running("openmpi5"), [*events, ANSWERS, IN_TIME], LOST_HOST, "lost while the job")
            for events in (
                [KILLED_AGENT, LOST_DAEMON, OTHER_KILLED, MpirunEnded(0)],
                [OTHER_KILLED, LOST_DAEMON, KILLED_AGENT, MpirunEnded(0)],
                [LOST_DAEMON, OTHER_KILLED, MpirunEnded(255), KILLED_AGENT],
                [LOST, OTHER_KILLED, MpirunEnded(0)],
                [OTHER_KILLED, MpirunEnded(0), LOST],
            )
        ),
        *(
            (running(family), events, SOME_HOST, which)
            for family, code in (("openmpi5", 0), ("openmpi4", 205))
            for events, which in (
                ([KILLED_AGENT, OTHER_KILLED, MpirunEnded(code)], "agents of w-2, w-1 ("),
                ([OTHER_KILLED, MpirunEnded(code), KILLED_AGENT], "agents of w-1, w-2 ("),
            )
        ),
        # A host whose daemon another one was to start (routed=binomial) never had an agent.
        (TREE, [OTHER_KILLED, MpirunEnded(255)], NO_DAEMON, "no daemon on w-2"),
        (
            TREE,
            [RankEnded(None, RankEnd.LOST, "w-1"), w1(1), MpirunEnded(255)],
            *(NO_DAEMON, "no daemon on w-2"),
        ),
        # 4.1 ends with the signal of the agent over which it gave up: it killed the others later.
        (running(), [KILLED_AGENT, OTHER_KILLED, MpirunEnded(9)], LOST_HOST, "killed by SIGKILL"),
        (running("openmpi5"), [MpirunEnded(3), KILLED_AGENT, OTHER_KILLED], (3, "", ""), ""),
        # A program that mpirun could not execute, by its own words, whatever its agents end with;
        # not where the job ran, and ended otherwise.
        *(
            (start, [LACKS, LOST, MpirunEnded(code)], MISSING, "execute the program /x/it")
            for start, code in ((running(), 132), (running("openmpi5"), 66), (LAUNCHING, 1))
        ),
        # Hydra has one status for all ends, or Intel MPI's dies of SIGPIPE.
        *(
            (running("intel"), [*events, MpirunEnded(*code)], MISSING, "/x/it")
            for code in ((255,), (0, 13))
            for events in ([LACKS, EXITED], [LACKS, KILLED, *ended_well()], [w1(0), w2(5), LACKS])
        ),
        (running(), [LACKS, *ended_well(), MpirunEnded(0)], WELL, ""),
        # A suspended job blames no host, whoever of workers and launcher gets its signal first.
        *(
            (running("openmpi5"), events, (143, "", ""), "ended by SIGTERM")
            for events in (
                [LOST, w1(255), MpirunEnded(0), END],
                [END, LOST, w1(255), MpirunEnded(0)],
                [KILLED_AGENT, MpirunEnded(0), OTHER_KILLED, END],
            )
        ),
        # All pods of a job are terminated together; else the one that was is the reason.
        (
            running(),
            [HostEnding("w-2"), LOST, RanksLeft(0), MpirunEnded(205)],
            LOST_HOST,
            "its pod",
        ),
        # Of two signals the first is the job's end; and what it did to mpirun or a rank is none.
        (running(), [Signalled(INT), END, MpirunEnded(0)], (130, "", ""), "ended by SIGINT"),
        (running(), [END, SEGV, MpirunEnded(1)], (143, "", ""), "ended by SIGTERM"),
        # Mpirun killed by somebody, and what an MPI's own status means.
        (
            running(),
            [MpirunEnded(0, 9), w1(255)],
            (137, "", ""),
            "mpirun itself was killed by SIGK",
        ),
        (running(), [*ended_well(), MpirunEnded(132)], (132, "", ""), "could not start"),
        # A lost host explains its rank.
        (running("openmpi5"), [SEGV, LOST, MpirunEnded(139)], LOST_HOST, "was lost"),
        (running(), [TERMED, MpirunEnded(143)], (143, "", "w-2"), BY_TERM),
        # A host with spawned ranks alone may be lost, too.
        (running("mpich"), SPAWNED, (69, "host-lost", "w-9"), ""),
    ],
)
def test_how_it_ends(
    start: Job, events: list[Event | HostFacts], end: tuple[int, str, str], words: str
) -> None:
    found = judged(events, start)
    assert (found.code, found.reference, found.host) == end
    assert words in found.message
    assert (found.rank, found.signal) == ((1, "SIGTERM") if words == BY_TERM else (None, ""))
    obstacles = found.code == 213 or found.reference == "agent-not-started"
    assert (found.evidence == ("OMPI_MCA_x: hides the hostfile",)) is obstacles


@pytest.mark.parametrize("seen", [True, False])
def test_hydras_daemons_that_fail_over_a_failed_rank_are_no_lost_hosts(*, seen: bool) -> None:
    """Those of a short job may have run unseen; one that isn't there is another matter."""
    launched = go(started(), begun(job("mpich")))[0]
    before = running("mpich") if seen else launched
    rows: list[tuple[list[Event | HostFacts], int, str]] = [
        ([KILLED, w1(7), MpirunEnded(255)], 137, ""),
        ([w1(7), MpirunEnded(3)], 3, ""),
        ([w1(7), MpirunEnded(255)], 255 if seen else 69, "" if seen else "daemon-failed"),
    ]
    for events, code, reference in rows:
        end = judged(events, before)
        assert (end.code, end.reference) == (code, reference)
    assert judged([w1(127), MpirunEnded(255)], launched).code == 127


def ends_job(actions: Iterable[Action]) -> bool:
    signals = {item.number for item in actions if isinstance(item, (SendSignal, StopRanks))}
    return bool(signals - {USR1, USR2, CONT})


def warnings(actions: Iterable[Action]) -> list[str]:
    lines = [item for item in actions if isinstance(item, LogLine)]
    return [
        f"{item.host}: {item.message}" if item.host else item.message
        for item in lines
        if item.level is LogLevel.WARNING
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
        (running("mpich"), [LACKS, LACKS], f"w-2: {lacks(LACKS)}{GOES_ON}"),
        (running(), [LACKS], ""),
        # A rank that runs an mpiexec of its own shows that one's words: they are no proof.
        (running("mpich"), [SEGV], ""),
        # The job may be meant to go on without it.
        (running(tolerates_failure=True), [SEGV], ""),
        (running(), [SEGV, MpirunEnded(3)], ""),
    ],
)
def test_an_mpirun_that_goes_on_without_a_rank_is_warned_of_and_not_ended(
    start: Job, events: list[Event], message: str
) -> None:
    state, actions = go([LATE, LATE], go(events, start)[0])
    assert warnings(actions) == ([message] if message else [])
    assert not ends_job(actions)
    if not state.being_ended and state.ended is None:
        assert judged([*ended_well(), MpirunEnded(3)], state).reference == ""


COUNT = TimerFired(Timer.LAUNCH)
NONE = "w-2 (1 of 2 remote hosts): no orted runs there 2m after mpirun's start"
NO_RANK = "no rank runs on any host that answers, 2m after mpirun's start"


@pytest.mark.parametrize(
    ("events", "ranks", "message"),
    [
        # A worker that shows no process of the launch.
        ([], {"w-1": 0, "w-2": None}, NONE),
        ([w2(0)], {"w-2": None}, NONE),
        ([], {"w-1": 0, "w-2": 0}, NO_RANK),
        # Ranks run where mpirun wants them, and a host whose ranks have ended has no daemon.
        ([], {"w-1": 1, "w-2": 0}, ""),
        ([w2(0)], {"w-1": 1, "w-2": None}, ""),
        # Nobody answers, or only some host of which nothing is known.
        ([], {}, "no host reports whether mpirun's daemons run there"),
        ([], {"w-1": 1}, ""),
    ],
)
def test_daemons_that_are_not_there_are_warned_of_and_end_a_job_where_the_user_set_the_time(
    events: list[Event], ranks: dict[str, int | None], message: str
) -> None:
    """Fault: a job whose mpirun could not be watched was ended at the default time."""
    state, actions = go([*started(), *events, COUNT], begun(job(flags={})))
    assert CountRanks() in actions
    counted, actions = go([RanksCounted(ranks)], state)
    assert [text.startswith(message) for text in warnings(actions)] == ([True] if message else [])
    assert not ends_job(actions)
    assert judged([MpirunEnded(0), *ended_well()], counted).code == 0
    ending = changed(state, job())
    _, actions = go([RanksCounted(ranks)], ending)
    assert ends_job(actions) == bool(message and ranks)
    if message and ranks:
        end = judged([RanksCounted(ranks), MpirunEnded(1)], ending)
        assert (end.code, end.reference) == (69, "launch-timeout")
        assert end.message == message


def test_a_host_without_an_agent_needs_no_daemon() -> None:
    """As with ``--mca orte_max_vm_size 1``: which hosts are used is mpirun's decision."""
    state, done = go([*started(("w-1",)), AgentConnected("w-1"), TimerFired(Timer.RANKS)])
    assert CountRanks() in done
    state, done = go([RanksCounted({"w-1": 2, "w-2": None}), COUNT], state)
    assert (warnings(done), state.cause, Timer.LAUNCH in state.pending) == ([], None, False)
    assert judged([w1(0), MpirunEnded(0)], state).code == 0


def test_ranks_are_counted_some_time_after_the_last_agent_until_some_are_seen() -> None:
    def info(message: str) -> LogLine:
        return LogLine(LogLevel.INFO, "launch", message)

    state, done = go([*started(), *map(AgentConnected, HOSTS)])
    assert done.count(StartTimer(Timer.RANKS, 10.0)) == 4
    assert done[-1] == info("all 2 remote daemons started")
    state, _ = go([RanksCounted({"w-1": 1, "w-2": 1})], state)
    assert go([AgentStarted("w-3", 200), AgentConnected("w-3")], state)[1] == ()
    # Of an agent of the user's nobody knows whether it is connected.
    _, done = go([*started(), RanksCounted({"w-1": 1, "w-2": 0})])
    assert done[-1] == info("ranks run on 1 host")
    _, done = go([AgentConnected("w-1")], begun(job(hosts=("w-1",))))
    assert done[-1] == info("the remote daemon started")


@pytest.mark.parametrize("host", [*HOSTS, "stranger"])
def test_a_host_whose_spawned_ranks_end_goes_on(host: str) -> None:
    """Hydra starts an agent more for them, on any host; the ranks that spawned them compute on."""
    spawned: list[Event] = [AgentStarted(host, 200), AgentEnded(host, 200, 0)]
    state, actions = go(spawned, running("mpich"))
    assert warnings(actions) == []
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
        st.just(False),
    ),
    st.builds(RanksCounted, st.dictionaries(hosts, st.sampled_from((None, 0, 2)))),
    st.builds(
        RankEnded,
        st.integers(0, 3),
        st.sampled_from(RankEnd),
        hosts,
        st.integers(0, 15),
        st.just(0),
    ),
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
    flags = {"launch_timeout": "120"} if end_late else {}
    state = changed(state, job(family, flags=flags, tolerates_failure=tolerates_failure))
    bad = may_end = False
    for event in events:
        bad = bad or loses(state, event)
        late = end_late and isinstance(event, RanksCounted)
        may_end = may_end or bad or late or isinstance(event, HostEnding)
        may_end = may_end or (isinstance(event, AgentEnded) and event.status != 0)
        before = deepcopy(state)
        actions = state.step(event)
        assert not before.finished or (actions == [] and vars(state) == vars(before))
        assert may_end or not ends_job(actions)
    state, _ = fire_all(state)
    assert state.finished or not bad
    state.step(MpirunEnded(0))
    state, _ = fire_all(state)
    assert state.finished
    end = verdicts.verdict(state)
    assert 0 <= end.code <= 255
    assert end.reference == "" or BY_REFERENCE[end.reference].code == end.code
    if bad:
        assert end.code != 0
    # what is finished stays so
    assert state.step(MpirunEnded(0)) == []
