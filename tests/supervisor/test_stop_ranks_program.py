"""What signals a host's ranks to save: real processes, by mpiboot and by each shell without it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpiboot.hosts import host_shell
from mpiboot.worker.role import write_scripts
from tests.fakes.worker import SHELLS
from tests.supervisor.answering import state
from tests.waiting import until

MARK = "MPIBOOT_LAUNCH_ID"
# A program that takes a signal says so in a file, and ends when it is told to.
SAVES = """
import os, pathlib, signal, sys, time
folder = pathlib.Path(sys.argv[1])
def take(number, frame):
    with (folder / "took").open("a") as file:
        file.write(f"{number}\\n")
for number in (signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, take)
(folder / f"ready-{os.getpid()}").touch()
while not (folder / "end").exists():
    time.sleep(0.01)
"""


class Host:
    """Ranks on this machine under a mark of this test's own, and the script beside them."""

    def __init__(self, folder: Path, shell: list[str], by: str = "shell") -> None:
        self.folder, self.shell, self.by = folder, shell, by
        self.mark = f"{MARK}=test-{os.urandom(8).hex()}"
        self.started: list[subprocess.Popen[str]] = []
        self.environ = {**os.environ, "MPIBOOT_WORKER_DIR": str(folder)}
        if by == "worker":
            write_scripts(folder)

    def start(self, *argv: str, rank: bool = True) -> subprocess.Popen[str]:
        name, _, value = self.mark.partition("=")
        env = {**os.environ, name: value, **({"PMIX_RANK": "0"} if rank else {})}
        child = subprocess.Popen(argv, env=env, text=True, start_new_session=True)
        self.started.append(child)
        # While a program is exchanged for another its environment is empty.
        until(lambda: self.mark in Path(f"/proc/{child.pid}/environ").read_text())
        return child

    def saver(self, *, rank: bool = True) -> subprocess.Popen[str]:
        child = self.start(sys.executable, "-c", SAVES, str(self.folder), rank=rank)
        until((self.folder / f"ready-{child.pid}").exists)
        return child

    def run(self) -> subprocess.Popen[str]:
        """Run the script as a worker gets it."""
        command = host_shell.stop_ranks(signal.SIGTERM, self.mark)
        if self.by == "shell":
            command = command.replace(sys.executable, "/no/python")
        argv = [*self.shell, "-c", command]
        script = subprocess.Popen(argv, stdin=-1, stdout=-1, text=True, env=self.environ)
        self.started.append(script)
        return script

    @property
    def took(self) -> list[str]:
        path = self.folder / "took"
        return path.read_text().split() if path.exists() else []

    def end(self) -> None:
        (self.folder / "end").touch()

    def close(self) -> None:
        for child in self.started:
            if child.poll() is None:
                child.kill()
            child.communicate()


# By the worker's mpiboot, by that of the launcher's image, and by a shell alone.
WAYS = [(["dash"], "worker"), (["dash"], "image"), *((shell, "shell") for shell in SHELLS)]


@pytest.fixture(params=WAYS, ids=lambda way: f"{' '.join(way[0])} {way[1]}")
def host(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Host]:
    made = Host(tmp_path, *request.param)
    yield made
    made.end()
    made.close()


def answer(script: subprocess.Popen[str], *, more: bool = False) -> str:
    """What it answers: at once, or with ``more`` to another line."""
    assert script.stdin is not None
    assert script.stdout is not None
    if more:
        script.stdin.write("\n")
        script.stdin.flush()
    return script.stdout.readline().strip()


def test_ranks_are_found_by_a_busybox_without_z(tmp_path: Path, musl: str) -> None:
    """As that of a musl system: its grep ends a line at a NUL."""
    with contextlib.closing(Host(tmp_path, ["sh"])) as host:
        host.environ["PATH"] = f"{musl}:{os.environ['PATH']}"
        rank = host.saver()
        script = host.run()
        assert answer(script) == "ranks 1"
        host.end()
        rank.wait()
        assert answer(script, more=True) == "ranks 0"


def test_a_rank_gets_the_signal_once_and_is_counted_until_it_ended(host: Host) -> None:
    rank, daemon = host.saver(), host.start("sleep", "1000", rank=False)
    script = host.run()
    assert answer(script) == "ranks 1"
    until(lambda: host.took)
    assert answer(script, more=True) == "ranks 1"
    host.end()
    until(lambda: state(rank.pid) == "Z")  # a stopped mpirun's
    assert answer(script, more=True) == "ranks 0"
    assert script.wait() == 0
    assert host.took == [str(signal.SIGTERM.value)]
    assert daemon.poll() is None


def test_a_stopped_rank_and_one_whose_name_ends_as_a_shells_get_the_signal_themselves(
    host: Host, tmp_path: Path
) -> None:
    """Such as OpenFOAM's snappyHexMesh, with a child."""
    mesh = tmp_path / "snappyHexMesh"
    mesh.symlink_to(sys.executable)
    rank = host.start(str(mesh), "-c", "import time; time.sleep(1000)")
    rank.send_signal(signal.SIGSTOP)
    text = "import subprocess, sys; subprocess.run(['sleep', '1000'])"
    parent = host.start(str(mesh), "-c", text)
    until(lambda: Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text())
    assert answer(host.run()) == "ranks 2"
    assert (rank.wait(), parent.wait()) == (-signal.SIGTERM, -signal.SIGTERM)


def test_a_shell_hands_nothing_on_so_that_its_program_gets_it(host: Host) -> None:
    command = f'sh -c \'"{sys.executable}" -c "$1" "$2"; exit $?\' sh "$@"; echo $? > "$2/status"'
    shell = host.start("sh", "-c", command, "sh", SAVES, str(host.folder))
    until(lambda: list(host.folder.glob("ready-*")))
    script = host.run()
    assert answer(script) == "ranks 1"
    until(lambda: host.took)
    assert shell.poll() is None
    host.end()
    assert shell.wait() == 0
    assert (host.folder / "status").read_text() == "0\n"


def test_a_shell_that_takes_the_signal_gets_it(host: Host) -> None:
    text = 'trap "echo saved > $1/saved; exit 0" TERM; : > $1/ready-0; while :; do sleep 0.05; done'
    shell = host.start("sh", "-c", text, "sh", str(host.folder))
    until((host.folder / "ready-0").exists)
    host.run()
    assert shell.wait() == 0
    assert (host.folder / "saved").exists()


def test_launcher_and_worker_send_one_signal_between_them(tmp_path: Path) -> None:
    with contextlib.closing(Host(tmp_path, ["sh"], "worker")) as host:
        host.saver()
        assert answer(host.run()) == "ranks 1"
        host.environ["PYTHONHOME"] = "/no"  # of the ranks, by the profile of a vendor
        assert answer(host.run()) == "ranks 1"
        until(lambda: host.took)
        host.end()
        assert host.took == [str(signal.SIGTERM.value)]
