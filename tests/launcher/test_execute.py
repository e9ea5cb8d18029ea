"""`mpiboot exec`: as a process, and its wait for the network with a clock of its own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mpiboot.core.facts import PodFacts
from mpiboot.core.settings import resolve
from mpiboot.hosts import remote_commands
from mpiboot.launcher import look
from mpiboot.network import worker_network
from mpiboot.network.records import Transport, WorkerNetwork
from mpiboot.worker import facts
from tests.fakes import workers as w
from tests.fakes.cli import mpiboot

SHOW = "echo gloo=$GLOO_SOCKET_IFNAME tp=$TP_SOCKET_IFNAME nccl=$NCCL_SOCKET_IFNAME; exit 5"


def test_without_a_name_it_becomes_the_program_at_once(tmp_path: Path) -> None:
    own = {"NCCL_SOCKET_IFNAME": "=mine0"}
    done = mpiboot(tmp_path, "exec", "--", "/bin/sh", "-c", SHOW, env=own)
    gloo, tensorpipe, nccl = (word.partition("=")[2] for word in done.stdout.split())
    assert done.returncode == 5
    assert nccl == "=mine0"
    assert gloo == tensorpipe
    assert (tmp_path / "run").exists() is False
    assert "no rendezvous host is named" in done.stderr
    assert 'NCCL_SOCKET_IFNAME="=mine0" fits nothing here' in done.stderr
    assert "set for the program: " in done.stderr
    assert (f" GLOO_SOCKET_IFNAME={gloo} " in done.stderr) == bool(gloo)
    assert done.stderr.splitlines()[-1] == "mpiboot: starting /bin/sh"


@pytest.mark.parametrize(
    ("words", "code", "said", "never"),
    [
        ("--data-network off -- /bin/true", 0, "set for the program: nothing", "SOCKET_IFNAME"),
        # Its own name is not waited for; and what is no program is said before any wait.
        ("-- /bin/true --rdzv_endpoint=localhost:29500", 0, "starting /bin/true", "localhost"),
        ("-- no-such-program --master-addr=no.such.host", 127, "is not on PATH", "no.such.host"),
        ("--timeout 0 -- /bin/true --master-addr no.invalid", 68, "no.invalid: DNS: ", "starting"),
        ("--data-network require --timeout 0 -- /bin/true", 72, "[rdma-missing]", "starting"),
    ],
)
def test_what_it_waits_for_and_what_ends_it(
    tmp_path: Path, words: str, code: int, said: str, never: str
) -> None:
    done = mpiboot(tmp_path, "exec", *words.split(), env={"MASTER_ADDR": ""})
    assert (done.returncode, said in done.stderr) == (code, True), done.stderr
    assert never not in done.stderr


async def test_a_network_that_does_not_come_in_time_is_decided_as_it_is(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    own, gathered = w.plain(0).facts, list[int]()
    assert own is not None
    pending = WorkerNetwork("here", None, 1, None, Transport.UNKNOWN, pending=("port x is INIT",))

    def gather(*_: object, pid: int, **__: object) -> PodFacts:
        gathered.append(pid)
        return own

    monkeypatch.setattr(remote_commands, "_MIN_PAUSE_S", 0.01)
    monkeypatch.setattr(facts, "gather", gather)
    monkeypatch.setattr(worker_network, "choose", lambda *_: pending)
    found = await look._network(resolve({"timeout": "0.1"}, {}), {"NCCL_SOCKET_IFNAME": "mine"})
    assert "NCCL_SOCKET_IFNAME" not in found.common  # the user's own
    assert gathered[2:]
    assert set(gathered) == {os.getpid()}
    message = capfd.readouterr().err
    assert f"waiting for the data network of {own.hostname} (port x is INIT)" in message
    assert "the data network of 1 host is not ready after " in message
