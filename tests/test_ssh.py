"""The ssh of a program that logs in to the hosts by itself: which words reach which client."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

import mpiboot
from mpiboot.launcher.launch_folder import assignments

SSH = Path(mpiboot.__file__).parent / "libexec" / "ssh"
PINS = "-o StrictHostKeyChecking=yes -o VerifyHostKeyDNS=no"
GUARD = 60
SHELLS = [
    words
    for words in (["dash"], ["bash"], ["bash", "--posix"], ["busybox", "sh"])
    if shutil.which(words[0])
]


def program(path: Path, name: str) -> str:
    """A program that prints its words, a line each, and then what it reads."""
    path.write_text(f'#!/bin/sh\necho {name}\nprintf "%s\\n" "$@"\ncat\n')
    path.chmod(0o755)
    return str(path)


class Folder:
    """A folder of logins for two hosts; `client` is there where ssh can't be used."""

    def __init__(self, tmp_path: Path, *, ssh: bool = True, client: bool = False) -> None:
        self.path = tmp_path / "a folder"
        (self.path / "bin").mkdir(parents=True)
        (self.path / "bin/ssh").symlink_to(SSH)
        values = {
            "ssh": program(tmp_path / "real-ssh", "real") if ssh else "",
            "pins": PINS,
            "client": f"/bin/sh {program(tmp_path / 'client', 'client')}" if client else "",
            "words": f"{SSH}_words",
            "hosts": "w-0.job w-0 10.0.0.1 w-1.job w-1 10.0.0.2 w-*.job w-*",
        }
        (self.path / "ssh.conf").write_text(assignments(values))

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
        (1, ("w-0", "hostname")),
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
        (1, ("w-2", "true")),
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
        ("-p", "22", "w-2.other"),
        ("w-2.job.other",),
        ("x-2.job",),
        ("w-a",),
        ("10.0.0.3",),
        ("-W", "w-0:22", "bastion"),
        ("-xW", "w-0", "bastion"),
        ("w",),
        ("*",),
        ("-V",),
        (),
    ],
)
def test_for_any_other_host_it_is_plain_ssh(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = Folder(tmp_path).call(*words)
    assert done.stdout == "\n".join(["real", *(words or ("",)), "in", ""])


def test_where_no_ssh_can_be_used_the_job_is_reached_by_the_own_client(tmp_path: Path) -> None:
    folder = Folder(tmp_path, ssh=False, client=True)
    done = folder.call("-o", "BatchMode=yes", "w-0", "hostname")
    expected = ["client", str(folder.path), "-o", "BatchMode=yes", "w-0", "hostname", "in", ""]
    assert done.stdout == "\n".join(expected)
    other = folder.call("bastion", "true")
    assert (other.stdout, other.returncode) == ("", 255)
    assert "bastion is no host of this job, and no ssh is installed" in other.stderr


def test_the_programs_own_status_and_environment_pass(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    (tmp_path / "real-ssh").write_text('#!/bin/sh\necho "$ssh$hosts$host$KEPT"\nexit 7\n')
    env = {"PATH": f"{folder.path}/bin:{os.environ['PATH']}", "KEPT": "kept"}
    done = subprocess.run(
        ["sh", "-c", "ssh w-0 true"], env=env, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.returncode) == ("kept\n", 7)
