"""The sentence and the exit code of a job's end, by rules in order. Pure."""

from __future__ import annotations

import errno
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final

from mpiboot.core.checks import BY_REFERENCE
from mpiboot.core.launch_names import BY_SIGNAL
from mpiboot.core.wording import counted, first_few, size_of
from mpiboot.supervisor.state import (
    SIGKILL,
    SIGTERM,
    SSH_FAILED,
    Loss,
    PoolEnded,
    RankEnd,
    RankEnded,
    State,
    Verdict,
    signal_name,
)

# Why a job is ended that has not ended by itself: a row of checks and a sentence each.

# Hosts that one sentence names.
LISTED: Final = 8


def verdict_of(
    reference: str, message: str, host: str = "", evidence: tuple[str, ...] = ()
) -> Verdict:
    """Judge by a row of checks."""
    return Verdict(int(BY_REFERENCE[reference].code), reference, message, host, evidence)


def in_order(state: State, hosts: frozenset[str]) -> tuple[str, ...]:
    """Put hosts in the hostfile's order."""
    return tuple(host for host in state.job.hosts if host in hosts)


def not_startable(argv: Sequence[str], environ: Mapping[str, str], wrong: OSError) -> Verdict:
    """Judge an mpirun that can't be executed."""
    why = wrong.strerror or str(wrong)
    if wrong.errno == errno.E2BIG:
        # execve(2): a limit for each word or variable, and one for all together.
        sizes = {name: len(name) + len(value) for name, value in environ.items()}
        most = max(sizes, key=lambda name: sizes[name], default="")
        words = sum(map(len, argv))
        why += f" (the longest variable, {most}, has {size_of(sizes.get(most, 0))}, all of them "
        why += f"{size_of(sum(sizes.values()))}, the command {size_of(words)})"
    return verdict_of("program-missing", f"{argv[0]}: {why}: mpirun was not started")


def not_started(state: State) -> Verdict:
    """Judge an mpirun that failed before it had started every host's daemon."""
    hosts = in_order(state, state.no_agent)
    count = len(state.job.hosts)
    message = f"mpirun started no daemon on {first_few(hosts, LISTED)} "
    message += f"({len(hosts)} of {count} remote hosts)"
    evidence = tuple(f"{name}: {why}" for name, why in state.job.obstacles)
    return verdict_of("agent-not-started", message, hosts[0] if count == 1 else "", evidence)


def launch_timeout(state: State, without: tuple[str, ...]) -> Verdict:
    """Judge a launch that took too long; ``without`` are the hosts that show no daemon."""
    when = f"{state.job.launch_timeout:g} s after mpirun's start"
    if not without:
        return verdict_of("launch-timeout", f"no rank runs on any host that answers, {when}")
    message = f"{first_few(without, LISTED)} ({len(without)} of {len(state.job.hosts)} remote "
    message += f"hosts): no {state.job.family.daemon} runs there {when}"
    lines = tuple(f"{host}: {_standing(state, host)}" for host in without[:LISTED])
    return verdict_of("launch-timeout", message, evidence=lines)


def _standing(state: State, host: str) -> str:
    if host in state.ended_well:
        return "its agent ended with 0"
    return f"its agent was started, and is {'' if host in state.connected else 'not '}connected"


def pod_ending(host: str) -> Verdict:
    """Judge a job one of whose pods was told to end."""
    message = "its pod was told to end (deleted, drained or preempted), and so was the job"
    return replace(verdict_of("host-lost", message, host), gone=True)


def pool_lost(event: PoolEnded) -> Verdict:
    """Judge a job whose agents' sessions have all ended with the one process that had them."""
    message = f"the process with the SSH connections to all hosts {event.how}"
    reference = "launcher-memory" if event.out_of_memory else "ssh-client-lost"
    return replace(verdict_of(reference, message), killed=event.killed)


def rank_name(ended: RankEnded) -> str:
    """Name a rank as far as mpirun does."""
    return "a rank" if ended.rank is None else f"rank {ended.rank}"


