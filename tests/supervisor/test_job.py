"""A started job: what each event has done, how it ends, and the sentence that a person reads."""

from __future__ import annotations

import re
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpiboot.core.checks import BY_REFERENCE
from mpiboot.core.launch_spec import NOT_FOR_RANKS
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
    Verdict,
    how,
    lacks,
)
from tests.fakes import launches

INT, KILL_9, USR1, USR2, TERM, CONT = 2, 9, 10, 12, 15, 18
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
        state, actions = go(sorted(state.pending), state)
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
        (127, "", "program-missing", 127),
        (213, "", "daemon-failed", 69),
    ],
)
@pytest.mark.parametrize("family", FAMILIES)
def test_an_agent_that_is_never_connected_names_the_host_and_sshs_words(
    family: str, status: int, words: str, reference: str, code: int
) -> None:
    state, _ = go([*started(), w2(status, words)], begun(job(family)))
    for mpirun in (status, 0):
        end = judged([MpirunEnded(mpirun)], state)
        assert (end.host, end.reference, end.code) == ("w-2", reference, code)
        assert words in end.message
    # Where mpirun waits forever, it is ended.
    state, done = fire_all(state)
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


def line(message: str, host: str = "", level: LogLevel = LogLevel.WARNING) -> LogLine:
    return LogLine(level, "signal", message, host)


LOST = AgentEnded("w-2", 101, 255)
GRACE, FOLLOW = StartTimer(Timer.GRACE, 20.0), StartTimer(Timer.GRACE, 5.0)
KILL, KILLED_TIMER = StartTimer(Timer.KILL, 5.0), StartTimer(Timer.KILLED, 5.0)
SAVE, GRACE_OVER = (StopRanks(TERM), GRACE), Timer.GRACE
NO_COUNT = "the ranks did not end in time: mpirun ends what is left"
ONE_LEFT = "1 rank did not end in time: mpirun ends what is left"
SENT = line("sent SIGTERM to 4 ranks; waiting up to 20 s", level=LogLevel.INFO)
ENDING = line("its pod is being terminated: all ranks get time to save", "w-2")
END, SAVING = Signalled(TERM), [Signalled(TERM)]


@pytest.mark.parametrize(
    ("before", "event", "done"),
    [
        ([], END, SAVE),
        (SAVING, GRACE_OVER, (line(NO_COUNT), SendSignal(TERM), KILL)),
        ([END, GRACE_OVER], Timer.KILL, (SendSignal(KILL_9), KILLED_TIMER)),
        ([END, GRACE_OVER, Timer.KILL], Timer.KILLED, ()),
        (SAVING, RanksLeft(None), (SendSignal(TERM),)),
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
        StartTimer(Timer.GRACE, 5.0),
    )
    # No rank has anything to save yet; and 5.0 takes daemons that aren't there for an error.
    assert FOLLOW in go([END])[1]
    _, done = go([*started(), AgentConnected("w-1"), Signalled(USR1)])
    message = "SIGUSR1 is not forwarded: no rank runs yet"
    assert done[-1] == line(message, level=LogLevel.INFO)
    assert not [action for action in done if isinstance(action, SendSignal)]
    # After the launch timeout ranks may run, unless hosts say otherwise; mpirun is held at a save.
    assert go([*started(), Timer.LAUNCH, Signalled(USR1)])[1][-1] == SendSignal(USR1)
    assert SendSignal(USR1) not in go([END, Signalled(USR1)], running())[1]


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
IN_TIME, TERMED = Timer.SUSPENSION, RankEnded(1, RankEnd.SIGNAL, "w-2", 15)
BY_TERM = "rank 1 was ended by SIGTERM, from elsewhere or by mpirun after another rank's end"
HYDRA_ALONE, TIMED_OUT = begun(job("mpich", ())), RankEnded(None, RankEnd.TIMED_OUT)
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
        *(
            row
            for number, name in ((9, "KILL"), (15, "TERM"))
            for row in (
                (
                    running(),
                    [MpirunEnded(0, number), w1(255)],
                    (128 + number, "", ""),
                    f"SIG{name}",
                ),
                (running(), [w1(255), MpirunEnded(0, number)], (69, "host-lost", "w-1"), ""),
            )
        ),
        (running(), [*ended_well(), MpirunEnded(132)], (132, "", ""), "could not start"),
        # Hydra's own time limit, unless a rank's own mpiexec wrote that.
        (HYDRA_ALONE, [TIMED_OUT, MpirunEnded(255)], (255, "", ""), verdicts.TIME_LIMIT),
        (HYDRA_ALONE, [MpirunEnded(255)], (255, "", ""), "could not start the program"),
        (HYDRA_ALONE, [TIMED_OUT, MpirunEnded(0)], WELL, "the program succeeded"),
        # A job's own end may come after a worker's and mpirun's: 4.1.4 crashes as its daemons left.
        *(
            (running(), [HostEnding("w-1"), w1(255), MpirunEnded(1, signal), *more], end, "")
            for signal in (0, 11)
            for more, end in (([END], (143, "", "")), ([], (69, "host-lost", "w-1")))
        ),
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
    assert found.failed == "mpirun" or words != verdicts.TIME_LIMIT
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
LATE = Timer.RANK_ENDED


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


COUNT = Timer.LAUNCH
NONE = "w-2 (1 of 2 remote hosts): no orted runs there 2m after mpirun's start"
UNKNOWN = "not every host reports if mpirun's daemon runs there; the job goes on"
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
        ([], {}, UNKNOWN),
        ([], {"w-1": 0}, UNKNOWN),
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
    assert ends_job(actions) == (message in (NONE, NO_RANK))
    if ends_job(actions):
        end = judged([RanksCounted(ranks), MpirunEnded(1)], ending)
        assert (end.code, end.reference) == (69, "launch-timeout")
        assert end.message == message


def test_a_host_without_an_agent_needs_no_daemon() -> None:
    """As with ``--mca orte_max_vm_size 1``: which hosts are used is mpirun's decision."""
    state, done = go([*started(("w-1",)), AgentConnected("w-1"), Timer.RANKS])
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
        (143, ("a",), "kubectl", "its kubectl ended with 143 (a)"),
        (7, ("a", "b"), "ssh", "its agent ended with 7 (a; b)"),
        (254, (), "ssh", "its agent ended with 254"),
        (-35, (), "ssh", "its launch agent was killed by signal 35"),
    ],
)
def test_how_an_agent_ended(status: int, words: tuple[str, ...], remote: str, said: str) -> None:
    assert how(AgentEnded("w", 1, status, words), remote) == said
    head = f"its {remote.replace('ssh', 'SSH')} session was lost while the job ran: its {remote}"
    end = judged([RESET, MpirunEnded(205)], running(by_kubectl=remote == "kubectl"))
    assert end.message.startswith(f"{head} ended with 255")


