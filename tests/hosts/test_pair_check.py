"""Hosts that dial each other and the launcher: real programs, over pipes in place of SSH."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from mpiboot.core import log
from mpiboot.core.facts import Worker
from mpiboot.core.setting_types import LogLevel
from mpiboot.hosts import pairs
from mpiboot.hosts.pairs import PairCheck
from mpiboot.network.worker_pairs import LAUNCHER, Dial, Reached
from mpiboot.ssh.commands import HostCommand
from mpiboot.ssh.pool import THIS_POD, Pool
from mpiboot.worker.server import write_scripts
from tests.fakes.workers import eth0, without_facts, worker
from tests.waiting import until_in_loop

HERE = "127.0.5.1"  # the launcher
PATIENCE = 60.0
STARTED: list[HostCommand] = []


@pytest.fixture(autouse=True)
async def ended() -> AsyncIterator[None]:
    """Leave no probe to the next test's loop."""
    yield
    for one in STARTED:
        one.end()
        await one.wait()
    STARTED.clear()


class Local:
    """A pool whose hosts run their commands here, with a worker's folder or none.

    ``heard`` changes the lines that a host reads; ``lines`` are those that were written.
    """

    def __init__(self, folder: Path | None, heard: Callable[[str], str] = str) -> None:
        self.lines: list[str] = []
        self._pool = Pool(None)
        self._pool.environ = {"PATH": os.environ["PATH"]}
        if folder is not None:
            self._pool.environ = {**self._pool.environ, "MPIBOOT_WORKER_DIR": str(folder)}
        self._heard = heard
        self.started: list[HostCommand] = []

    async def start(self, _: str, command: str, seconds: float) -> HostCommand:
        found = await self._pool.start(THIS_POD, command, seconds)
        heard = _Hears(found.stdin, found.stdout, found.stderr, found.wait, found.end)
        object.__setattr__(heard, "heard", self._hears)
        self.started.append(heard)
        STARTED.append(heard)
        return heard

    def _hears(self, line: str) -> str:
        self.lines.append(line)
        return self._heard(line)

    def dialled(self, network: str) -> list[str]:
        """The addresses of a network that it was to dial."""
        words = [line.split() for line in self.lines]
        return sorted(
            each[1] for each in words if each[0] == "dial" and each[1].startswith(network)
        )


class _Hears(HostCommand):
    """A command that reads other lines than were written."""

    heard: Callable[[str], str]

    def write(self, line: str) -> None:
        super().write(self.heard(line))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_scripts(tmp_path)
    return tmp_path


def host(number: int) -> Worker:
    one = worker(f"w-{number}", eth0())
    return replace(one, address=f"127.0.6.{number + 1}", local_address=HERE)


def check_of(seconds: float = PATIENCE, ports: str = "") -> PairCheck:
    return PairCheck(seconds, ports, "1a2b-3c4d@pi-launcher@2026-11-28T18:00:00Z")


def join(check: PairCheck, one: Worker, local: Local) -> Local:
    check.join(one, cast("Pool", local))
    return local


async def results(check: PairCheck, hosts: Sequence[Worker]) -> tuple[Dial, ...]:
    """What was found, and the end of all probes."""
    check.begin(hosts)
    found = await check.results()
    check.close()
    return found


def ways(found: Sequence[Dial]) -> list[str]:
    return sorted(f"{item.source} {item.target}" for item in found)


def both(*pairs: str, launcher: str = "") -> list[str]:
    """Numbers of hosts as ``ways`` has them: pairs both ways, and who dials the launcher."""
    each = (way for pair in pairs for way in (pair, pair[::-1]))
    to_launcher = (f"w-{one} {LAUNCHER}" for one in launcher)
    return sorted([*(f"w-{way[0]} w-{way[1]}" for way in each), *to_launcher])


async def test_neighbours_dial_each_other_and_the_launcher(folder: Path) -> None:
    check = check_of()
    hosts = [host(number) for number in range(5)]
    connections = [join(check, one, Local(folder)) for one in hosts]
    found = await results(check, hosts)
    assert ways(found) == both("01", "12", "23", "34", "40", launcher="01234")
    assert {item.reached for item in found} == {Reached.ANSWERED}
    assert {item.seen for item in found if item.target == "w-0"} == {"127.0.0.1"}
    assert not any(item.translated for item in found)
    ends = [await one.wait() for local in connections for one in local.started]
    assert len(ends) == 5


