"""The verdict on a job: an ordered list of rules, applied once, when all facts are in. Pure.

The facts are what was observed while mpirun ran (``Job``), and what each host answered after its
end (``HostFacts``). The first rule that applies gives the exit code, cause, host and message.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from signal import SIGKILL, SIGTERM
from typing import Final

from mpiboot.core.checks import AGAIN, BY_REFERENCE
from mpiboot.core.launch_spec import BY_SIGNAL
from mpiboot.core.wording import counted, first_few
from mpiboot.supervisor.job import (
    LISTED,
    SSH_FAILED,
    WEAK_ENDS,
    AgentEnded,
    HostFacts,
    Job,
    RankEnd,
    Verdict,
    how,
    lacks,
    rank_name,
    signal_name,
    verdict_of,
)

WAITING: Final = "while waiting for hosts: nothing was started"


def by_signal(number: int, when: str = WAITING) -> Verdict:
    """Judge a launcher signalled before mpirun starts; the message is the termination message."""
    message = f"signal: {signal_name(number)} {when}\n"
    return Verdict(BY_SIGNAL + number, "signal", message, by_signal=True)


def not_startable(program: str, error: OSError) -> Verdict:
    """Judge an mpirun that can't be executed."""
    why = error.strerror or str(error)
    return verdict_of("program-missing", f"{program}: {why}: mpirun was not started")


# MPIs whose ranks can start under each other's mpirun, by family and by library. Any other name
# proves nothing.
_TITLES: Final = {
    **dict.fromkeys(("openmpi4", "openmpi5", "libmpi.so.40"), "Open MPI"),
    **dict.fromkeys(("mpich", "intel", "libmpi.so.12", "libmpich.so.12"), "MPICH or Intel MPI"),
}


def other_mpi(family: str, libraries: Collection[str]) -> str:
    """Describe ranks that can't join this mpirun, by their MPI libraries; empty where unknown.

    Args:
        family: the MPI family of mpirun.
        libraries: names of the ranks' MPI libraries; ``connected`` where some rank has joined.
    """
    own, titles = _TITLES.get(family), set(map(_TITLES.get, libraries))
    if not own or len(titles) != 1 or titles & {own, None}:
        return ""
    what = f"the ranks have loaded {', '.join(sorted(libraries))} ({titles.pop()})"
    alone = 'ranks that can\'t join it are each "rank 0 of 1"'
    return f"{what}, but this mpirun is that of {own}: {alone}"


# No rank is known to have failed: mpirun rejects its command line, or MPI fails silently.
_MPIRUN: Final = "mpirun"
# A remote shell's exit status and messages where a program is missing or can't be executed.
_NOT_FOUND: Final = 127
_NO_PROGRAM: Final = re.compile("^$|not found|no such file|unknown command")
TIME_LIMIT: Final = "the program did not end within mpirun's own time limit, as by MPIEXEC_TIMEOUT"
# Exit statuses of Hydra's proxies for their own errors: Hydra's internal error codes.
_HYDRA_STATUSES: Final = range(1, 16)
# Signals that end ranks; mpirun's exit status is 128 + the signal.
_OF_RANKS: Final = (4, 6, 7, 8, 9, 10, 11, 12, 13, 15)


def needs_hosts(job: Job) -> bool:
    """Whether the hosts' answers may change the verdict, or explain it."""
    if job.signal:
        return False
    bad = job.cause or job.losses or job.overdue_agents or job.first_rank
    return bool(bad or job.status)


def verdict(
    job: Job, hosts: Sequence[HostFacts] = (), warned: Mapping[str, str] | None = None
) -> Verdict:
    """Judge how a job ended.

    Args:
        job: what was observed; ``job.ended`` is known.
        hosts: what each host answered after that; none where no host was queried.
        warned: the warnings before the start that explain a bad end, by their row of checks.
    """
    job.answers = {host.name: host for host in hosts}
    found = next(filter(None, (rule(job) for rule in _RULES)))
    if not found.code or found.by_signal:
        return found
    found = _explained(job, _by_launcher_memory(job, found))
    return replace(found, evidence=(*found.evidence, *(warned or {}).values()))


def _by_cause(job: Job) -> Verdict | None:
    """Judge a job that mpiboot ended; a retryable cause yields to a signal, which all pods got."""
    yields = job.cause and job.signal and BY_REFERENCE[job.cause.reference].code in AGAIN
    return None if yields else job.cause


def _by_signal(job: Job) -> Verdict | None:
    """Judge a job that a signal to the launcher has ended; no host is to blame."""
    if not job.signal:
        return None
    code = BY_SIGNAL + job.signal
    also = "" if job.status == code else f" ({job.returned})"
    message = f"ended by {signal_name(job.signal)}{also}"
    before = tuple(f"{line} shortly before" for line in _lines(job, job.losses[:LISTED]))
    return Verdict(code, "", message, evidence=before, by_signal=True)