# Each MPI's library, and whose mpirun starts its ranks. Any other name proves nothing.
_LIBRARIES: Final = {
    "libmpi.so.40": "Open MPI",
    "libmpi.so.12": "MPICH or Intel MPI",
    "libmpich.so.12": "MPICH or Intel MPI",
}
_MPIRUNS: Final = {
    **dict.fromkeys(("openmpi4", "openmpi5"), "Open MPI"),
    **dict.fromkeys(("mpich", "intel"), "MPICH or Intel MPI"),
}


def other_mpi(family: str, who: str, libraries: Collection[str]) -> str:
    """Say that ranks can't join this mpirun, by their MPI libraries; empty where that is unknown.

    Args:
        family: mpirun's.
        who: has these libraries, as a sentence begins.
        libraries: their names; ``connected`` where some rank has joined.
    """
    own, titles = _MPIRUNS.get(family), {_LIBRARIES.get(name) for name in libraries}
    if not own or len(titles) != 1 or titles & {own, None}:
        return ""
    what = f"{', '.join(sorted(libraries))} ({titles.pop()})"
    alone = 'ranks that can\'t join it are each "rank 0 of 1"'
    return f"{who} {what}, but this mpirun is that of {own}: {alone}"


# How a job ended that has.

# What ssh says -> row of checks. The first that fits; ssh's own words, as OpenSSH 8 to 10 write,
# and the API server's of a right that kubectl lacks.
SSH_WORDS: Final = (
    ("permission denied", "ssh-denied"),
    ("too many authentication failures", "ssh-denied"),
    ("no supported authentication methods", "ssh-denied"),
    ("host key verification failed", "host-key-differs"),
    ("host identification has changed", "host-key-differs"),
    ("host key is known", "host-key-differs"),
    ("is forbidden", "kubectl-denied"),
    ("connection refused", "workers-unreachable"),
    ("timed out", "workers-unreachable"),
    ("no route to host", "workers-unreachable"),
    ("unreachable", "workers-unreachable"),
    ("could not resolve", "workers-unreachable"),
    ("connection closed", "workers-unreachable"),
    ("connection reset", "workers-unreachable"),
)
# What ssh, and the pool, say where the keep-alive has ended a session.
_NOT_RESPONDING: Final = "not responding"
# What an agent's end is taken for that mpirun does not explain.
LOSSES: Final = ("host-lost", "daemon-failed")
_MEMORY: Final = "launcher-memory"
# A worker's kernel killed something of its pod: no row of checks, as it is the program's own end.
_RANK_MEMORY: Final = "rank-memory"
# Nobody can look inside that host any more.
_GONE: Final = "host-gone"
_GONE_LINE: Final = re.compile(rf"^{_GONE}\t([^\t]*)\t")
# Where no rank is known to have failed: mpirun refuses a line, or MPI fails without a word of it.
_MPIRUN: Final = "mpirun"
# Its signal, where mpirun is too old for the hosts' names.
_SIGABRT: Final = 6
_HOST_NAMES: Final = "host-names"
# A remote shell's answers for a program that isn't there, or can't be executed.
_NOT_FOUND: Final = 127
_NO_PROGRAM: Final = re.compile("^$|not found|no such file|unknown command")
# With what Hydra's proxies end by themselves: its own numbers of errors.
_HYDRA_STATUSES: Final = range(1, 16)
# Signals by which ranks end; mpirun's status is 128 more.
_OF_RANKS: Final = (4, 6, 7, 8, 9, 10, 11, 12, 13, 15)


def judge(state: State) -> Verdict:
    """Say how a job ended; ``state.ended`` is known."""
    cause = state.cause
    if cause and not (state.signal and BY_REFERENCE[cause.reference].retry):
        return cause
    if state.signal:
        return _by_signal(state)
    found = _by_time_limit(state) or _by_program(state) or _by_loss(state)
    return found or _by_mpi(state) or _by_rank(state) or _own(state)


def warned_of(verdict: Verdict, warned: Mapping[str, str]) -> Verdict:
    """Explain a bad end by what was warned of before the start, by its row of checks."""
    aborted = verdict.failed == _MPIRUN and verdict.code == BY_SIGNAL + _SIGABRT
    if aborted and (names := warned.get(_HOST_NAMES)):
        return replace(verdict, message=f"{verdict.message}: {names}", failed=_HOST_NAMES)
    return replace(verdict, evidence=(*verdict.evidence, *warned.values()))


