"""Hosts that dial each other as they become ready: real programs, over pipes in place of SSH."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import asyncssh
import pytest

from mpiboot.core import log
from mpiboot.core.facts import Worker
from mpiboot.core.setting_types import LogLevel
from mpiboot.core.settings import resolve
from mpiboot.hosts import pairs
from mpiboot.hosts.access import SshAccess
from mpiboot.hosts.pairs import PairCheck
from mpiboot.network.worker_pairs import Dial, Reached, findings
from mpiboot.ssh.attempt import Target
from mpiboot.worker.server import write_scripts
from tests.fakes.workers import eth0, without_facts, worker
from tests.waiting import until_in_loop

if TYPE_CHECKING:
    from mpiboot.ssh.login import Connection


class Talk:
    """One command's lines."""

    def __init__(self, child: asyncio.subprocess.Process, heard: Callable[[str], str]) -> None:
        self._child, self._heard, self._turn = child, heard, asyncio.Lock()

    async def line(self) -> str:
        assert self._child.stdout is not None
        return (await self._child.stdout.readline()).decode().strip()

    async def ask(self, line: str) -> str:
        async with self._turn:
            assert self._child.stdin is not None
            self._child.stdin.write(f"{self._heard(line)}\n".encode())
            return await self.line()


class Local:
    """A connection that runs its commands here, with a worker's folder or none."""

    def __init__(self, folder: Path | None, heard: Callable[[str], str] = str) -> None:
        self._environ = {"PATH": os.environ["PATH"]}
        if folder is not None:
            self._environ["MPIBOOT_WORKER_DIR"] = str(folder)
        self._heard = heard
        self._children: list[asyncio.subprocess.Process] = []
        self.commands: list[str] = []
        self.closed = False

    async def start(self, command: str) -> Talk:
        self.commands.append(command)
        pipe = asyncio.subprocess.PIPE
        child = await asyncio.create_subprocess_exec(
            "sh", "-c", command, env=self._environ, stdin=pipe, stdout=pipe
        )
        self._children.append(child)
        return Talk(child, self._heard)

    async def close(self) -> None:
        self.closed = True
        for child in self._children:
            assert child.stdin is not None
            child.stdin.close()
            await child.wait()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_scripts(tmp_path)
    return tmp_path


def host(number: int) -> Worker:
    return replace(worker(f"w-{number}", eth0()), address=f"127.0.6.{number + 1}")


def join(check: PairCheck, one: Worker, connection: Local) -> Local:
    target = Target(one.host.name, one.address, one.port, one.user)
    check.keep(target, "SSH-2.0-OpenSSH_9.2 mpiboot", cast("Connection", connection))
    check.join(one, target)
    return connection


async def results(check: PairCheck, hosts: Sequence[Worker]) -> tuple[Dial, ...]:
    """What was found, and the end of all connections."""
    found = await check.results(hosts)
    await check.close()
    return found


async def test_what_was_found_is_not_held_up_by_good_byes(folder: Path) -> None:
    class Slow(Local):
        message = asyncio.Event()

        async def close(self) -> None:
            await self.message.wait()
            await super().close()

    check, hosts = PairCheck(60.0, ""), [host(number) for number in range(5)]
    connections = [join(check, one, Slow(folder)) for one in hosts]
    assert len(await asyncio.wait_for(check.results(hosts), 60)) == 14
    assert not any(connection.closed for connection in connections)
    Slow.message.set()
    await check.close()
    assert all(connection.closed for connection in connections)


async def test_every_host_dials_and_is_dialled(folder: Path) -> None:
    check = PairCheck(60.0, "")
    hosts = [host(number) for number in range(5)]
    connections = [join(check, one, Local(folder)) for one in hosts]
    found = await results(check, hosts)
    # 0-1, 0-2, 1-2, 1-3, 2-3, 0-4, 3-4, by the order in which they listen: each both ways.
    assert len(found) == 14
    assert {item.reached for item in found} == {Reached.ANSWERED}
    assert {item.source for item in found} == {item.target for item in found}
    assert {item.source for item in found} == {one.host.name for one in hosts}
    assert all(
        (item.target, item.source) in {(i.source, i.target) for i in found} for item in found
    )
    assert not any(item.translated for item in found)
    assert all(connection.closed for connection in connections)


