"""The ssh of a program that logs in to the hosts by itself: which words reach which client."""

from __future__ import annotations

import asyncio
import os
import select
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

import mpiboot
from mpiboot.launcher.setup import assignments
from mpiboot.ssh.agents import AgentRequests
from mpiboot.ssh.config import LaunchHost, SshTimeouts
from tests.fakes.pool import PoolConfig, pool_of
from tests.fakes.programs import program
from tests.fakes.sshd import Behaviour, Job, sshd
from tests.fakes.worker import SHELLS
from tests.waiting import until_in_loop

SSH = Path(mpiboot.__file__).parent / "libexec" / "ssh"
PINS = "-o StrictHostKeyChecking=yes -o VerifyHostKeyDNS=no"
GUARD = 60
ENDLESS = "exec sleep 1000"
JOINING = "w-[0-9].job w-[0-9] w-[0-9][0-9].job"


class Folder:
    """A command's folder, where two hosts are ready."""

    def __init__(self, tmp_path: Path, *, ssh: bool = True) -> None:
        self.path = tmp_path / "a folder"
        (self.path / "bin").mkdir(parents=True)
        (self.path / "bin/ssh").symlink_to(SSH)
        # It prints its words, a line each, and then what it reads.
        script = 'echo real\nprintf "%s\\n" "$@"\ncat'
        real = str(program(tmp_path, "real-ssh", script)) if ssh else "/no/ssh"
        values = {
            "plain": real,
            "ssh": f"{real} {PINS}" if ssh else "",
            "dir": str(self.path),
            "hosts": "w-0.job w-0 10.0.0.1 w-1.job w-1 10.0.0.2 " + JOINING,
        }
        (self.path / "ssh_words").symlink_to(f"{SSH}_words")
        (self.path / "ready").mkdir()
        for name in ("w-0.job", "w-0", "10.0.0.1", "w-1.job", "w-1", "10.0.0.2"):
            (self.path / "ready" / name).touch()
        (self.path / "over").touch()
        self.write(values)

    def write(self, values: Mapping[str, str]) -> None:
        (self.path / "ssh.part").write_text(assignments(values))
        (self.path / "ssh.part").replace(self.path / "ssh.conf")

    def begins(self) -> int:
        """Nobody is ready yet; by what is returned the first call's question can be read."""
        os.mkfifo(self.path / "wanted")
        (self.path / "over").unlink()
        shutil.rmtree(self.path / "ready")
        (self.path / "ready").mkdir()
        self.write({"plain": str(self.path.parent / "real-ssh"), "hosts": "?*"})
        return os.open(self.path / "wanted", os.O_RDONLY | os.O_NONBLOCK)

    def start(
        self, *words: str, shell: Sequence[str] = (), stdout: int = subprocess.PIPE
    ) -> subprocess.Popen[str]:
        """A call that may wait; its input is empty."""
        argv, pipe = [*shell, str(self.path / "bin/ssh"), *words], subprocess.PIPE
        null = subprocess.DEVNULL
        return subprocess.Popen(argv, stdin=null, stdout=stdout, stderr=pipe, text=True)

    def call(self, *words: str, shell: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        argv = [*shell, str(self.path / "bin/ssh"), *words]
        return subprocess.run(
            argv, input="in\n", capture_output=True, text=True, timeout=GUARD, check=False
        )

    def job(self, options: int, *words: str) -> str:
        """What is printed of a login to one of the job's hosts, with so many words of options."""
        last = ["-F", f"{self.path}/ssh_config", "-S", "none"]
        return "\n".join(
            ["real", *PINS.split(), *words[:options], *last, *words[options:], "in", ""]
        )


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (1, ("w-0.job", "sh", "-c", "a  b; '*' \"$x\"")),
        (1, ("10.0.0.2",)),
        (1, ("root@w-1", "hostname", "-F", "x")),
        # Horovod's, DeepSpeed's, scp's; what follows is the program's own wish.
        (5, ("-o", "PasswordAuthentication=no", "-o", "StrictHostKeyChecking=no", "w-0", "true")),
        (5, ("-oBatchMode=yes", "-tt", "-p", "22", "w-0", "true")),
        (3, ("-x", "-l", "root", "--", "w-1", "scp -t /tmp")),
        # Flags and an option in one word; options behind the host.
        (7, ("-xl", "root", "-Tp", "22", "w-1", "-i", "key", "true")),
        (4, ("-vSx", "w-1", "-F", "y", "--", "-S", "z")),
        # Hosts that joined later.
        (1, ("root@w-12.job", "true")),
    ],
)
def test_a_host_of_the_job_is_reached_with_its_configuration(
    tmp_path: Path, shell: list[str], options: int, words: tuple[str, ...]
) -> None:
    folder = Folder(tmp_path)
    done = folder.call(*words, shell=tuple(shell))
    assert (done.stdout, done.stderr, done.returncode) == (folder.job(options, *words), "", 0)