def proved(verdict: Verdict, lines: tuple[str, ...]) -> tuple[Verdict, tuple[str, ...]]:
    """Let decide what a host itself found, where its line names a row of checks.

    Each MPI has other statuses for a program that a host lacks, and some of them also say that a
    rank was ended by a signal: only that host knows.
    """
    gone = {word[1] for line in lines if (word := _GONE_LINE.match(line))}
    if verdict.killed and not verdict.host and len(gone) == 1:
        verdict = replace(verdict, host=min(gone))  # of the hosts whose agents mpirun killed
    verdict = replace(verdict, gone=verdict.host in gone)
    lines = tuple(_GONE_LINE.sub(r"\1: ", line) for line in lines)
    plain = tuple(line for line in lines if "\t" not in line)
    found = [line.split("\t", 2) for line in lines if "\t" in line]
    memory = [(host, message) for reference, host, message in found if reference == _MEMORY]
    ranks = [(host, message) for reference, host, message in found if reference == _RANK_MEMORY]
    own = f"{verdict.host}: {verdict.message}" if verdict.host else verdict.message
    if memory and verdict.killed:
        # What was taken for the loss of a host was the end of its ssh, here.
        host, message = memory[0]
        return verdict_of(_MEMORY, message, host, (own, *verdict.evidence)), plain
    if ranks and verdict.signal == "SIGTERM":
        # So mpirun ends all others after a first failure, and at times hears of one of them first.
        host, message = ranks[0]
        message = f"a rank was ended by SIGKILL: {message}"
        code = BY_SIGNAL + SIGKILL
        return Verdict(code, "", message, host, (own, *verdict.evidence), signal="SIGKILL"), plain
    # A process may have been killed for memory at any time since: that explains a SIGKILL there,
    # and is no more than a hint beside any other end.
    sigkill = verdict.signal == "SIGKILL" or verdict.code == BY_SIGNAL + SIGKILL or verdict.killed
    hosts = {host for host, _ in (*ranks, *memory)} if sigkill else set()
    first = hosts & {verdict.host} if verdict.host else hosts
    told = [(host in first, f"{host}: {message}") for host, message in (*ranks, *memory)]
    plain = (*(line for leads, line in told if leads), *plain)
    hints = tuple(line for leads, line in told if not leads)
    verdict = replace(verdict, evidence=(*verdict.evidence, *hints))
    found = [item for item in found if item[0] not in (_MEMORY, _RANK_MEMORY)]
    if verdict.reference in LOSSES:  # what another host lacks explains no loss
        found = [item for item in found if item[0] != "program-missing" or item[1] == verdict.host]
    if not found and verdict.missing:
        message = f"{verdict.message} (mpirun itself returned {verdict.code})"
        return verdict_of("program-missing", message, verdict.host, verdict.evidence), plain
    if not found:
        return verdict, plain
    reference, host, message = found[0]
    more = tuple(f"{name}: {what}" for _, name, what in found[1 : 1 + LISTED])
    message = f"{message} (mpirun itself returned {verdict.code})"
    return verdict_of(reference, message, host, verdict.evidence), (*more, *plain)


def _status(state: State) -> int:
    ended = state.ended
    if ended is None:
        return 0
    return BY_SIGNAL + ended.signal if ended.signal else ended.status


def _returned(state: State) -> str:
    if state.stage > 2:  # noqa: PLR2004 - killed
        return "mpirun had to be killed"
    return f"mpirun itself returned {_status(state)}"


def _by_signal(state: State) -> Verdict:
    code = BY_SIGNAL + state.signal
    also = "" if _status(state) == code else f" ({_returned(state)})"
    message = f"ended by {signal_name(state.signal)}{also}"
    before = tuple(f"{loss.host}: {how(loss)} shortly before" for loss in state.losses)
    return Verdict(code, "", message, evidence=before[:LISTED], by_signal=True)


