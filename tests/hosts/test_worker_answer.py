"""What is kept of a host's answer: its facts, or why there are none, and what it says beside."""

from __future__ import annotations

import pytest

from mpiboot.core import records_json
from mpiboot.core.facts import Host, NoFacts
from mpiboot.core.model import MpiFamily
from mpiboot.hosts.pipeline import worker_of
from mpiboot.ssh.attempt import Attempt, Outcome, Target
from tests.fakes import plans

STATE = (
    "mpiboot-oom 3\n"
    "mpiboot-attempt a@b@c host%20lost\n"
    "mpiboot-process\nMPIBOOT_LAUNCH_ID=m\nSSH_CONNECTION=10.0.0.9 1 10.0.0.2 22\n"
    "mpiboot-mpirun /opt/mpirun mpirun (Open MPI) 5.0.7\n"
)
PLAIN = "mpiboot-shell /bin/fish\nmpiboot-plain\n/usr/bin/mpirun\nmpirun (Open MPI) 4.1.4\n"


def attempt(output: str) -> Attempt:
    target = Target("w-1", "10.0.0.2", 2222, "mpi")
    return Attempt(target, Outcome.OK, output=output, local_address="10.0.0.1")


def test_a_worker_is_where_it_answered_with_all_that_it_said() -> None:
    found = worker_of(Host("w-1", 4), attempt(STATE + PLAIN))
    assert found.host == Host("w-1", 4)
    assert (found.address, found.port, found.user) == ("10.0.0.2", 2222, "mpi")
    assert (found.local_address, found.oom_kills) == ("10.0.0.1", 3)
    assert (found.launches, found.held) == (("m",), (("m", "10.0.0.9"),))
    assert found.attempts == (("a@b@c", "host lost"),)
    assert found.called_mpi is not None
    assert (found.called_mpi.path, found.called_mpi.version) == ("/opt/mpirun", "5.0.7")
    assert found.mpi is not None
    assert found.shell == "/bin/fish"
    assert (found.mpi.path, found.mpi.family) == ("/usr/bin/mpirun", MpiFamily.OPENMPI4)


@pytest.mark.parametrize(
    ("output", "reason", "runs"),
    [
        (PLAIN, NoFacts.NO_MPIBOOT, False),
        ("mpiboot-late\n", NoFacts.LATE, True),
        ("mpiboot-facts\n{}\n", NoFacts.UNREADABLE, True),
    ],
)
def test_why_there_are_no_facts_is_known(
    output: str,
    reason: NoFacts,
    runs: bool,  # noqa: FBT001 - a row of the table
) -> None:
    found = worker_of(Host("w-1"), attempt(output))
    assert (found.facts, found.no_facts) == (None, reason)
    assert found.runs_mpiboot is runs
    assert found.late is (reason is NoFacts.LATE)
    assert (found.mpi is not None) == (output is PLAIN)
    assert found.called_mpi is None


def test_with_facts_the_mpi_is_theirs() -> None:
    facts = plans.observed().workers[0].facts
    assert facts is not None
    found = worker_of(Host("w-1"), attempt(f"mpiboot-facts\n{records_json.facts_to_json(facts)}\n"))
    assert found.facts == facts
    assert found.path_mpi == facts.mpi == plans.MPIS["openmpi4"]
