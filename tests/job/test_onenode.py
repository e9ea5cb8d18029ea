"""Hosts of the hostfile that share an address, as pods with hostNetwork on one node do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mpiboot.job import onenode
from mpiboot.model import Host
from tests.fakes.plans import OPERATOR, POD, failing, observed, planned


def listed(*names: str) -> tuple[Host, ...]:
    return tuple(Host(name, 1, slots_given=True) for name in names)


def test_each_host_at_an_address_of_its_own_is_well() -> None:
    assert list(onenode.findings(observed())) == []


def test_one_address_with_two_servers_is_well() -> None:
    seen = observed()
    first, second = seen.workers
    second = replace(second, address=first.address, port=2222)
    assert list(onenode.findings(replace(seen, workers=(first, second)))) == []


def test_two_hosts_of_one_server_end_the_job_with_both_names() -> None:
    seen = observed()
    first, second = seen.workers
    second = replace(second, address=first.address)
    plan = planned("./train", replace(seen, workers=(first, second)))
    assert failing(plan) == ["settings-conflict"]
    (found,) = onenode.findings(replace(seen, workers=(first, second)))
    assert found.said == (
        f"{first.host.name}, {second.host.name} lead to one and the same SSH server, "
        "10.244.0.10 port 22"
    )
    assert "podAntiAffinity" in found.hint


@pytest.mark.parametrize(("name", "count"), [("pi-worker-0.pi.ns.svc", 1), ("pi-launcher", 0)])
def test_a_worker_at_the_launchers_own_address_is_no_launcher(name: str, count: int) -> None:
    hosts = listed(name, "pi-worker-1")
    seen = observed(environ={**POD, **OPERATOR}, listed=hosts, local=hosts[:1])
    found = list(onenode.findings(seen))
    assert len(found) == count
    assert all(item.host == name and "hostNetwork" in item.hint for item in found)


def test_elsewhere_any_pod_may_be_the_launcher() -> None:
    hosts = listed("train-worker-0", "train-worker-1")
    assert list(onenode.findings(observed(listed=hosts, local=hosts[:1]))) == []