def how(loss: Loss) -> str:
    """Say how an agent ended."""
    if loss.status < 0:
        return f"its launch agent was killed by {signal_name(-loss.status)}"
    words = f" ({'; '.join(loss.words)})" if loss.words else ""
    who = loss.remote if loss.sure else "agent"
    return f"its {who} ended with {loss.status}{words}"


# What each mpirun takes for a time limit of its own, in seconds; I_MPI_... is Intel MPI's.
_TIME_LIMITS: Final = ("MPIEXEC_TIMEOUT", "I_MPI_JOB_TIMEOUT", "I_MPI_MPIEXEC_TIMEOUT")


def time_limit(environ: Mapping[str, str]) -> str:
    """Say which variables of mpirun's limit the time of a job; empty where none does."""
    given = [f"{name}={environ[name]}" for name in _TIME_LIMITS if environ.get(name)]
    return f"{' and '.join(given)}, set in the launcher's environment" if given else ""


def _by_time_limit(state: State) -> Verdict | None:
    """Judge an mpirun that ended the job at its own time limit; None where it did not."""
    status, limit = _status(state), state.job.time_limit
    # A rank's own mpiexec may write the same.
    told = state.timed_out and limit
    if not status or not (told or (status == state.job.family.timed_out and not state.first_rank)):
        return None
    limit = limit or "mpirun's own --timeout"
    return Verdict(status, "", f"the program did not end within {limit}")


def _by_program(state: State) -> Verdict | None:
    """Judge by the program that mpirun could not execute; None where that explains no end.

    A rank's own mpirun may have reported it, and its rank gone on. Which host lacks it that host
    itself says best (``proved``): 5.0 tells of permissions where the file isn't there.
    """
    found, status = state.lacking, _status(state)
    if not found or not status or (status not in state.job.family.lacking and state.ran):
        return None
    first = state.first_rank
    if state.job.family.mixes_statuses and first and first.signal not in (0, SIGKILL, SIGTERM):
        return None
    return Verdict(status, "", lacks(found), found.host, missing=found.what)


def lacks(found: RankEnded) -> str:
    """Say what mpirun reports of a program."""
    return f"mpirun could not find or execute the program {found.what}"


def _by_loss(state: State) -> Verdict | None:
    """Judge by what became of agents; None where mpirun's own status is the truth."""
    status, family = _status(state), state.job.family
    # What agents do after mpirun was killed by somebody, or ended with a 0 that it never returns
    # after a loss, follows from its end.
    own = status == 0 and 0 not in family.lost
    if state.ended and not state.stage and (own or state.ended.signal):
        losses = tuple(loss for loss in state.losses if not loss.after)
        state = replace(state, losses=losses, late_agents=())
    sure = tuple(loss for loss in state.losses if loss.sure)
    if sure:
        return _lost(state, _first(state, sure), sure)
    gone = tuple(host for host, reachable, _ in state.checked if reachable is False)
    if late := next((host for host in state.late_agents if host in gone), ""):
        message = f"{late} was lost: it does not answer, and its agent did not end with the job"
        return verdict_of("host-lost", f"{message} ({_returned(state)})", late)
    # The daemon's own status: a failed program's doing where mpirun has a status of its own.
    if state.losses:
        first = _first(state, state.losses)
        # Those of a short job may have run unseen; mpirun has told of its rank then.
        told = state.first_rank is not None or status not in family.lost
        follows = _began(state, first) or (first.status in _HYDRA_STATUSES and told)
        if family.daemons_follow and follows and status and not state.stage:
            return None
        lost = status == 0 or status in family.lost or _passed_on(state, first)
        return _lost(state, first, state.losses) if state.stage or lost else None
    silent = tuple(host for host in state.late_agents if not _reachable(state, host))
    if silent and status == 0:
        message = f"its {family.daemon} did not end with the job, though mpirun returned 0"
        return verdict_of("daemon-failed", message, silent[0])
    return None


def _first(state: State, losses: tuple[Loss, ...]) -> Loss:
    """Choose the loss that mpirun itself reports, or else the first that was seen."""
    return next((loss for loss in losses if loss.host == state.lost_daemon), losses[0])


