"""Hosts that dial each other and the launcher: real programs, over pipes in place of SSH."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast
from unittest.mock import Mock

import pytest

from mpiboot.core.facts import Worker
from mpiboot.core.settings import Settings
from mpiboot.hosts import remote_commands
from mpiboot.hosts.remote_commands import PairCheck
from mpiboot.network.worker_pairs import LAUNCHER, Dial, Reached
from mpiboot.ssh.attempt import HostCommand
from mpiboot.ssh.pool import THIS_POD, Pool
from mpiboot.worker.role import write_scripts
from tests.fakes.workers import eth0, without_facts, worker

HERE = "127.0.5.1"  # the launcher
PATIENCE = 60.0
LAUNCH = "1a2b-3c4d@pi-launcher@2026-11-28T18:00:00Z"
Heard = Callable[[str], str]


class _Hears(HostCommand):
    """A command that reads other lines than were written."""

    heard: Heard

    def write(self, line: str) -> None:
        super().write(self.heard(line))


def host(number: int) -> Worker:
    one = worker(f"w-{number}", eth0())
    return replace(one, address=f"127.0.6.{number + 1}", local_address=HERE)


class Hosts:
    """A check, and a pool whose hosts run their commands here, with a worker's folder or none."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._pool = folder, Pool(None)
        self.lines, self.started = dict[str, list[str]](), list[HostCommand]()
        self.hosts: list[Worker] = []

    def join(
        self,
        *heard: Heard,
        seconds: float = PATIENCE,
        ports: str = "",
        hosts: Sequence[Worker] = (),
        homes: Sequence[Path | None] = (),
    ) -> None:
        """Have a host for each ``heard``, which changes what it reads; w-0, ... unless given."""
        self.hosts = [*hosts] or [host(number) for number in range(len(heard))]
        given = zip(self.hosts, homes or [self._folder] * len(heard), heard, strict=True)
        self._given = {one.host.name: (home, hears) for one, home, hears in given}
        self._settings = Settings(pair_check=seconds, port_range=ports)

    def begin(self, *addresses: tuple[str, ...]) -> PairCheck:
        """Begin a check, with these addresses of each host on the data network."""
        names = (one.host.name for one in self.hosts)
        on_data = dict(zip(names, addresses, strict=False))
        return PairCheck(self._settings, LAUNCH, cast("Pool", self), self.hosts, on_data)

    async def start(self, name: str, command: str, seconds: float) -> HostCommand:
        home, hears = self._given[name]
        folders = {} if home is None else {"MPIBOOT_WORKER_DIR": str(home)}
        self._pool.environ = {"PATH": os.environ["PATH"], **folders}
        found = await self._pool.start(THIS_POD, command, seconds)
        heard = _Hears(found.stdin, found.stdout, found.stderr, found.wait, found.end)
        lines = self.lines.setdefault(name, [])

        def noted(line: str) -> str:
            lines.append(line)
            return hears(line)

        object.__setattr__(heard, "heard", noted)
        self.started.append(heard)
        return heard

    def dialled(self, one: Worker, network: str) -> list[str]:
        """The addresses of a network that a host was to dial."""
        words = [line.split() for line in self.lines[one.host.name]]
        return sorted(
            each[1] for each in words if each[0] == "dial" and each[1].startswith(network)
        )

    async def results(self) -> tuple[Dial, ...]:
        return await self.begin().results()

    async def on_data(self, *addresses: tuple[str, ...]) -> str:
        """What is reported of the data network; each host has two addresses there unless given."""
        check = self.begin(*addresses or map(data, self.hosts))
        blocked = await check.blocked_on_data()
        await check.results()
        return blocked


@pytest.fixture
async def hosts(tmp_path: Path) -> AsyncIterator[Hosts]:
    """Leaves no probe to the next test's loop."""
    write_scripts(tmp_path)
    made = Hosts(tmp_path)
    yield made
    for one in made.started:
        one.end()
        await one.wait()


def ways(found: Sequence[Dial]) -> list[str]:
    return sorted(f"{item.source} {item.target}" for item in found)


def both(*pairs: str, launcher: str = "") -> list[str]:
    """Numbers of hosts as ``ways`` has them: pairs both ways, and who dials the launcher."""
    each = (way for pair in pairs for way in (pair, pair[::-1]))
    to_launcher = (f"w-{one} {LAUNCHER}" for one in launcher)
    return sorted([*(f"w-{way[0]} w-{way[1]}" for way in each), *to_launcher])


def reached(found: Sequence[Dial]) -> dict[str, Reached]:
    return {f"{item.source} {item.target}": item.reached for item in found}


def to_port(number: int, addresses: str) -> Heard:
    """Have these addresses dialled at another port."""

    def heard(line: str) -> str:
        what, address, *rest = line.split()
        if what == "dial" and address.startswith(addresses):
            rest[0] = str(number)
        return " ".join((what, address, *rest))

    return heard


def data(one: Worker) -> tuple[str, ...]:
    """Two addresses on the data network."""
    return one.address.replace("127.0.6.", "127.0.7."), one.address.replace("127.0.6.", "127.0.8.")


async def test_neighbours_dial_each_other_and_the_launcher(hosts: Hosts) -> None:
    hosts.join(*[str] * 5)
    found = await hosts.results()
    assert ways(found) == both("01", "12", "23", "34", "40", launcher="01234")
    assert {item.reached for item in found} == {Reached.ANSWERED}
    assert {item.seen for item in found if item.target == "w-0"} == {"127.0.0.1"}
    assert not any(item.translated for item in found)
    assert len([await one.wait() for one in hosts.started]) == 5


