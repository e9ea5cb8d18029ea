"""What a launcher's doctor asks hosts for, over real sockets, nameservers and SSH servers."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

import pytest

from mpiboot.core.facts import Host
from mpiboot.core.settings import Settings
from mpiboot.doctor import job
from mpiboot.doctor.hosts import LauncherPlace, NameLook
from mpiboot.hosts import gate
from mpiboot.hosts.access import SshAccess
from mpiboot.hosts.dns import Resolver
from mpiboot.hosts.dns_query import DnsAnswer
from mpiboot.hosts.gate import DoctorLook
from mpiboot.hosts.pipeline import PipelineOptions
from mpiboot.network import pod
from mpiboot.ssh.attempt import LoginTimeouts
from tests.fakes.nameserver import NXDOMAIN, SERVFAIL, Nameserver, hosts_file, resolv_conf, serve
from tests.fakes.sshd import Behaviour, Job, sshd
from tests.fakes.worker import free_port

# Server and client are one process here: on a busy machine 64 logins at once take long.
PATIENT = LoginTimeouts(60.0, 60.0, 200.0, 200.0)


def reached(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 5):
        return True
    return False


def test_the_launcher_listens_while_hosts_are_asked_and_no_longer() -> None:
    free = free_port()
    ranged = Settings(control_ifname="127.0.0.1", port_range=f"{free}-{free}")
    with job.listening(ranged, {}) as place:
        assert (place.address, place.range_port, place.name) == (
            *("127.0.0.1", free),
            socket.gethostname(),
        )
        assert reached(place.port)
        assert reached(place.range_port)
        # Who comes after it finds no port of the range free, and does without.
        with job.listening(ranged, {}) as other:
            assert other.range_port == 0
    assert not reached(place.port)
    assert not reached(free)


def test_without_a_default_route_it_listens_at_the_address_of_the_route_to_the_api(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "in-no-hosts-file")
    monkeypatch.setattr(pod, "_FAR", ())
    with job.listening(Settings(), {pod.API: "127.0.0.1"}) as place:
        assert place.address == "127.0.0.1"
        assert reached(place.port)


def test_hosts_are_asked_for_the_launchers_address_and_name() -> None:
    place = LauncherPlace("own", "10.0.0.9", 40000)
    assert job.questions(place) == (
        *("own_values", "dials 4 10.0.0.9 40000 own 40000", "own_checks"),
    )
    ranged = LauncherPlace("own", "10.0.0.9", 40000, 5009)
    assert job.questions(ranged)[1] == "dials 4 10.0.0.9 40000 10.0.0.9 5009 own 5009"
    # A pod without an address of its own can't be reached, and nobody is asked to try.
    assert job.questions(LauncherPlace("own")) == ("own_values", "own_checks")


async def test_names_are_asked_for_three_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    domain = "ns.svc.cluster.local"
    server = Nameserver(
        {
            f"w-0.{domain}": ["10.0.0.1"],
            f"w-1.{domain}": ["10.0.0.2", "10.0.0.3"],
            f"w-2.{domain}": [NXDOMAIN],
            f"w-3.{domain}": [SERVFAIL],
        }
    )
    records = {"w-0": "10.0.0.1", "w-1": "10.0.0.4"}

    def system(name: str) -> tuple[str, ...]:
        return (records[name],) if name in records else ()

    made = 0

    def resolver(**given: object) -> Resolver:
        nonlocal made
        made += 1
        asks = (lambda _: ()) if "system" in given else system
        return Resolver(conf, own, system=asks, port=port, families=("A",))

    conf, own = resolv_conf(tmp_path, search=(domain,)), hosts_file(tmp_path)
    monkeypatch.setattr(job, "Resolver", resolver)
    async with serve(server) as port:
        listed = [Host(f"w-{number}") for number in range(4)]
        found = await job.look_up([*listed, Host("10.0.0.9")])
    assert made == 2
    assert list(found) == ["w-0", "w-1", "w-2", "w-3"]
    assert found["w-0"].answers == (("10.0.0.1",),) * 3
    assert found["w-0"].found_as == f"w-0.{domain}."
    assert found["w-1"].answers == (("10.0.0.4",), ("10.0.0.2",), ("10.0.0.3",))
    assert (found["w-2"].unknown, found["w-2"].answers) == (True, ())
    assert (found["w-3"].unknown, found["w-3"].answers) == (False, ())


class _Names(Resolver):
    """Each host's name leads to the same server."""

    async def ask(self, name: str) -> DnsAnswer:
        return DnsAnswer(name, ("127.0.0.1",))


async def test_64_hosts_are_asked_in_one_session_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mpiboot.network.pod.is_local", lambda _: False)
    behaviour = Behaviour(Job(tmp_path))
    listed = [Host(f"w-{number}") for number in range(64)]
    place = LauncherPlace("own", "127.0.0.1", 1)
    async with sshd(behaviour) as port:
        to = SshAccess("runner", behaviour.job.path, "launcher", ports=(port,))
        look = DoctorLook(job.questions(place))
        passed = await gate.probe_once(
            listed, Settings(), to, PipelineOptions(PATIENT), resolver=_Names(), doctor=look
        )
    assert (len(passed.workers), passed.findings) == (64, ())
    assert (behaviour.logins, len(behaviour.commands)) == (64, 64)
    reports = job.reports_of(listed, passed.workers, passed.answers, {"w-0": NameLook()})
    assert [one.host for one in reports] == [host.name for host in listed]
    assert {one.shown for one in reports} == {behaviour.job.key.get_fingerprint()}
    assert {one.dials["127.0.0.1", 1] for one in reports} == {"refused"}
    assert all(one.values["uid"] and one.worker and one.checks is None for one in reports)
    assert [one.name for one in reports[:2]] == [NameLook(), None]


def test_a_host_that_was_not_reached_has_an_empty_report() -> None:
    (one,) = job.reports_of([Host("w-0")], (), {}, {})
    assert (one.worker, one.values, one.dials, one.shown, one.checks) == (None, {}, {}, "", None)


@pytest.mark.parametrize(
    ("wanted", "asked"),
    [((), [0, 1]), (("w-1",), [1]), (("w-0.job", "w-1"), [0, 1]), (("w-9",), [])],
)
def test_who_is_asked(wanted: tuple[str, ...], asked: list[int]) -> None:
    listed = (Host("w-0.job"), Host("w-1.job"))
    assert DoctorLook((), wanted).select(listed) == tuple(listed[place] for place in asked)