def _began(state: State, loss: Loss) -> bool:
    """Whether a host whose agent ended had a daemon; it itself may have failed as it started."""
    return state.ran or (loss.connected and (loss.sure or loss.status < 0))


def _passed_on(state: State, loss: Loss) -> bool:
    """Whether mpirun returned an agent's status as its own.

    Open MPI does that for a daemon that failed as it started, and 4.1 for the signal that killed an
    agent; 1 is also what 5.0's daemons and mpirun end with after mistakes of all kinds.
    """
    status = _status(state)
    if loss.status < 0:
        return status == -loss.status
    return not _began(state, loss) and status == loss.status != 1


def _lost(state: State, first: Loss, losses: tuple[Loss, ...]) -> Verdict:
    killed = tuple(loss.host for loss in losses if loss.status == -SIGKILL)
    # So 4.1 ends a tree of daemons that can't be built, which a parameter asks for.
    if state.no_agent and state.job.obstacles and len(killed) == len(losses):
        return replace(not_started(state), killed=True)
    named = first.host == state.lost_daemon or _passed_on(state, first)
    if len(killed) > 1 and first.host in killed and not named:
        message = "mpirun gave up over a lost host, and killed the launch agents of "
        message += f"{first_few(killed, LISTED)} ({_returned(state)})"
        return replace(verdict_of("host-lost", message), killed=True)
    # What ended after mpirun had ended, and the agents that it killed itself, followed from that.
    others = tuple(
        loss for loss in losses if loss is not first and not loss.after and loss.host not in killed
    )
    lines = tuple(f"{loss.host}: {how(loss)}" for loss in others[:LISTED])
    more = f" (and {counted(len(others), 'more host')})" if others else ""
    if not _began(state, first):
        return _never_began(state, first, lines)
    session = "SSH" if first.remote == "ssh" else first.remote
    if _NOT_RESPONDING in " ".join(first.words) and _reachable(state, first.host):
        message = f"nothing came over its {session} connection for MPIBOOT_SSH_KEEPALIVE, though "
        message += (
            f"its port answers: was its sshd stopped, or were packets lost? ({_returned(state)})"
        )
        return verdict_of("daemon-failed", message, first.host, lines)
    message = f"its {session} session was lost while the job ran{more}: {how(first)}; "
    message += _answer(state, first.host)
    found = verdict_of("host-lost", f"{message} ({_returned(state)})", first.host, lines)
    return replace(found, killed=_killed(first))


def _killed(loss: Loss) -> bool:
    """Whether an agent, or its ssh, was ended by SIGKILL: on this pod, or the daemon far away."""
    return loss.status in (-SIGKILL, BY_SIGNAL + SIGKILL)


def _reachable(state: State, host: str) -> bool:
    return any(name == host and reachable for name, reachable, _ in state.checked)


def _answer(state: State, host: str) -> str:
    daemon = state.job.family.daemon
    for name, reachable, words in state.checked:
        if name == host and reachable:
            return f"the host still answers, so only that session or its {daemon} ended"
        if name == host and reachable is False:
            return "the host does not answer any more" + (f" ({words})" if words else "")
    return "whether the host still answers is not known"


def _never_began(state: State, first: Loss, lines: tuple[str, ...]) -> Verdict:
    daemon, said = state.job.family.daemon, "; ".join(first.words)
    text = " ".join(first.words).lower()
    known = next((reference for words, reference in SSH_WORDS if words in text), "")
    reference, message = "daemon-failed", f"its {daemon} failed: {how(first)}"
    # bash has the same status for an unset variable under `set -u`.
    if first.status == _NOT_FOUND and _NO_PROGRAM.search(text):
        message = f"the shell there found no {daemon} (exit 127{said and f': {said}'}): "
        reference, message = "program-missing", f"{message}has that image the same MPI?"
    elif first.status == SSH_FAILED and known:
        reference, message = known, f"mpirun's {first.remote} could not log in: {said}"
    elif first.sure and first.host not in state.connected:
        reference, message = "workers-unreachable", f"no {daemon} was started: {how(first)}"
    return verdict_of(reference, message, first.host, lines)