@pytest.mark.parametrize(
    "words",
    [
        ("git@github.com", "git-upload-pack"),
        ("-p", "22", "w-2.job.other"),
        ("w-a",),
        ("10.0.0.3",),
        ("-xW", "w-0", "bastion"),
        ("*",),
        ("-V",),
        (),
    ],
)
def test_for_any_other_host_it_is_plain_ssh(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = Folder(tmp_path).call(*words)
    assert done.stdout == "\n".join(["real", *(words or ("",)), "in", ""])


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
async def test_where_no_ssh_can_run_the_session_is_the_pools(
    tmp_path: Path, shell: list[str]
) -> None:
    folder = Folder(tmp_path, ssh=False)
    behaviour = Behaviour(Job(folder.path))
    (folder.path / "stderr").mkdir()

    async def call(*words: str, stdout: int = subprocess.PIPE) -> tuple[int, str | None, str]:
        caller = folder.start("-o", "BatchMode=yes", "w-0", *words, shell=shell, stdout=stdout)
        if words[-1] == ENDLESS:
            await until_in_loop(lambda: ENDLESS in behaviour.commands)
            caller.terminate()
        out, error = await asyncio.to_thread(caller.communicate, timeout=GUARD)
        return caller.returncode, out, error

    async with sshd(behaviour) as port:
        host = LaunchHost("w-0", "127.0.0.1", port, "me")
        timeouts, key = SshTimeouts(1, 30, 10, 3), str(behaviour.job.path)
        async with pool_of(PoolConfig((host,), key, timeouts, str(folder.path))) as pool:
            AgentRequests(folder.path, ()).serve(pool)
            assert await call("echo out; echo err >&2; exit 3") == (3, "out\n", "err\n")
            with (tmp_path / "out").open("w") as file:
                assert await call("echo whole", stdout=file.fileno()) == (0, None, "")
            assert (tmp_path / "out").read_text() == "whole\n"
            assert await call(ENDLESS) == (255, "", "")
            behaviour.authorized = behaviour.job.stranger
            status, out, error = await call("true")
    assert (status, out) == (255, "")
    assert "Permission denied" in error
    other = folder.call("bastion", "true")
    assert (other.stdout, other.returncode) == ("", 127)
    assert "/no/ssh" in other.stderr


def test_the_first_one_starts_the_gate_and_each_waits_for_its_own_host(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    asked = folder.begins()
    assert folder.call("-V").stdout == "real\n-V\nin\n"
    first, other = (folder.start(name, "true") for name in ("w-0", "bastion"))
    second = folder.start("-o", "ConnectTimeout=0", "w-1", "true")  # 0 is no limit
    while not select.select([asked], [], [], 0.1)[0]:
        assert first.poll() is None
    os.close(asked)
    ssh = str(tmp_path / "real-ssh")
    folder.write({"plain": ssh, "ssh": ssh, "dir": str(folder.path), "hosts": "w-0 w-1"})
    assert other.communicate(timeout=GUARD)[0] == "real\nbastion\ntrue\n"
    (folder.path / "ready/w-0").touch()
    out, err = first.communicate(timeout=GUARD)
    assert (out.splitlines()[:3], err) == (["real", "w-0", "-F"], "")
    assert second.poll() is None
    (folder.path / "over").write_text("names-unresolved: w-1 has no name\n")
    assert second.communicate(timeout=GUARD) == ("", "names-unresolved: w-1 has no name\n")
    assert second.returncode == 255
    # The gate is over for all who come later.
    assert folder.call("w-1").returncode == 255
    assert folder.call("w-0").stdout.startswith("real\nw-0\n-F\n")
    assert folder.call("bastion").stdout == "real\nbastion\nin\n"


@pytest.mark.parametrize(
    "words", [("-Q", "cipher"), ("-v", "-G", "w-0"), ("-qO", "check", "w-0"), ("-TGp22", "w-0")]
)
def test_what_needs_no_host_waits_for_none(tmp_path: Path, words: tuple[str, ...]) -> None:
    folder = Folder(tmp_path)
    asked = folder.begins()
    assert folder.call(*words).stdout == "\n".join(["real", *words, "in", ""])
    assert not select.select([asked], [], [], 0)[0]
    os.close(asked)


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
@pytest.mark.parametrize(
    "words", [("-o", "ConnectTimeout=1"), ("-oconnectTimeout=1",), ("-o", "ConnectTimeout 1")]
)
def test_it_waits_no_longer_than_its_caller_would(
    tmp_path: Path, shell: list[str], words: tuple[str, ...]
) -> None:
    folder = Folder(tmp_path)
    asked = folder.begins()
    done = folder.call(*words, "w-0", "true", shell=tuple(shell))
    os.close(asked)
    said = "ssh: w-0 is not ready after the 1 s of ConnectTimeout\n"
    assert (done.stdout, done.stderr, done.returncode) == ("", said, 255)


def test_the_programs_own_status_and_environment_pass(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    (tmp_path / "real-ssh").write_text('#!/bin/sh\necho "$ssh$hosts$host$KEPT"\nexit 7\n')
    env = {"PATH": f"{folder.path}/bin:{os.environ['PATH']}", "KEPT": "kept"}
    done = subprocess.run(
        ["sh", "-c", "ssh w-0 true"], env=env, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.returncode) == ("kept\n", 7)