async def test_a_port_of_the_range_is_dialled_and_left_free(hosts: Hosts) -> None:
    hosts.join(str, str, ports="19030-19035")
    with socket.create_server((HERE, 19035)):
        found = await hosts.results()
    targets = sorted((item.target, item.port) for item in found)
    assert targets == [*[(LAUNCHER, 19034)] * 2, ("w-0", 19035), ("w-1", 19035)]
    with socket.socket() as again:  # before mpirun starts, without SO_REUSEADDR
        again.bind((HERE, 19034))


async def test_a_launcher_without_a_free_port_is_not_dialled(hosts: Hosts) -> None:
    hosts.join(str, str, ports="19036-19036")
    with socket.create_server((HERE, 19036)):
        assert ways(await hosts.results()) == both("01")


async def test_what_can_not_be_reached_is_a_result(hosts: Hosts) -> None:
    """A port at which nobody listens stands for one that a firewall resets."""
    hosts.join(to_port(1, "127.0.6.2"), to_port(1, HERE))
    found = await hosts.results()
    assert reached(found) == {
        "w-0 w-1": Reached.REFUSED,
        "w-1 w-0": Reached.ANSWERED,
        f"w-0 {LAUNCHER}": Reached.ANSWERED,
        f"w-1 {LAUNCHER}": Reached.REFUSED,
    }
    ssh = {f"{item.source} {item.target}": item.ssh for item in found if item.ssh is not None}
    assert ssh == {"w-0 w-1": Reached.REFUSED}


async def test_what_accepts_and_is_not_of_this_launch_is_a_result(hosts: Hosts) -> None:
    """As a sidecar accepts every connection, or a worker of another launch has the port."""
    with socket.create_server(("", 0)) as proxy:
        hosts.join(to_port(proxy.getsockname()[1], "127.0.6.2"), str, seconds=0.2)
        found = reached(await hosts.results())
    assert (found["w-0 w-1"], found["w-1 w-0"]) == (Reached.CONNECTED, Reached.ANSWERED)


async def test_a_host_that_answers_itself_no_more_is_not_blamed_on_the_network(
    hosts: Hosts,
) -> None:
    hosts.join(*[to_port(1, "127.0.6.")] * 2)
    assert ways(await hosts.results()) == both(launcher="01")


async def test_neighbours_dial_data_addresses_too(hosts: Hosts) -> None:
    hosts.join(*[str] * 3)
    assert await hosts.on_data() == ""
    for one in hosts.hosts:
        others = [data(other) for other in hosts.hosts if other is not one]
        for place, network in enumerate(("127.0.7.", "127.0.8.")):
            assert hosts.dialled(one, network) == sorted(other[place] for other in others)


async def test_data_addresses_that_do_not_answer_are_reported(hosts: Hosts) -> None:
    hosts.join(to_port(1, "127.0.7.2"), str)
    blocked = await hosts.on_data()
    assert blocked.startswith("w-0 can't reach w-1 (127.0.7.2 port ")
    assert blocked.endswith("as kube-router's do; the control addresses answer")
    assert not hosts.dialled(hosts.hosts[0], "127.0.8.")  # no further link is tried


async def test_a_host_whose_connection_is_lost_dials_nobody(hosts: Hosts) -> None:
    hosts.join(str, Mock(side_effect=ConnectionError("lost")))
    assert ways(await hosts.results()) == [f"w-0 {LAUNCHER}", "w-0 w-1"]


def elsewhere(line: str) -> str:
    return "listen 203.0.113.7" if line.startswith("listen ") else line


@pytest.mark.parametrize(
    ("heard", "addresses"),
    [
        (elsewhere, ()),
        (to_port(1, "127.0.7."), ()),
        (to_port(1, "127.0.6.2"), ()),
        (str, (("127.0.7.1",), ("::1",))),
        (str, (("127.0.7.1",), ())),
        (str, ((), ())),
    ],
    ids=["can't listen", "has ended", "no control", "other IP version", "no address", "none"],
)
async def test_what_proves_nothing_of_the_data_network(
    hosts: Hosts, heard: Heard, addresses: tuple[tuple[str, ...], ...]
) -> None:
    """Nobody listens there, or there is nobody who could be expected to connect."""
    hosts.join(heard, heard)
    assert await hosts.on_data(*addresses) == ""


async def test_others_servers_and_workers_of_another_release_are_not_checked(
    hosts: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker of 0.1 knows no ID: its program ends with too many words."""
    monkeypatch.setattr(remote_commands, "_MARGIN_S", 1.0)
    homes = [tmp_path / name for name in ("without", "older", "slow")]
    for home in homes:
        home.mkdir()
    (homes[1] / "probe").write_text("echo 'TypeError: main() takes 2' >&2\nexit 1\n")
    (homes[2] / "probe").write_text("exec cat\n")
    listed = [without_facts("w-0"), *(host(number) for number in range(1, 6))]
    hosts.join(*[str] * 6, hosts=listed, homes=[None, *homes, tmp_path, tmp_path])
    assert ways(await asyncio.wait_for(hosts.results(), PATIENCE)) == both("45", launcher="45")
    assert "w-0" not in hosts.lines


async def test_dials_without_an_answer_are_not_waited_for(
    hosts: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "probe").write_text("echo mpiboot-probe 9\nexec sleep 1000\n")
    hosts.join(str, str, seconds=0.05)
    monkeypatch.setattr(remote_commands, "_MARGIN_S", 1.0)
    assert await asyncio.wait_for(hosts.results(), PATIENCE) == ()


async def test_nothing_is_tried_where_the_setting_is_0(hosts: Hosts) -> None:
    hosts.join(str, str, seconds=0.0)
    assert (await hosts.results(), await hosts.on_data(), hosts.started) == ((), "", [])