def _by_time_limit(job: Job) -> Verdict | None:
    """Judge an mpirun that reports that its own time limit was over."""
    if not job.status or not job.timed_out:
        return None
    return Verdict(job.status, "", TIME_LIMIT, failed=_MPIRUN)


def _by_program(job: Job) -> Verdict | None:
    """Judge by a program that some host can't run.

    The exit status for that differs by MPI, and may also mean that a signal ended a rank: a host's
    own answer comes first, then mpirun's message (5.0 blames permissions where the file isn't
    there). After a session was lost, only that host's answer counts.
    """
    first, reported = job.first_rank, job.lacking
    if not job.status or (first and first.signal not in WEAK_ENDS):
        return None
    may_lack = job.status in job.family.lacking
    # An mpirun that a rank ran may have reported it, and the rank continued.
    known = reported is not None and (may_lack or not job.ran)
    lost = {loss.host for loss in job.proven_losses if loss.sure}
    lacking = [
        host
        for host in job.answers.values()
        if host.lacks and (known or (may_lack and (not lost or host.name in lost)))
    ]
    if lacking:
        others = tuple(f"{host.name}: {host.lacks}" for host in lacking[1 : 1 + LISTED])
        message = f"{lacking[0].lacks} ({job.returned})"
        return verdict_of("program-missing", message, lacking[0].name, others)
    if known and reported:
        message = f"{lacks(reported)} ({job.returned})"
        return verdict_of("program-missing", message, reported.host)
    return None


def _by_agent(job: Job) -> Verdict | None:
    """Judge by sessions that broke, or else by a daemon's status.

    A daemon may fail because the program did; mpirun's exit status shows which.
    """
    status, family, losses = job.status, job.family, job.proven_losses
    if broken := tuple(loss for loss in losses if loss.sure):
        return _lost(job, broken)
    if not losses:
        return None
    first = _first(job, losses)
    # A short job's ranks may never have been seen running; mpirun's report shows that one failed.
    ranks_failed = job.first_rank is not None or status not in family.lost
    follows = _began(job, first) or (first.status in _HYDRA_STATUSES and ranks_failed)
    if family.daemons_follow and follows and status and not job.stage:
        return None
    lost = status == 0 or status in family.lost or _passed_on(job, first)
    return _lost(job, losses) if job.stage or lost else None


def _by_open_session(job: Job) -> Verdict | None:
    """Judge by a session that is still open: its host is gone, or may be."""
    hosts = () if job.agents_follow else job.overdue_agents
    if gone := next((host for host in hosts if job.answered(host) is False), ""):
        message = f"{gone} was lost: it does not answer, and its session did not end with the job"
        return verdict_of("host-lost", f"{message} ({job.returned})", gone)
    unknown = next((host for host in hosts if job.answered(host) is None), "")
    if not unknown or job.status:
        return None
    daemon = job.family.daemon
    message = f"its {daemon} did not end with the job, though mpirun returned 0"
    return verdict_of("daemon-failed", message, unknown)


def _first(job: Job, losses: tuple[AgentEnded, ...]) -> AgentEnded:
    """Choose the loss that mpirun itself reports, or else the first that was seen."""
    return next((loss for loss in losses if loss.host == job.lost_daemon), losses[0])


def _began(job: Job, loss: AgentEnded) -> bool:
    """Whether a daemon had come up on the host whose agent ended."""
    # PRRTE also reports a daemon as lost that never came up.
    ran = bool(job.launched or job.first_rank or job.mpi_failed)
    connected = loss.host in job.connected
    return ran or (connected and (loss.sure or loss.status < 0))


def _passed_on(job: Job, loss: AgentEnded) -> bool:
    """Whether mpirun returned an agent's status as its own.

    Open MPI does that for a daemon that failed as it started, and 4.1 for the signal that killed an
    agent; 5.0's daemons and mpirun also exit with 1 after errors of all kinds.
    """
    if loss.status < 0:
        return job.status == -loss.status
    return not _began(job, loss) and job.status == loss.status != 1


def _lost(job: Job, losses: tuple[AgentEnded, ...]) -> Verdict:
    """Name the host over which mpirun gave up, and why its agent ended."""
    first = _first(job, losses)
    killed = [loss.host for loss in losses if loss.status == -SIGKILL]
    # 4.1 fails like this where a parameter asks for a tree spawn that can't work: a daemon that
    # can't start another one exits with 1, and the rest are killed.
    own = all(loss.status in (1, -SIGKILL) for loss in losses)
    if job.no_agent and job.spec.plan.obstacles and own:
        return replace(_not_started(job), killed=bool(killed))
    named = first.host == job.lost_daemon or _passed_on(job, first)
    if len(killed) > 1 and first.host in killed and not named:
        return _gave_up(job, killed)
    # Agents that ended after mpirun, or that it killed itself, are consequences.
    before_end = job.losses[: job.losses_before_end]
    others = [x for x in losses if x is not first and x in before_end and x.host not in killed]
    if not _began(job, first):
        return _never_began(job, first, _lines(job, others[:LISTED]))
    return _session_lost(job, first, others)


