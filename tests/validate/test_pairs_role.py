"""`validate pairs` by RDMA: what runs on two hosts, with a stand-in for perftest's program.

The stand-in meets its client over TCP as the real one does, and prints the line that the real one
prints; the real one is tried in the virtual machine (tests/vm).
"""

from __future__ import annotations

import itertools
import os
import signal
import socket
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from mpiboot.core.checks import MpibootError, ShownError
from mpiboot.core.facts import HostAnswer
from mpiboot.core.settings import resolve
from mpiboot.launcher import prepare
from mpiboot.network import decision, worker_network
from mpiboot.ssh.attempt import CommandEnd, HostCommand
from mpiboot.ssh.pool import THIS_POD, Pool
from mpiboot.supervisor.signals import SIGNALS
from mpiboot.validate import pairs, role
from mpiboot.validate.nccl_tests import ToolOptions
from mpiboot.worker.role import write_scripts
from tests.fakes import workers as w
from tests.fakes.cli import mpiboot

if TYPE_CHECKING:
    from mpiboot.core.facts import Worker

PROGRAM = f"""#!{sys.executable}
import socket, sys
words = sys.argv[1:]
port = int(words[words.index("-p") + 1])
if words[-1] != "--report_gbits":
    client = socket.create_connection((words[-1], port))
    client.sendall(words[words.index("-d") + 1].encode())
    client.recv(1)
else:
    server = socket.create_server(("127.0.0.1", port))
    client, _ = server.accept()
    client.recv(64)
    client.sendall(b"x")
print(" #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]")
print(" 65536      1200             0.00               96.73              0.184500")
"""
FAILS = "#!/bin/sh\necho Failed to modify QP 17 to RTR >&2\nexit 1\n"


class Here:
    """A pool whose commands run here; the program of perftest is in a folder of each host's."""

    def __init__(self) -> None:
        self.folders: dict[str, Path] = {}
        self.started: list[HostCommand] = []
        self.closed = False

    def _pool(self, host: str) -> Pool:
        folder = self.folders[host]
        pool = Pool(None)
        pool.environ = {"PATH": f"{folder}:{os.environ['PATH']}", "MPIBOOT_WORKER_DIR": str(folder)}
        return pool

    async def run(self, host: str, command: str, seconds: float) -> CommandEnd:
        return await self._pool(host).run(THIS_POD, command, seconds)

    async def start(self, host: str, command: str, seconds: float) -> HostCommand:
        self.started.append(await self._pool(host).start(THIS_POD, command, seconds))
        return self.started[-1]

    async def close(self) -> None:
        """As the ends of the connections: their programs read no more."""
        for one in self.started:
            one.stdin.close()
            await one.wait()
        self.closed = True


