"""Which facts an offline plan takes for which pod, and what it says of those that are missing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mpiboot.core.checks import MpibootError
from mpiboot.core.facts import PodFacts, facts_to_json
from mpiboot.core.model import AUTO, Auto, Level, Mpi, MpiFamily
from mpiboot.core.settings import resolve
from mpiboot.job import plan as plan_of
from mpiboot.job.plan_input import Observed
from mpiboot.launcher import look
from mpiboot.network import pod
from mpiboot.system import programs
from tests.fakes import plans
from tests.fakes import workers as w

OPENMPI, MPICH = plans.MPIS["openmpi4"], Mpi(MpiFamily.MPICH, "4.0", "/m", "")


def facts(hostname: str, mpi: Mpi | None = None) -> PodFacts:
    found = w.sriov(0).facts
    assert found is not None
    return replace(found, hostname=hostname, mpi=mpi, control_address=f"10.0.0.{len(hostname)}")


@pytest.mark.parametrize(
    ("wanted", "here", "saved", "found"),
    [
        (AUTO, OPENMPI, (), OPENMPI),
        (AUTO, OPENMPI, (None, MPICH), MPICH),  # the image's, not this machine's
        (AUTO, None, (MPICH,), MPICH),
        (MpiFamily.MPICH, OPENMPI, (MPICH,), MPICH),
        (MpiFamily.OPENMPI4, OPENMPI, (), OPENMPI),
        (
            MpiFamily.INTEL,
            OPENMPI,
            (),
            Mpi(MpiFamily.INTEL, "(not known)", "mpirun", "intel (--mpi)"),
        ),
        (MpiFamily.INTEL, None, (), Mpi(MpiFamily.INTEL, "(not known)", "mpirun", "intel (--mpi)")),
        (AUTO, None, (None,), None),
    ],
)
def test_the_mpi_is_that_of_the_facts_before_this_machines(
    monkeypatch: pytest.MonkeyPatch,
    wanted: MpiFamily | Auto,
    here: Mpi | None,
    saved: tuple[Mpi | None, ...],
    found: Mpi | None,
) -> None:
    def detect(*given: object) -> Mpi | None:
        assert given == ({"A": "b"}, "/called")
        return here

    monkeypatch.setattr(programs, "detect_mpi", detect)
    kept = tuple(facts(f"w-{number}", mpi) for number, mpi in enumerate(saved))
    resolved = resolve({} if wanted is AUTO else {"mpi": wanted.value}, {})
    if found is None:
        with pytest.raises(MpibootError, match="no mpirun or mpiexec on PATH"):
            look._offline_mpi(resolved, {"A": "b"}, kept, "/called")
        return
    assert look._offline_mpi(resolved, {"A": "b"}, kept, "/called") == found


@pytest.mark.parametrize("own", [True, False])
def test_facts_are_those_of_the_pod_with_their_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, own: bool
) -> None:
    """Whoever's facts are left over is the launcher."""
    (tmp_path / "notes.txt").write_text("no facts")
    # A worker that the hostfile lacks is no launcher where another one has no server.
    more = [facts("a-0"), replace(facts("launcher"), sshd="")] if own else []
    saved = [facts("w-0"), facts("w-1.job.ns.svc", OPENMPI), *more]
    for number, pod_facts in enumerate(saved):
        (tmp_path / f"{number}.json").write_text(facts_to_json(pod_facts))
    hostfile = tmp_path / "hostfile"
    names = [f"w-{number}.job.ns.svc" for number in range(3)]
    hostfile.write_text("\n".join(names))
    flags = {"ssh_port": "2206", "ssh_user": "", "hostfile": str(hostfile)}
    resolved, environ = resolve(flags, {}), {"A": "b", "HYDRA_HOST_FILE": "/none"}
    made: list[Observed] = []

    def make(observed: Observed, *_: object) -> plan_of.Plan:
        made.append(observed)
        return plan_of.Plan((), (), ())

    monkeypatch.setattr(plan_of, "make", make)
    monkeypatch.setattr(pod, "identity", lambda _: plans.NOBODY)
    line = ("mpirun", "./train")
    _, rest = look.offline_plan(resolved, line, environ, str(tmp_path))
    (observed,) = made
    one, other = observed.workers
    assert [host.name for host in observed.hostfile.hosts] == names
    assert (one.host.name, one.user, one.port, one.mpi) == (names[0], "root", 2206, None)
    assert (one.address, one.facts) == (saved[0].control_address, saved[0])
    assert one.local_address == ("10.0.0.8" if own else "")
    assert (other.host.name, other.mpi, observed.mpi) == (names[1], OPENMPI, OPENMPI)
    launcher = saved[3] if own else None
    assert (observed.own, observed.environ, observed.line.argv) == (launcher, {}, line)
    assert observed.links == (launcher.links if launcher else ())
    assert observed.identity == (launcher.identity if launcher else plans.NOBODY)
    pods = [] if own else ["no facts of the launcher's pod"]
    looked = "no name was resolved, no host was asked, no key was read"
    messages = [looked, f"no facts of 1 host ({names[2]})", *pods]
    assert [item.message.partition(":")[0] for item in rest] == messages
    assert {(item.check, item.level) for item in rest} == {("offline", Level.UNKNOWN)}
    assert [bool(item.hint) for item in rest] == [False, *[True] * (len(rest) - 1)]