def _lines(job: Job, losses: Sequence[AgentEnded]) -> tuple[str, ...]:
    return tuple(f"{loss.host}: {how(loss, job.spec.remote)}" for loss in losses)


def _gave_up(job: Job, killed: Sequence[str]) -> Verdict:
    """Judge an mpirun that killed its agents and named no host; a single lost host is blamed."""
    message = "mpirun gave up over a lost host, and killed the launch agents of "
    message += f"{first_few(killed, LISTED)} ({job.returned})"
    gone = [host.name for host in job.answers.values() if host.gone or host.answered is False]
    found = verdict_of("host-lost", message, gone[0] if len(gone) == 1 else "")
    return replace(found, killed=True)


def _session_lost(job: Job, first: AgentEnded, others: Sequence[AgentEnded]) -> Verdict:
    """Judge a session that ended while ranks ran."""
    remote, answers = job.spec.remote, job.answered(first.host)
    session = "SSH" if remote == "ssh" else remote
    now = f"the host still answers, so only that session or its {job.family.daemon} ended"
    if answers is None:
        now = "whether the host still answers is not known"
    elif not answers:
        why = job.answers[first.host].why
        now = "the host does not answer any more" + (f" ({why})" if why else "")
    more = f" (and {counted(len(others), 'more host')})" if others else ""
    message = f"its {session} session was lost while the job ran{more}: {how(first, remote)}; {now}"
    lines = _lines(job, others[:LISTED])
    found = verdict_of("host-lost", f"{message} ({job.returned})", first.host, lines)
    # Either the local ssh or the remote daemon was killed.
    return replace(found, killed=first.status in (-SIGKILL, BY_SIGNAL + SIGKILL))


def _not_started(job: Job) -> Verdict:
    """Judge an mpirun that failed before it had started every host's daemon."""
    hosts = [host for host in job.hosts if host in job.no_agent]
    count = len(job.hosts)
    message = f"mpirun started no daemon on {first_few(hosts, LISTED)} "
    message += f"({len(hosts)} of {count} remote hosts)"
    evidence = tuple(f"{name}: {why}" for name, why in job.spec.plan.obstacles)
    return verdict_of("agent-not-started", message, hosts[0] if count == 1 else "", evidence)


def _never_began(job: Job, first: AgentEnded, lines: tuple[str, ...]) -> Verdict:
    """Judge a daemon that did not start."""
    daemon, words = job.family.daemon, "; ".join(first.words)
    ended = how(first, job.spec.remote)
    reference, message = "daemon-failed", f"its {daemon} failed: {ended}"
    # Shells also exit with 127 for an unset variable, and the dynamic linker for its errors.
    if first.status == _NOT_FOUND and _NO_PROGRAM.search(words.lower()):
        message = f"the shell there found no {daemon} (exit 127{words and f': {words}'}): "
        reference, message = "program-missing", f"{message}has that image the same MPI?"
    elif first.sure and first.host not in job.connected:
        reference, message = "workers-unreachable", f"no {daemon} was started: {ended}"
    return verdict_of(reference, message, first.host, lines)


def _by_mpiruns_signal(job: Job) -> Verdict | None:
    """Judge an mpirun that was killed."""
    ended = job.ended
    if ended is None or not ended.signal:
        return None
    message = f"mpirun itself was killed by {signal_name(ended.signal)}"
    return Verdict(job.status, "", message, failed=_MPIRUN)


def _by_mpi(job: Job) -> Verdict | None:
    """Judge by an MPI call that failed; None where a rank ended for another reason."""
    status = job.status
    call, first = job.mpi_failed, job.first_rank
    if not call or not status:
        return None
    early = call.startswith("MPI_Init")
    follows = (RankEnd.ABORT, RankEnd.STATUS) if early else (RankEnd.ABORT,)
    if first and first.how not in follows:
        return None
    message = f"MPI itself failed in {call}: its lines above say why"
    host, rank = (first.host, first.rank) if first else ("", None)
    return Verdict(status, "", message, host, rank=rank, failed="mpi")