def _by_rank(state: State) -> Verdict | None:
    """Judge by the rank that ended first, as mpirun itself tells it; None where it told none."""
    first, status = state.first_rank, _status(state)
    if first is None or (state.ended is not None and state.ended.signal):
        return None
    # Hydra lists at the end also ranks that ranks have spawned, whose end is none of the job's, and
    # what it says before that may be the output of a rank that runs an mpiexec of its own.
    if status == 0 and (state.job.tolerates_failure or state.job.family.mixes_statuses):
        return None
    rank = rank_name(first)
    if first.how is RankEnd.SIGNAL:
        passed_on = BY_SIGNAL < status < SSH_FAILED
        number = first.signal or (status - BY_SIGNAL if passed_on else 0)
        name = signal_name(number) if number else ""
        also = "" if status == BY_SIGNAL + number else f" (mpirun itself returned {status})"
        # A rank that it ended itself is at times the first of which it hears.
        by = ", from elsewhere or by mpirun after another rank's end" if name == "SIGTERM" else ""
        message = f"{rank} was ended by {name or 'a signal'}{by}{also}"
        own = BY_SIGNAL + number if number else 1
        code = own if state.job.family.mixes_statuses or not status else status
        return Verdict(code, "", message, first.host, rank=first.rank, signal=name)
    code = first.code or status or 1
    also = "" if code == status else f"; mpirun itself returned {status}"
    way = {
        RankEnd.ABORT: "aborted (MPI_Abort, or MPI itself) with code",
        RankEnd.SILENT: "ended without MPI_Finalize, with code",
    }.get(first.how, "exited with code")
    message = f"{rank} {way} {code} (first failure{also})"
    return Verdict(code, "", message, first.host, rank=first.rank)


def _by_mpi(state: State) -> Verdict | None:
    """Judge by a call of MPI that failed; None where a rank ended for another reason."""
    call, first, status = state.mpi_failed, state.first_rank, _status(state)
    if not call or not status or (state.ended is not None and state.ended.signal):
        return None
    early = call.startswith("MPI_Init")
    follows = (RankEnd.ABORT, RankEnd.STATUS) if early else (RankEnd.ABORT,)
    if first and first.how not in follows:
        return None
    when = " before the program began its own work" if early else ""
    message = f"MPI itself failed in {call}{when}: its lines above say why"
    host, rank = (first.host, first.rank) if first else ("", None)
    return Verdict(status, "", message, host, rank=rank, failed="mpi")


def _own(state: State) -> Verdict:
    status = _status(state)
    if state.ended is not None and state.ended.signal:
        name = signal_name(state.ended.signal)
        memory = "; the launcher's memory limit?" if name == "SIGKILL" else ""
        message = f"mpirun itself was killed by {name}{memory}"
        return Verdict(status, "", message, failed=_MPIRUN)
    if status == 0:
        return Verdict(0, "", "the program succeeded")
    known = dict(state.job.family.codes).get(status)
    # Hydra's one status for all failures says nothing; that no host was dialled does.
    none = state.no_agent and state.no_agent.issuperset(state.job.hosts)
    ranks_elsewhere = state.job.launcher_ranks or state.job.obstacles
    if none and not ranks_elsewhere and state.job.family.mixes_statuses:
        known = f"mpirun ended with {status} before it started a daemon: its lines above say why"
    if known:
        return Verdict(status, "", known, failed=_MPIRUN)
    if status - BY_SIGNAL in _OF_RANKS:
        return Verdict(status, "", f"a rank was ended by {signal_name(status - BY_SIGNAL)}")
    if none or (state.no_agent and state.job.obstacles):
        hosts = in_order(state, state.no_agent)
        evidence = not_started(state).evidence
        message = f"mpirun ended with {status} and started no daemon on {first_few(hosts, LISTED)}"
        return Verdict(status, "", message, evidence=evidence, failed=_MPIRUN)
    message = (
        f"mpirun ended with {status}, and no rank is known to have failed: see the lines above"
    )
    return Verdict(status, "", message, failed=_MPIRUN)
