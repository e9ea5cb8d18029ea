"""Why a job is ended that has not ended by itself: a row of checks and a sentence each. Pure."""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from mpiboot.core.wording import first_few, size_of
from mpiboot.supervisor.events import ClientEnded, RankEnd, RankEnded, Verdict
from mpiboot.supervisor.state import State

# The exit codes of the rows of checks that a started job can end with, and whether a new try
# can help. The whole table, and the records that it is made of, would cost the parent a megabyte
# for as long as the job runs.
CODES: Final = {
    "agent-not-started": (78, False),
    "daemon-failed": (69, True),
    "host-key-differs": (77, False),
    "host-lost": (69, True),
    "launch-timeout": (69, True),
    "launcher-memory": (69, True),
    "output": (73, False),
    "program-missing": (127, False),
    "ranks-unanswered": (69, True),
    "ssh-client-lost": (69, True),
    "ssh-denied": (77, False),
    "kubectl-denied": (77, False),
    "workers-unreachable": (69, True),
}
# Hosts that one sentence names.
LISTED: Final = 8
_REMOTE_SHELLS: Final = ("ssh", "rsh", "srun", "qrsh", "blaunch", "kubectl")


def verdict_of(
    reference: str, said: str, host: str = "", evidence: tuple[str, ...] = ()
) -> Verdict:
    """Judge by a row of checks."""
    return Verdict(CODES[reference][0], reference, said, host, evidence)


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


def not_started(state: State, program: str = "") -> Verdict:
    """Judge an mpirun that starts ranks, or ends, without having started every host's daemon."""
    hosts = in_order(state, state.no_agent)
    count = len(state.job.hosts)
    where = "past mpiboot's launch agent" if program in _REMOTE_SHELLS else "on the launcher"
    runs = f"runs {program} {where}, but " if program else ""
    said = (
        f"mpirun {runs}started no daemon on {first_few(hosts, LISTED)} "
        f"({len(hosts)} of {count} remote hosts): the job would run on fewer hosts"
    )
    evidence = tuple(f"{name}: {why}" for name, why in state.job.obstacles)
    return verdict_of("agent-not-started", said, hosts[0] if count == 1 else "", evidence)


def launch_timeout(state: State) -> Verdict:
    """Judge a launch that took too long."""
    if state.no_agent and not state.no_daemon - state.no_agent:
        return not_started(state)
    hosts = in_order(state, state.no_daemon)
    lines = tuple(f"{host}: {_standing(state, host)}" for host in hosts[:LISTED])
    said = (
        f"{first_few(hosts, LISTED)} ({len(hosts)} of {len(state.job.hosts)} remote hosts) "
        f"did not join within {state.job.launch_timeout:g} s"
    )
    if len(hosts) < len(state.job.hosts):
        said += " after the last daemon that did"
    return verdict_of("launch-timeout", said, evidence=lines)


def _standing(state: State, host: str) -> str:
    daemon = state.job.family.daemon
    if host in state.no_agent:
        return "mpirun started no agent for it"
    if host in state.ended_unjoined:
        return f"its agent ended with 0, but no {daemon} joined"
    if host in state.connected:
        return f"ssh is connected, but its {daemon} has not joined"
    return "its agent was started, but is not connected"


def not_ended(state: State) -> Verdict:
    """Judge an mpirun that outlives its daemons."""
    said = f"every host's {state.job.family.daemon} has ended, but mpirun goes on without them"
    return verdict_of("daemon-failed", said)


def pod_ending(host: str) -> Verdict:
    """Judge a job one of whose pods was told to end."""
    said = "its pod was told to end (deleted, drained or preempted), and so was the job"
    return replace(verdict_of("host-lost", said, host), gone=True)


def client_lost(event: ClientEnded) -> Verdict:
    """Judge a job whose agents' sessions have all ended with the one process that had them."""
    said = f"mpiboot's SSH client, which holds the connections to all hosts, {event.how}"
    reference = "launcher-memory" if event.out_of_memory else "ssh-client-lost"
    return replace(verdict_of(reference, said), killed=event.killed)


def no_answer(said: str) -> Verdict:
    """Judge a job one of whose ranks waits in vain for another host."""
    return verdict_of("ranks-unanswered", said)


def ranks_waiting(state: State) -> Verdict:
    """Judge a job whose ranks seemed to wait in MPI for those of a host that had all ended.

    With what code they ended mpirun tells only at its own end.
    """
    host = in_order(state, state.ended_well)[0]
    first = state.first_rank
    said = "and the others seemed to wait for it in MPI"
    if first and first.last and first.code:
        said = f"{rank_name(first)} exited with code {first.code}, {said}"
        return Verdict(first.code, "", said, first.host, rank=first.rank)
    return verdict_of("daemon-failed", f"its last rank ended, {said}", host)


def rank_name(ended: RankEnded) -> str:
    """Name a rank as far as mpirun does."""
    return "a rank" if ended.rank is None else f"rank {ended.rank}"


def rank_ended_badly(state: State) -> Verdict:
    """Judge an mpirun that goes on with a job whose rank ended badly."""
    first = state.first_rank
    rank, host = (rank_name(first), first.host) if first else ("a rank", "")
    how = {RankEnd.SIGNAL: "was ended by a signal", RankEnd.ABORT: "called MPI_Abort"}
    said = how.get(first.how, "ended badly") if first else "ended badly"
    found = verdict_of("daemon-failed", f"{rank} {said}, but mpirun went on without it", host)
    return replace(found, rank=first.rank if first else None)