@pytest.fixture
def measuring(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:  # noqa: ANN401
    """Measures between hosts that have these programs, reached here: the results, the pool."""

    async def measure(
        *programs: str,
        tool: str = "",
        made: Any = w.macvlan,  # noqa: ANN401 - one of the workers' makers
    ) -> tuple[pairs.Measured, Here]:
        first = 20000 + os.getpid() % 199 * 64  # other processes of the tests have other ports
        resolved = resolve({}, {"MPIBOOT_PORT_RANGE": f"{first}-{first + 63}"})
        pool = Here()
        workers: list[Worker] = [made(place) for place, _ in enumerate(programs)]
        for one, program in zip(workers, programs, strict=True):
            folder = pool.folders[one.host.name] = tmp_path / one.host.name
            folder.mkdir()
            (folder / "ib_write_bw").write_text(program)
            (folder / "ib_write_bw").chmod(0o755)
            write_scripts(folder)

        async def passed(*_: object) -> Any:  # noqa: ANN401 - as the gate's
            chosen = [worker_network.choose(one, resolved.settings) for one in workers]
            # All hosts are this one: the server is met over loopback.
            here = tuple(replace(one, address="127.0.0.1") for one in workers)
            return here, decision.decide(chosen, resolved.settings, {})

        monkeypatch.setattr(prepare, "find_job", passed)
        monkeypatch.setattr(prepare, "pass_gates_with_networks", passed)
        monkeypatch.setattr(role, "access", lambda _: SimpleNamespace(pool=pool))
        launcher: Any = SimpleNamespace(resolved=resolved, pods=None)
        seen = pairs.Measured(pairs.TCP)
        options = ToolOptions(tool, seconds=60.0 if tool == "tcp" else 600.0)
        await role._measure_hosts(launcher, options, seen)
        assert pool.closed
        return seen, pool

    return measure


async def test_every_pair_is_measured_by_the_program_of_both_ends(measuring: Any) -> None:  # noqa: ANN401
    seen, pool = await measuring(*[PROGRAM] * 3)
    assert (seen.tool.name, seen.rails, seen.failed) == ("ib_write_bw", ("mlx5_2:1",), {})
    assert {flow[1:] for flow in seen.values} == {*itertools.permutations(pool.folders, 2)}
    assert {value for values in seen.values.values() for value in values} == {96.73}
    assert seen.limits == (100.0,)
    assert pairs.judge(seen, 0.8) == []
    assert {await one.wait() for one in pool.started} == {0}


async def test_tcp_is_measured_where_it_is_asked_for(
    measuring: Any,  # noqa: ANN401
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    def busy(place: int) -> Worker:
        return replace(w.macvlan(place), answer=HostAnswer(launches=("launch",) if place else ()))

    def at_loopback(_: object, networks: dict[str, object]) -> dict[str, tuple[pairs.End, ...]]:
        ends = (pairs.End("net1", address, address) for address in ("127.0.0.2", "127.0.0.3"))
        return {host: (end,) for host, end in zip(networks, ends, strict=True)}

    monkeypatch.setattr(pairs, "link_ends", at_loopback)
    monkeypatch.setattr(role, "_MAX_S", 0.3)
    seen, pool = await measuring(PROGRAM, PROGRAM, tool="tcp", made=busy)
    assert "warning: a job runs on w-1: each slows the other down\n" in capfd.readouterr().err
    assert (seen.tool, seen.rails, seen.failed, seen.left_out) == (pairs.TCP, ("net1",), {}, ())
    assert {flow[1:] for flow in seen.values} == {("w-0", "w-1"), ("w-1", "w-0")}
    assert all(value > 0.1 for values in seen.values.values() for value in values)
    assert {await one.wait() for one in pool.started} == {0}


async def test_the_reason_is_the_programs_own_line_and_nothing_is_left(measuring: Any) -> None:  # noqa: ANN401
    """The server waits for a client that never comes, and is ended."""
    seen, pool = await measuring(PROGRAM, FAILS)
    assert seen.values == {}
    (found,) = pairs.judge(seen, 0.8)
    assert found.check == "not-measured"
    assert found.message.endswith("w-1: Failed to modify QP 17 to RTR")
    for one in pool.started:
        await one.wait()


async def test_a_tool_that_is_named_and_lacks_a_port_is_an_error(measuring: Any) -> None:  # noqa: ANN401
    def plain(place: int) -> Worker:
        return w.worker(f"w-{place}", w.eth0(f"10.244.1.{place + 5}/24"))

    with pytest.raises(MpibootError, match="no RDMA port for perftest on w-0, w-1") as bad:
        await measuring(PROGRAM, PROGRAM, tool="ib_write_bw", made=plain)
    assert bad.value.finding.check == "not-measured"
    assert "install" not in bad.value.finding.hint


def test_a_tool_that_is_none_is_an_error() -> None:
    with pytest.raises(MpibootError, match="--tool is 'iperf': expected one of ib_write_bw"):
        role.measure_pairs(resolve({}, {}), {}, ToolOptions("iperf"))


def test_of_this_pod_alone_it_says_that_there_are_no_two_hosts(tmp_path: Path) -> None:
    """A launcher without workers may have no key."""
    (tmp_path / "hostfile").write_text(f"{socket.gethostname()}\n")
    words = ("validate", "pairs", "--hostfile", str(tmp_path / "hostfile"))
    done = mpiboot(tmp_path, *words)
    assert done.returncode == 1, done.stderr
    assert "not-measured  fewer than two hosts besides this pod" in done.stdout


@pytest.fixture(autouse=True)
def _signals_as_before() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("failed", [False, True])
def test_slow_hosts_and_those_that_can_not_be_measured_fail(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    *,
    failed: bool,
) -> None:
    refused = "its SSH server takes no further session" if failed else "Gb/s over net1, typically"

    async def measure(_launcher: object, _options: object, seen: pairs.Measured) -> None:
        seen.hosts, seen.rails, seen.limits = tuple(f"w-{n}" for n in range(4)), ("net1",), (0.0,)
        for one, other in itertools.permutations(seen.hosts, 2):
            flow = pairs.Flow(0, one, other)
            if failed:
                seen.failed[flow] = "its SSH server takes no further session"
            else:
                full = 5.0 if "w-2" in (one, other) else 10.0
                seen.values[flow], seen.alone[flow] = [full, full * 1.01], [full]

    monkeypatch.setattr(role, "_measure_hosts", measure)
    own = SimpleNamespace(folder=tmp_path / "own")
    monkeypatch.setattr(role, "launcher_pod", lambda *_: own)
    with pytest.raises(ShownError, match=refused):
        role.measure_pairs(resolve({}, {}), {}, ToolOptions())
    shown = capfd.readouterr().out
    assert (refused if failed else "slow-host") in shown
    assert "FAIL" in shown
    # As a container's first process it would ignore the default.
    assert callable(signal.getsignal(signal.SIGTERM))
