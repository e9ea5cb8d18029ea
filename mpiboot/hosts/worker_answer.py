"""What a host has answered to the gate's one command, as the record of a worker. Pure."""

from __future__ import annotations

from mpiboot.core import facts_json
from mpiboot.core.model import Host, Mpi, NoFacts, PodFacts, Worker
from mpiboot.hosts import host_shell
from mpiboot.hosts.host_shell import HostAnswer
from mpiboot.ssh.attempt import Attempt
from mpiboot.system import programs


def worker(host: Host, attempt: Attempt) -> Worker:
    """Give what a successful attempt has brought back of a host."""
    answer, target = host_shell.read(attempt.output), attempt.target
    facts, reason = facts_of(answer)
    return Worker(
        host=host,
        address=target.address,
        port=target.port,
        user=target.user,
        local_address=attempt.local_address,
        facts=facts,
        mpi=_mpi(answer, facts),
        oom_kills=answer.oom_kills,
        marks=answer.marks,
        attempts=answer.attempts,
        held=answer.held,
        called_mpi=programs.recognise(*answer.mpirun_by_path) if answer.mpirun_by_path else None,
        no_facts=reason,
    )


def facts_of(answer: HostAnswer) -> tuple[PodFacts | None, NoFacts]:
    """Read a host's facts, or say why there are none."""
    if answer.late:
        return None, NoFacts.LATE
    if answer.facts is None:
        return None, NoFacts.NO_MPIBOOT
    return facts_json.from_json(answer.facts), NoFacts.UNREADABLE


def _mpi(answer: HostAnswer, facts: PodFacts | None) -> Mpi | None:
    if facts is not None:
        return facts.mpi
    return programs.recognise(*answer.mpirun) if answer.mpirun else None