async def test_a_port_of_the_range_is_dialled(folder: Path) -> None:
    check = PairCheck(60.0, "19030-19035")
    hosts = [host(0), host(1)]
    for one in hosts:
        join(check, one, Local(folder))
    found = await results(check, hosts)
    assert [item.port for item in found] == [19035, 19035]


async def test_who_comes_later_meets_those_that_were_kept(folder: Path) -> None:
    """Not more than the first two and the last are held while others are waited for."""
    check = PairCheck(60.0, "")
    hosts, connections = [], []
    for number in range(5):
        hosts.append(host(number))
        connections.append(join(check, hosts[-1], Local(folder)))
        await until_in_loop(lambda: len(check._dialled) >= (0, 2, 6, 10, 14)[len(hosts) - 1])
    await until_in_loop(lambda: all(connection.closed for connection in connections[2:4]))
    assert [connection.closed for connection in connections] == [False, False, True, True, False]
    assert len(await results(check, hosts)) == 14


async def test_a_host_alone_runs_nothing(folder: Path) -> None:
    check = PairCheck(60.0, "")
    connection = join(check, host(0), Local(folder))
    assert await results(check, [host(0)]) == ()
    assert connection.commands == []
    assert connection.closed


async def test_a_hosts_program_starts_while_its_facts_are_awaited(folder: Path) -> None:
    check = PairCheck(60.0, "")
    join(check, host(0), Local(folder))
    one, connection = host(1), Local(folder)
    target = Target(one.host.name, one.address, one.port, one.user)
    check.keep(target, "SSH-2.0-OpenSSH_9.2 mpiboot", cast("Connection", connection))
    await until_in_loop(lambda: len(connection.commands) == 1)
    check.join(one, target)
    assert len(await results(check, [host(0), one])) == 2
    assert len(connection.commands) == 1


async def test_a_server_that_takes_one_session_at_a_time_is_asked_again(folder: Path) -> None:
    class OneSession(Local):
        refused = 0

        async def start(self, command: str) -> Talk:
            if not self.refused:
                self.refused += 1
                return cast("Talk", None)
            return await super().start(command)

    check = PairCheck(60.0, "")
    join(check, host(0), Local(folder))
    connection = join(check, host(1), OneSession(folder))
    assert len(await results(check, [host(0), host(1)])) == 2
    assert isinstance(connection, OneSession)
    assert connection.refused == 1


async def test_what_can_not_be_reached_is_told(folder: Path) -> None:
    """A port at which nobody listens stands for one that a firewall resets."""

    def other_port(line: str) -> str:
        dial, address, _, *rest = line.split()
        return " ".join((dial, address, "1" if address == "127.0.6.2" else "2", *rest))

    check = PairCheck(60.0, "")
    hosts = [host(0), host(1)]
    join(check, hosts[0], Local(folder, other_port))
    join(check, hosts[1], Local(folder))
    found = await results(check, hosts)
    assert {item.source: item.reached for item in found} == {
        "w-0": Reached.REFUSED,
        "w-1": Reached.ANSWERED,
    }
    assert {item.source: item.ssh for item in found} == {"w-0": Reached.REFUSED, "w-1": None}


def data(one: Worker) -> tuple[str, ...]:
    """Two addresses on the data network."""
    return one.address.replace("127.0.6.", "127.0.7."), one.address.replace("127.0.6.", "127.0.8.")


async def test_neighbours_dial_data_addresses_too(folder: Path) -> None:
    check, hosts = PairCheck(60.0, "", data), [host(number) for number in range(4)]
    for one in hosts:
        join(check, one, Local(folder))
    assert await check.blocked_on_data(hosts) == ""
    assert len(await results(check, hosts)) == 10  # 0-1, 0-2, 1-2, 1-3, 2-3: each both ways
    assert {item.reached for _, _, item in check._dialled_data} == {Reached.ANSWERED}
    # Each and the one that listened just before it, both ways, on two links.
    order = [item.worker for item in check._hosts]
    pairs = list(itertools.pairwise(order))
    pairs += [(other, one) for one, other in pairs]
    assert sorted(
        (source.host.name, target.host.name, item.address)
        for source, target, item in check._dialled_data
    ) == sorted(
        (one.host.name, other.host.name, address) for one, other in pairs for address in data(other)
    )


