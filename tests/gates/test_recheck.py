from __future__ import annotations

import shutil
import socket
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from mpiboot.data_network.records import Transport, WorkerNetwork
from mpiboot.gates import host_command, recheck
from mpiboot.gates.pipeline import Access
from mpiboot.launcher import launch_folder
from mpiboot.model import Host, Worker
from mpiboot.settings import resolve

SHELLS = [shell for shell in ("sh", "bash", "dash", "zsh", "fish", "tcsh") if shutil.which(shell)]


def worker(name: str, port: int) -> Worker:
    return Worker(Host(name), "127.0.0.1", port, "root", "127.0.0.1", None)


def network(worker: Worker) -> WorkerNetwork:
    return WorkerNetwork(worker.host.name, None, 1, None, Transport.UNKNOWN)


@pytest.mark.parametrize("shell", SHELLS)
def test_the_worker_looks_again_before_its_facts_are_brought(shell: str, tmp_path: Path) -> None:
    (tmp_path / "facts.json").write_text("old\n")
    (tmp_path / "look").write_text(f"echo noise; echo noise >&2; echo new > {tmp_path}/facts.json")
    done = subprocess.run(
        [shell, "-c", host_command.AGAIN],
        env={"PATH": "/usr/bin:/bin", "MPIBOOT_WORKER_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.endswith("mpiboot-facts\nnew\n")
    assert done.stderr == ""


async def test_with_nothing_to_wait_for_nobody_is_asked(tmp_path: Path) -> None:
    workers = (worker("a", 1), worker("b", 1))
    access = Access("root", tmp_path / "no key", "here")
    settings = resolve({}, {}).settings
    assert (await recheck.settled(workers, network, settings, access))[0] == workers


async def test_a_worker_that_answers_no_more_is_as_it_was_at_the_deadline(tmp_path: Path) -> None:
    asked: list[str] = []

    def decide(worker: Worker) -> WorkerNetwork:
        asked.append(worker.host.name)
        pending = ("port mlx5_0:1 is INIT, not yet ACTIVE",) if worker.host.name == "b" else ()
        return replace(network(worker), pending=pending)

    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        workers = (worker("a", 1), worker("b", closed.getsockname()[1]))
        access = Access("root", tmp_path / "no key", "here")
        settings = resolve({"timeout": "1"}, {}).settings
        found, networks = await recheck.settled(workers, decide, settings, access)
    assert found == workers
    assert [networks[name].pending != () for name in ("a", "b")] == [False, True]
    # Only who has something pending is looked at again.
    assert asked[:2] == ["a", "b"]
    assert set(asked[2:]) == {"b"}


def test_a_hosts_own_values_reach_the_remote_command_as_they_are() -> None:
    values = {"A": "a 'b' \"c\"; $HOME `x` \\ é\nnext", "B": "", "C": "=net1"}
    command = launch_folder.exports(values).rstrip("\n") + ' printf "%s|" "$A" "$B" "$C"'
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
    assert done.stdout == "".join(f"{value}|" for value in values.values())
