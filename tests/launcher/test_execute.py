"""`mpiboot exec`: as a process, and its wait for the network with a clock of its own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mpiboot.core import log
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


def test_where_the_data_network_is_off_nothing_is_set(tmp_path: Path) -> None:
    words = ("exec", "--data-network", "off", "--", "/bin/sh", "-c", SHOW)
    done = mpiboot(tmp_path, *words, env={"MASTER_ADDR": "127.0.0.1"})
    assert (done.returncode, done.stdout) == (5, "gloo= tp= nccl=\n")
    assert "set for the program: nothing" in done.stderr


def test_its_own_name_is_not_waited_for(tmp_path: Path) -> None:
    done = mpiboot(tmp_path, "exec", "--", "/bin/true", "--rdzv_endpoint=localhost:29500")
    assert done.returncode == 0
    assert "localhost" not in done.stderr


def test_a_program_that_is_not_there_is_told_before_any_wait(tmp_path: Path) -> None:
    done = mpiboot(tmp_path, "exec", "--", "no-such-program", "--rdzv_endpoint=no.such.host:1")
    assert done.returncode == 127
    assert "no-such-program is not on PATH" in done.stderr
    assert "no.such.host" not in done.stderr


def test_a_name_that_does_not_come_is_the_pods_reason_to_end(tmp_path: Path) -> None:
    words = ("exec", "--timeout", "0", "--", "/bin/true", "--master-addr", "no.such.invalid")
    done = mpiboot(tmp_path, *words)
    assert done.returncode == 68
    assert "no.such.invalid: DNS: " in (tmp_path / "termination-log").read_text()


def test_a_data_network_that_is_required_and_not_there_ends_it(tmp_path: Path) -> None:
    words = ("exec", "--data-network", "require", "--timeout", "0", "--", "/bin/echo", "started")
    done = mpiboot(tmp_path, *words)
    assert (done.returncode, done.stdout) == (72, "")


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
    log.configure()
    found = await look._network(resolve({"timeout": "0.1"}, {}), {"NCCL_SOCKET_IFNAME": "mine"})
    assert "NCCL_SOCKET_IFNAME" not in found.common  # the user's own
    assert gathered[2:]
    assert set(gathered) == {os.getpid()}
    message = capfd.readouterr().err
    assert f"waiting for the data network of {own.hostname} (port x is INIT)" in message
    assert "the data network of 1 host is not ready after " in message