def to_port_1(addresses: str) -> Callable[[str], str]:
    """Have these addresses dialled at a port at which nobody listens."""

    def heard(line: str) -> str:
        what, address, *rest = line.split()
        if what == "dial" and address.startswith(addresses):
            rest[0] = "1"
        return " ".join((what, address, *rest))

    return heard


async def test_data_addresses_that_do_not_answer_are_told(folder: Path) -> None:
    """A port at which nobody listens stands for one that a firewall resets."""
    check, hosts = PairCheck(60.0, "", data), [host(0), host(1)]
    join(check, hosts[0], Local(folder, to_port_1("127.0.7.2")))
    join(check, hosts[1], Local(folder))
    message = await check.blocked_on_data(hosts)
    assert message.startswith("w-0 can't reach w-1 (127.0.7.2 port ")
    assert message.endswith(
        "): the connection is refused, although that port is listened at; the control addresses "
        "answer"
    )
    # A pod made anew counts for nothing, nor is a further link tried.
    assert await check.blocked_on_data([hosts[0], replace(hosts[1], address="127.0.6.77")]) == ""
    assert {item.reached for item in await results(check, hosts)} == {Reached.ANSWERED}
    tried = [item.address for source, _, item in check._dialled_data if source is hosts[0]]
    assert tried == ["127.0.7.2"]


async def test_nothing_is_told_of_data_addresses_at_which_nobody_listens(folder: Path) -> None:
    """As of a worker that can't listen there, or of one whose program has ended."""

    def elsewhere(line: str) -> str:
        return "listen 203.0.113.7" if line.startswith("listen ") else line

    for heard in (elsewhere, to_port_1("127.0.7.")):
        check, hosts = PairCheck(60.0, "", data), [host(0), host(1)]
        for one in hosts:
            join(check, one, Local(folder, heard))
        assert await check.blocked_on_data(hosts) == ""
        assert len(await results(check, hosts)) == 2
        assert check._dialled_data == []


async def test_workers_that_do_not_connect_at_all_try_no_data_addresses(folder: Path) -> None:
    check, hosts = PairCheck(60.0, "", data), [host(0), host(1)]
    join(check, hosts[0], Local(folder, to_port_1("127.0.6.2")))
    join(check, hosts[1], Local(folder))
    assert await check.blocked_on_data(hosts) == ""
    assert check._dialled_data == []
    await check.close()


@pytest.mark.parametrize(("one", "other"), [(("127.0.7.1",), ("::1",)), (("127.0.7.1",), ())])
async def test_links_without_an_ip_version_in_common_are_not_tried(
    folder: Path, one: tuple[str, ...], other: tuple[str, ...]
) -> None:
    check = PairCheck(60.0, "", lambda item: one if item.host.name == "w-0" else other)
    hosts = [host(0), host(1)]
    for item in hosts:
        join(check, item, Local(folder))
    assert await check.blocked_on_data(hosts) == ""
    assert check._dialled_data == []
    await check.close()


async def test_a_host_that_answers_itself_no_more_is_not_blamed_on_the_network(
    folder: Path,
) -> None:
    def closed_port(line: str) -> str:
        dial, address, _, *rest = line.split()
        return " ".join((dial, address, "1", *rest))

    check = PairCheck(60.0, "")
    hosts = [host(0), host(1)]
    for one in hosts:
        join(check, one, Local(folder, closed_port))
    assert await results(check, hosts) == ()


async def test_hosts_that_left_the_hostfile_count_for_nothing(folder: Path) -> None:
    check = PairCheck(60.0, "")
    hosts = [host(0), host(1), host(2)]
    for one in hosts:
        join(check, one, Local(folder))
    found = await results(check, [hosts[0], replace(hosts[1], address="127.0.6.77"), hosts[2]])
    assert {frozenset((item.source, item.target)) for item in found} == {frozenset(("w-0", "w-2"))}