FAILED, NO_ORTED = "its orted failed", "the shell there found no orted (exit 127"
SAME = "has that image the same MPI?"
LOST_SESSION = (
    "its SSH session was lost while the job ran: its ssh ended with 255; whether the host still "
    "answers is not known (mpirun itself returned 1)"
)
UNBOUND = "bash: line 1: LD_LIBRARY_PATH: unbound variable"
SYMBOL = "orted: symbol lookup error: orted: undefined symbol: prte_fd_read"
NO_DAEMON_THERE = (127, "program-missing")
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
        ([w2(127)], 127, NO_DAEMON_THERE, f"{NO_ORTED}): {SAME}"),
        ([w2(127, NOT_FOUND)], 127, NO_DAEMON_THERE, f"{NO_ORTED}: {NOT_FOUND}): {SAME}"),
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
    family: str, events: list[Event], status: int, code: int, end: tuple[int | None, str, str, str]
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
BY_KILL, RANK_0_BY_15 = (
    RankEnded(1, RankEnd.SIGNAL, "w-2", 9),
    RankEnded(0, RankEnd.SIGNAL, "w-1", 15),
)
HERE = HostFacts("me", True, here=True, memory=OOM)
OOM_1, OOM_2 = HostFacts("w-1", True, memory=OOM), HostFacts("w-2", True, memory=OOM)
LACKS_1, LACKS_2 = HostFacts("w-1", True, lacks="X"), HostFacts("w-2", True, lacks="X too")
DEAD_1, DEAD_2 = HostFacts("w-1", False), HostFacts("w-2", False)
GONE_1, GONE_2 = replace(DEAD_1, gone=GONE), replace(DEAD_2, gone=GONE)
SESSION = "w-2: its SSH session was lost while the job ran"
LOST_205, ALL_KILLED = [LOST, MpirunEnded(205)], [OTHER_KILLED, KILLED_AGENT]
WARNED = "w-9: warned"
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
        ("openmpi5", [RANK_0_BY_15, MpirunEnded(143), OOM_2], (143, "", "w-1"), [f"w-2: {OOM}"]),
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
            *((*NO_DAEMON_THERE, "w-1"), ["", "w-2: X too"]),
        ),
        # Intel MPI's proxy ends with 255 there; what another host lacks explains no loss.
        ("intel", [LOST, MpirunEnded(255), LACKS_2], (*NO_DAEMON_THERE, "w-2"), []),
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
    found = judged([MpirunEnded(status), Timer.AGENTS, *hosts], running(family))
    assert (found.code, found.host) == end


def test_hosts_are_queried_about_bad_ends_alone() -> None:
    ends: list[list[Event]] = [[MpirunEnded(0), *ended_well()], [END, MpirunEnded(1)]]
    ends += [[MpirunEnded(1)], [BY_KILL, MpirunEnded(0)], [RESET, MpirunEnded(0)]]
    found = [verdicts.needs_hosts(go(events, running())[0]) for events in ends]
    assert found == [False, False, True, True, True]


@pytest.mark.parametrize(
    ("hosts", "argv", "local"),
    [
        (2, ("mpirun",), True),
        (1, ("mpirun",), False),
        (2, ("mpirun", NOT_FOR_RANKS), False),  # its ranks don't get the variable
    ],
)
def test_ranks_on_the_launcher_would_get_what_is_mpiruns(
    hosts: int, argv: tuple[str, ...], *, local: bool
) -> None:
    assert launches.spec(hosts=hosts, argv=argv, remote_hosts=("w-1",)).local == local


@pytest.mark.parametrize(
    ("ports", "listed"), [("", [0]), ("7000-7002", [7002, 7001, 7000]), ("7000-7000", [7000])]
)
def test_ports_are_tried_from_the_last_on(ports: str, listed: list[int]) -> None:
    flags = {"port_range": ports} if ports else {}
    assert list(launches.spec(flags=flags).free_ports) == listed


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
    st.sampled_from(Timer),
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