async def test_a_port_of_the_range_is_dialled_and_left_free(folder: Path) -> None:
    check, hosts = check_of(ports="19030-19035"), [host(0), host(1)]
    for one in hosts:
        join(check, one, Local(folder))
    with socket.create_server((HERE, 19035)):
        check.begin(hosts)
        found = await check.results()
    assert sorted((item.target, item.port) for item in found) == [
        *((LAUNCHER, 19034), (LAUNCHER, 19034)),
        *(("w-0", 19035), ("w-1", 19035)),
    ]
    with socket.socket() as again:  # before mpirun starts, without SO_REUSEADDR
        again.bind((HERE, 19034))
    check.close()


async def test_a_launcher_without_a_free_port_is_not_dialled(folder: Path) -> None:
    check, hosts = check_of(ports="19036-19036"), [host(0), replace(host(1), local_address="")]
    for one in hosts:
        join(check, one, Local(folder))
    with socket.create_server((HERE, 19036)):
        assert ways(await results(check, hosts)) == both("01")


def to_port(number: int, addresses: str) -> Callable[[str], str]:
    """Have these addresses dialled at another port."""

    def heard(line: str) -> str:
        what, address, *rest = line.split()
        if what == "dial" and address.startswith(addresses):
            rest[0] = str(number)
        return " ".join((what, address, *rest))

    return heard


async def test_what_can_not_be_reached_is_told(folder: Path) -> None:
    """A port at which nobody listens stands for one that a firewall resets."""
    check, hosts = check_of(), [host(0), host(1)]
    join(check, hosts[0], Local(folder, to_port(1, "127.0.6.2")))
    join(check, hosts[1], Local(folder, to_port(1, HERE)))
    found = await results(check, hosts)
    assert {(item.source, item.target): (item.reached, item.ssh) for item in found} == {
        ("w-0", "w-1"): (Reached.REFUSED, Reached.REFUSED),
        ("w-1", "w-0"): (Reached.ANSWERED, None),
        ("w-0", LAUNCHER): (Reached.ANSWERED, None),
        ("w-1", LAUNCHER): (Reached.REFUSED, None),
    }


async def test_what_accepts_and_is_not_of_this_launch_is_told(folder: Path) -> None:
    """As a sidecar accepts every connection, or a worker of another launch has the port."""
    check, hosts = check_of(0.2), [host(0), host(1)]
    with socket.create_server(("", 0)) as proxy:
        heard = to_port(proxy.getsockname()[1], "127.0.6.2")
        join(check, hosts[0], Local(folder, heard))
        join(check, hosts[1], Local(folder))
        found = await results(check, hosts)
    reached = {item.source: item.reached for item in found if item.target != LAUNCHER}
    assert reached == {"w-0": Reached.CONNECTED, "w-1": Reached.ANSWERED}


async def test_a_host_that_answers_itself_no_more_is_not_blamed_on_the_network(
    folder: Path,
) -> None:
    check, hosts = check_of(), [host(0), host(1)]
    for one in hosts:
        join(check, one, Local(folder, to_port(1, "127.0.6.")))
    assert ways(await results(check, hosts)) == both(launcher="01")


def data(one: Worker) -> tuple[str, ...]:
    """Two addresses on the data network."""
    return one.address.replace("127.0.6.", "127.0.7."), one.address.replace("127.0.6.", "127.0.8.")


async def on_data(check: PairCheck, hosts: Sequence[Worker], *addresses: tuple[str, ...]) -> str:
    """What is said of the data network."""
    check.begin(hosts)
    given = addresses or tuple(map(data, hosts))
    said = await check.blocked_on_data(
        {one.host.name: own for one, own in zip(hosts, given, strict=True)}
    )
    await check.results()
    check.close()
    return said


async def test_neighbours_dial_data_addresses_too(folder: Path) -> None:
    check, hosts = check_of(), [host(number) for number in range(3)]
    pools = [join(check, one, Local(folder)) for one in hosts]
    assert await on_data(check, hosts) == ""
    for one, local in zip(hosts, pools, strict=True):
        others = [data(other) for other in hosts if other is not one]
        for place, network in enumerate(("127.0.7.", "127.0.8.")):
            assert local.dialled(network) == sorted(other[place] for other in others)