async def test_a_pod_that_was_replaced_is_dialled_no_more(folder: Path) -> None:
    check = PairCheck(60.0, "")
    first = [host(0), host(1)]
    connections = [join(check, one, Local(folder)) for one in first]
    await until_in_loop(lambda: len(check._dialled) == 2)
    again = replace(first[1], address="127.0.6.99")
    dials: list[str] = []

    def heard(line: str) -> str:
        dials.append(line.split()[1])
        return line

    join(check, again, Local(folder, heard))
    await until_in_loop(lambda: connections[1].closed)
    found = await results(check, [first[0], again])
    assert {item.address for item in found} == {"127.0.6.1", "127.0.6.99"}
    assert len(found) == 2
    assert len(check._dialled) == 4
    assert dials == ["127.0.6.1"]  # a pod that is gone would answer after the whole patience


async def test_others_servers_and_older_workers_are_not_checked(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log.configure(level=LogLevel.DEBUG)
    check = PairCheck(60.0, "")
    hosts = [without_facts("w-0"), host(2), host(3), host(4)]
    (tmp_path / "older").mkdir()
    homes = [None, tmp_path / "older", folder, folder]
    connections = [join(check, one, Local(home)) for one, home in zip(hosts, homes, strict=True)]
    found = await results(check, hosts)
    assert {item.source for item in found} == {"w-3", "w-4"}
    assert {host.worker.host.name for host in check._hosts} == {"w-3", "w-4"}  # whom others meet
    assert [len(connection.commands) for connection in connections] == [0, 1, 1, 1]
    assert all(connection.closed for connection in connections)
    log.configure()
    message = capfd.readouterr().err
    no = "tries no connections to other workers: "
    assert f"w-0 {no}it does not run mpiboot\n" in message
    assert f"w-2 {no}it has an older mpiboot, or no free port at that address\n" in message
    assert "2 connections between workers tried\n" in message


async def test_a_proxy_that_takes_every_connection_proves_nothing(folder: Path) -> None:
    check, hosts = PairCheck(0.2, ""), [host(0), host(1)]
    with socket.create_server(("", 0)) as proxy:

        def heard(line: str) -> str:
            dial, address, _, rest = line.split(maxsplit=3)
            return f"{dial} {address} {proxy.getsockname()[1]} {rest}"

        for one in hosts:
            join(check, one, Local(folder, heard))
        found = await results(check, hosts)
    assert [item.reached for item in found] == [Reached.CONNECTED] * 2
    assert findings(found, ["w-0", "w-1"]) == ()


async def test_one_that_never_says_anything_is_not_waited_for(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pairs, "_MARGIN", 0.1)
    (tmp_path / "slow").mkdir()
    (tmp_path / "slow" / "probe").write_text("exec cat\n")
    check = PairCheck(0.1, "")
    hosts = [host(0), host(1)]
    join(check, hosts[0], Local(tmp_path / "slow"))
    join(check, hosts[1], Local(folder))
    assert await asyncio.wait_for(results(check, hosts), 60) == ()


@pytest.mark.parametrize(("seconds", "wanted"), [(0.0, False), (2.0, True)])
def test_nothing_is_tried_where_the_setting_is_0(seconds: float, *, wanted: bool) -> None:
    assert PairCheck(seconds, "").wanted is wanted


async def test_an_answer_is_waited_for_as_long_as_two_dials_and_a_start_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check, noted = PairCheck(30.0, ""), list[float]()
    never: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    check._work.add(never)

    async def wait(_: object, *, timeout: float) -> None:
        noted.append(timeout)
        never.set_result(None)

    monkeypatch.setattr(pairs, "asyncio", SimpleNamespace(**{**vars(asyncio), "wait": wait}))
    assert await check.results([]) == ()
    (seconds,) = noted
    assert 64 < seconds <= 65


async def test_hosts_that_can_not_be_logged_in_to_take_no_part_in_a_measurement(
    tmp_path: Path,
) -> None:
    key = tmp_path / "key"
    asyncssh.generate_private_key("ssh-ed25519").write_private_key(key)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        measuring = pairs.MeasuringHosts(
            resolve({}, {}).settings, SshAccess("runner", key, "launcher")
        )
        await measuring.log_in(replace(worker("w-0"), address="127.0.0.1", port=port))
    assert measuring.connections == {}