def _by_rank(job: Job) -> Verdict | None:
    """Judge by the rank that ended first, by mpirun's own report; None where it reported none."""
    status = job.status
    first, family = job.first_rank, job.family
    if first is None:
        return None
    # At the end Hydra also lists spawned ranks, whose exit doesn't count for the job; and its
    # earlier lines may be the output of a rank that runs its own mpiexec.
    if status == 0 and (job.spec.plan.tolerates_failure or family.mixes_statuses):
        return None
    rank = rank_name(first)
    if first.how is RankEnd.SIGNAL:
        passed_on = BY_SIGNAL < status < SSH_FAILED
        number = first.signal or (status - BY_SIGNAL if passed_on else 0)
        name = signal_name(number) if number else ""
        also = "" if status == BY_SIGNAL + number else f" (mpirun itself returned {status})"
        # The first rank that mpirun reports may be one that it ended itself.
        by = ", from elsewhere or by mpirun after another rank's end" if number == SIGTERM else ""
        message = f"{rank} was ended by {name or 'a signal'}{by}{also}"
        own = BY_SIGNAL + number if number else 1
        code = own if family.mixes_statuses or not status else status
        return Verdict(code, "", message, first.host, rank=first.rank, signal=name)
    code = first.code or status or 1
    also = "" if code == status else f"; mpirun itself returned {status}"
    way = {
        RankEnd.ABORT: "aborted (MPI_Abort, or MPI itself) with code",
        RankEnd.SILENT: "ended without MPI_Finalize, with code",
    }.get(first.how, "exited with code")
    message = f"{rank} {way} {code} (first failure{also})"
    return Verdict(code, "", message, first.host, rank=first.rank)


def _by_status(job: Job) -> Verdict:
    """Judge by mpirun's exit status where no other rule applies."""
    status = job.status
    if status == 0:
        return Verdict(0, "", "the program succeeded")
    unused = job.no_agent and job.no_agent.issuperset(job.hosts)
    refused = unused and job.family.mixes_statuses and job.spec.hosts == len(job.hosts)
    if status in job.family.lacking and not refused:
        message = "a rank failed, or mpirun could not start the program on some host: "
        return Verdict(status, "", f"{message}see mpirun's own lines", failed=_MPIRUN)
    if status - BY_SIGNAL in _OF_RANKS:
        return Verdict(status, "", f"a rank was ended by {signal_name(status - BY_SIGNAL)}")
    if job.no_agent and (job.spec.plan.obstacles or job.no_agent.issuperset(job.hosts)):
        hosts = [host for host in job.hosts if host in job.no_agent]
        message = f"mpirun ended with {status} and started no daemon on {first_few(hosts, LISTED)}"
        evidence = _not_started(job).evidence
        return Verdict(status, "", message, evidence=evidence, failed=_MPIRUN)
    text = f"mpirun ended with {status}, and no rank is known to have failed: see the lines above"
    return Verdict(status, "", text, failed=_MPIRUN)


# The first that applies is the verdict; ``_by_status`` always does.
_RULES: Final[tuple[Callable[[Job], Verdict | None], ...]] = (
    _by_cause,
    _by_signal,
    _by_time_limit,
    _by_program,
    _by_agent,
    _by_open_session,
    _by_mpiruns_signal,
    _by_mpi,
    _by_rank,
    _by_status,
)


# Explanations added to a verdict.


def _by_launcher_memory(job: Job, found: Verdict) -> Verdict:
    """Judge by the launcher's own memory limit where an ssh or agent was killed."""
    here = next((host for host in job.answers.values() if host.here and host.memory), None)
    if not found.killed or here is None:
        return found
    before = f"{found.host}: {found.message}" if found.host else found.message
    return verdict_of("launcher-memory", here.memory, here.name, (before, *found.evidence))


def _memory_explains(found: Verdict, host: HostFacts) -> bool:
    """Whether an OOM kill on a host explains the verdict, or is only a hint.

    It may have happened at any time since the start: it explains a SIGKILL there, and the SIGTERM
    by which mpirun ends all other ranks.
    """
    if found.killed or found.code == BY_SIGNAL + SIGKILL:
        return found.host in ("", host.name)
    return found.signal == "SIGTERM"


def _explained(job: Job, found: Verdict) -> Verdict:
    """Add what the hosts reported: OOM kills, and hosts that are gone."""
    hosts = [host for host in job.answers.values() if host.name != found.host]
    if found.host in job.answers:
        hosts.insert(0, job.answers[found.host])
    reported, hints = list[str](), list[str]()
    for host in hosts if found.reference != "launcher-memory" else ():
        if host.memory:
            lines = reported if _memory_explains(found, host) else hints
            lines.append(f"{host.name}: {host.memory}")
    reported += [f"{host.name}: {host.gone}" for host in hosts if host.gone]
    if unknown := sum(host.answered is None for host in hosts):
        reported.append(f"{unknown} of {len(hosts)} hosts could not be queried in time")
    lost = hosts and hosts[0].name == found.host and (hosts[0].gone or hosts[0].answered is False)
    evidence = (*found.evidence, *hints)
    return replace(found, gone=found.gone or bool(lost), reported=(*reported,), evidence=evidence)
