"""What a launcher's doctor asks hosts for, over real sockets, nameservers and SSH servers."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

import pytest

from mpiboot.core.facts import Host
from mpiboot.core.settings import Settings
from mpiboot.doctor import job
from mpiboot.doctor.hosts import LauncherPlace
from mpiboot.hosts import gate
from mpiboot.hosts.access import SshAccess
from mpiboot.hosts.dns import DnsAnswer, Resolver
from mpiboot.hosts.pipeline import PipelineOptions
from mpiboot.network import pod
from mpiboot.network.worker_pairs import Reached
from mpiboot.ssh.attempt import LoginTimeouts
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
        assert place == LauncherPlace("127.0.0.1", free, f"{free}-{free}")
        assert reached(free)
        # Who comes after it finds no port of the range free, and asks nobody to try.
        with job.listening(ranged, {}) as other:
            assert other == LauncherPlace("127.0.0.1")
    assert not reached(free)
    with job.listening(Settings(control_ifname="127.0.0.1"), {}) as place:
        assert reached(place.port)


def test_without_a_default_route_it_listens_at_the_address_of_the_route_to_the_api(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "in-no-hosts-file")
    monkeypatch.setattr(pod, "_OUTSIDE", ())
    with job.listening(Settings(), {pod.API: "127.0.0.1"}) as place:
        assert place.address == "127.0.0.1"
        assert reached(place.port)


def test_hosts_dial_the_launchers_address() -> None:
    place = LauncherPlace("10.0.0.9", 40000)
    assert job.questions(place) == ("own_values", "dial 4 10.0.0.9 40000", "own_checks")
    # A pod without an address of its own can't be reached, and nobody is asked to try.
    assert job.questions(LauncherPlace()) == ("own_values", "own_checks")


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
    place = LauncherPlace("127.0.0.1", 1)
    async with sshd(behaviour) as port:
        to = SshAccess("runner", behaviour.job.path, "launcher", ports=(port,))
        passed = await gate.probe_once(
            listed,
            Settings(),
            to,
            PipelineOptions(PATIENT),
            resolver=_Names(),
            doctor=job.questions(place),
        )
    assert (len(passed.workers), passed.findings) == (64, ())
    assert (behaviour.logins, len(behaviour.commands)) == (64, 64)
    reports = job.reports_of(listed, passed.workers, passed.answers)
    assert [one.host for one in reports] == [host.name for host in listed]
    assert {one.dial for one in reports} == {Reached.REFUSED}
    assert all(one.values["uid"] and one.worker and one.checks is None for one in reports)
