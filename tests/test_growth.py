"""Nothing that a launcher decides grows faster than the number of its hosts.

Counted are calls, also those by which names are compared; nobody looks at a clock.
"""

from __future__ import annotations

import cProfile
import pstats
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import pytest

from mpiboot.core.facts import Host, Worker
from mpiboot.core.model import HostKeys
from mpiboot.core.settings import Settings, resolve
from mpiboot.job import mpirun_line, render
from mpiboot.job import plan as plans
from mpiboot.job.plan_input import Observed
from mpiboot.network import decision, worker_network
from mpiboot.network.worker_pairs import Dial, Reached
from mpiboot.ssh import config
from mpiboot.supervisor.job import AgentConnected, AgentEnded, AgentStarted, Event
from tests.fakes import plans as p
from tests.fakes import workers as w
from tests.supervisor.test_job import begun, job

T = TypeVar("T")
FEW, MANY = 64, 128
# Twice as many hosts are twice the work, and sorting them a little more; squares would be four
# times as much.
TWICE = 2.3


class Name(str):
    """A host's name of which each comparison is a call."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other)

    def __hash__(self) -> int:
        return str.__hash__(self)


def calls(do: Callable[[T], object], value: T) -> int:
    profile = cProfile.Profile()
    profile.runcall(do, value)
    return int(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]


def host(place: int, slots: int = 2) -> Host:
    return Host(Name(f"w-{place}.job.ns.svc"), slots, slots_given=True, line=place + 1)


def observed(count: int, family: str, program: str = "./train") -> Observed:
    listed = tuple(map(host, range(count)))
    seen = p.observed(family, listed=listed)
    workers = tuple(replace(w.sriov(at), host=one) for at, one in enumerate(listed))
    return replace(
        seen,
        workers=workers,
        links=(p.link("lo", "127.0.0.1/8"), p.link("eth0", "10.244.0.9/8")),
        line=mpirun_line.read(program.split(), seen.mpi.family),
    )


def make(seen: Observed) -> plans.Plan:
    return plans.make(seen, resolve({}, seen.environ), p.PATHS)


def say(seen: Observed) -> None:
    made = make(seen)
    render.plan(made, made.findings)
    render.plan_json(made, made.findings)
    tuple(render.log_lines(made, seen))


def of_networks(workers: Sequence[Worker]) -> None:
    settings = Settings(nccl_version="2.28.9")
    found = decision.decide([worker_network.choose(one, settings) for one in workers], settings, {})
    assert found.findings == []


def judge_dials(count: int) -> None:
    seen = observed(count, "openmpi4")
    made = make(seen)
    assert len(made.remote_hosts) == count
    dialled = [Dial(one, one, "10.0.0.1", 5, 3.0, Reached.ANSWERED) for one in made.remote_hosts]
    assert plans.pair_findings(made, seen, dialled) == ()


def write_ssh_config(count: int) -> None:
    hosts = [config.LaunchHost(host(at).name, "10.0.0.1", 22, "root") for at in range(count)]
    config.render(
        hosts,
        key="/k",
        known_hosts="/h",
        host_keys=HostKeys.JOB,
        keepalive=60.0,
        user_args=config.UserArgs(),
    )


def supervise(count: int) -> None:
    """A job begins, and loses every host."""
    hosts = tuple(host(at).name for at in range(count))
    state = begun(job(hosts=hosts))
    kinds: tuple[Callable[[int, str], Event], ...] = (
        lambda pid, name: AgentStarted(name, pid),
        lambda _, name: AgentConnected(name),
        lambda pid, name: AgentEnded(name, pid, 255 if pid % 2 else 1),
    )
    for make_event in kinds:
        for pid, name in enumerate(hosts):
            state.step(make_event(pid, name))
    assert len(state.losses) == count


@pytest.mark.parametrize(
    ("do", "argument"),
    [
        *(
            pytest.param(say, lambda count, family=family: observed(count, family), id=family)
            for family in ("openmpi4", "openmpi5", "mpich", "intel")
        ),
        pytest.param(
            of_networks, lambda count: list(map(w.sriov, range(count))), id="data-network"
        ),
        *(
            pytest.param(do, lambda count: count, id=do.__name__)
            for do in (judge_dials, write_ssh_config, supervise)
        ),
    ],
)
def test_twice_as_many_hosts_are_about_twice_the_work(
    do: Callable[[object], object], argument: Callable[[int], object]
) -> None:
    few, many = argument(FEW), argument(MANY)
    do(argument(2))  # what is loaded and remembered once
    counts = calls(do, few), calls(do, many)
    assert counts[1] < TWICE * counts[0], counts


def test_squares_would_be_seen() -> None:
    def search(count: int) -> None:
        listed = [host(at).name for at in range(count)]
        assert all(name in listed for name in map(Name, listed))

    assert calls(search, MANY) > TWICE * calls(search, FEW)