async def test_data_addresses_that_do_not_answer_are_told(folder: Path) -> None:
    """A port at which nobody listens stands for one that a firewall resets."""
    check, hosts = check_of(), [host(0), host(1)]
    first = join(check, hosts[0], Local(folder, to_port(1, "127.0.7.2")))
    join(check, hosts[1], Local(folder))
    said = await on_data(check, hosts)
    assert said.startswith("w-0 can't reach w-1 (127.0.7.2 port ")
    assert said.endswith("as kube-router's do; the control addresses answer")
    assert not first.dialled("127.0.8.")  # no further link is tried


def elsewhere(line: str) -> str:
    return "listen 203.0.113.7" if line.startswith("listen ") else line


@pytest.mark.parametrize(
    ("heard", "addresses"),
    [
        (elsewhere, ()),
        (to_port(1, "127.0.7."), ()),
        (to_port(1, "127.0.6.2"), ()),
        (to_port(1, "none"), (("127.0.7.1",), ("::1",))),
        (to_port(1, "none"), (("127.0.7.1",), ())),
        (to_port(1, "none"), ((), ())),
    ],
    ids=["can't listen", "has ended", "no control", "other IP version", "no address", "none"],
)
async def test_what_proves_nothing_of_the_data_network(
    folder: Path, heard: Callable[[str], str], addresses: tuple[tuple[str, ...], ...]
) -> None:
    """Nobody listens there, or there is nobody who could be expected to connect."""
    check, hosts = check_of(), [host(0), host(1)]
    for one in hosts:
        join(check, one, Local(folder, heard))
    assert await on_data(check, hosts, *addresses) == ""


async def test_a_pod_that_is_not_there_any_more_counts_for_nothing(folder: Path) -> None:
    check, hosts = check_of(), [host(0), host(1), host(2)]
    for one in hosts:
        join(check, one, Local(folder))
    found = await results(check, [hosts[0], replace(hosts[1], address="127.0.6.77"), hosts[2]])
    assert ways(found) == both("02", launcher="02")


async def test_others_servers_and_workers_of_another_release_are_not_checked(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A worker of 0.1 knows no ID: its program ends with too many words, or answers without one."""
    log.configure(level=LogLevel.DEBUG)
    check = check_of()
    hosts = [without_facts("w-0"), host(1), host(2), host(3), host(4)]
    homes: list[Path | None] = [None, tmp_path / "without", tmp_path / "older", folder, folder]
    for home in homes[1:3]:
        assert home is not None
        home.mkdir()
    (tmp_path / "older" / "probe").write_text("echo 'TypeError: main() takes 2' >&2\nexit 1\n")
    for one, home in zip(hosts, homes, strict=True):
        join(check, one, Local(home))
    found = await results(check, hosts)
    assert ways(found) == both("34", launcher="34")
    log.configure()
    message = capfd.readouterr().err
    no = "tries no connections to other workers: "
    assert f"w-0 {no}it does not run mpiboot\n" in message
    for name in ("w-1", "w-2"):
        assert f"{name} {no}its mpiboot is of another release, or no port is free" in message
    assert "4 connections tried\n" in message


async def test_one_that_never_says_anything_is_not_waited_for(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pairs, "_MARGIN", 1.0)
    (tmp_path / "slow").mkdir()
    (tmp_path / "slow" / "probe").write_text("exec cat\n")
    check, hosts = check_of(), [host(0), host(1), host(2)]
    for one, home in zip(hosts, (tmp_path / "slow", folder, folder), strict=True):
        join(check, one, Local(home))
    await until_in_loop(lambda: sum(task.done() for task in check._joined.values()) == 2)
    found = await asyncio.wait_for(results(check, hosts), PATIENCE)
    assert ways(found) == both("12", launcher="12")


async def test_dials_without_an_answer_are_not_waited_for(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slow").mkdir()
    (tmp_path / "slow" / "probe").write_text("echo mpiboot-probe 9\nexec sleep 1000\n")
    check, hosts = check_of(0.05), [host(0), host(1)]
    for one in hosts:
        join(check, one, Local(tmp_path / "slow"))
    monkeypatch.setattr(pairs, "_MARGIN", 0.05)
    check.begin(hosts)
    assert await asyncio.wait_for(check.results(), PATIENCE) == ()


@pytest.mark.parametrize(("seconds", "wanted"), [(0.0, False), (2.0, True)])
def test_nothing_is_tried_where_the_setting_is_0(seconds: float, *, wanted: bool) -> None:
    assert check_of(seconds).wanted is wanted
