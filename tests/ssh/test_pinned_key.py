"""No option by which ssh can accept another host key lets a server with another key in."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

import mpiboot
from mpiboot.core.model import HostKeys
from mpiboot.launcher.setup import assignments
from mpiboot.ssh import config
from tests.fakes.worker import HAVE_SSH, HAVE_SSHD, make_key

LIBEXEC = Path(mpiboot.__file__).parent / "libexec"
NAME = "w-0.job"
# Each with what it takes on a command line; %s is the test's folder, whose files make it work.
OPTIONS = {
    "KnownHostsCommand": "-oKnownHostsCommand=%s/keys",
    "NoHostAuthenticationForLocalhost": "-oNoHostAuthenticationForLocalhost=yes",
    "UserKnownHostsFile": "-oUserKnownHostsFile=%s/theirs",
    "StrictHostKeyChecking": "-oStrictHostKeyChecking=no",
    "-F": "-F%s/lax",
    "-S": "-S%s/master",
}
# A network of the test's own.
STAGE = """
ip link set lo up
echo "127.0.0.1 w-0.job" > "$1/hosts_file"
mount --bind "$1/hosts_file" /etc/hosts
mkdir -p /run/sshd
/usr/sbin/sshd -D -e -p 22 -f "$1/sshd_config" 2> "$1/sshd.log" &
until grep -q "listening on 0" "$1/sshd.log"; do sleep 0.05; done
ssh -F "$1/lax" -fNMS "$1/master" w-0.job
. "$1/script"
"""

pytestmark = pytest.mark.skipif(
    not (HAVE_SSH and HAVE_SSHD and shutil.which("unshare") and os.geteuid() == 0),
    reason="needs OpenSSH and a network of the test's own",
)


class Server:
    """A real sshd that shows another key than the job's, and a launch whose job's key is pinned."""

    def __init__(self, folder: Path, host_keys: HostKeys) -> None:
        self.folder, self.host_keys = folder, host_keys
        job, other = make_key(folder / "job"), make_key(folder / "other", "-t", "ed25519")
        self.job = job.with_suffix(".pub").read_text().strip()
        shown = other.with_suffix(".pub").read_text()
        print_it = f"#!/bin/sh\necho '{NAME},{config.ALIAS},127.0.0.1 {shown.strip()}'\n"
        sshd = f"HostKey {other}\nStrictModes no\nUsePAM no\nPidFile none\nPermitRootLogin yes\n"
        texts = {
            "keys": print_it,
            "theirs": print_it.split("'")[1] + "\n",
            "lax": f"StrictHostKeyChecking no\nUserKnownHostsFile /dev/null\nIdentityFile {job}\n",
            "sshd_config": f"{sshd}AuthorizedKeysFile {job}.pub\n",
        }
        for name, text in texts.items():
            (folder / name).write_text(text)
        (folder / "keys").chmod(0o755)

    def run(self, *lines: list[str]) -> list[tuple[str, str]]:
        """The status and the errors of each program, beside the server."""
        script = "".join(
            f"cd {self.folder}; {shlex.join(line)} 2> errors; echo $?\n"
            "cat errors stderr/*; echo ===; rm -f stderr/*\n"
            for line in lines
        )
        (self.folder / "script").write_text(script)
        alone = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        stage = [*alone, "sh", "-c", STAGE, "sh", str(self.folder)]
        done = subprocess.run(stage, capture_output=True, text=True, timeout=240, check=False)
        parts = done.stdout.split("===\n")[:-1]
        return [(status, message) for status, _, message in (p.partition("\n") for p in parts)]

    def launch(self, user: str) -> list[str]:
        """What the launcher writes for this host, with such ssh arguments of a user's."""
        for name in ("stderr", "hosts", "bin", "ready"):
            (self.folder / name).mkdir(exist_ok=True)
        own = "" if self.host_keys is HostKeys.JOB else self.job
        # By its name, as hosts that join later.
        host = config.LaunchHost(NAME, "%h", 22, "root", own)
        known = f"{config.ALIAS} {self.job}\n" + f"{host.key_alias} {self.job}\n" * bool(own)
        (self.folder / "known_hosts").write_text(known)
        text = config.render(
            [host],
            key=str(self.folder / "job"),
            known_hosts=str(self.folder / "known_hosts"),
            host_keys=self.host_keys,
            keepalive=0,
            user_args=config.read_args(user),
        )
        (self.folder / "ssh_config").write_text(text)
        chosen = config.pins(str(self.folder / "known_hosts"), self.host_keys)
        pins = " ".join(f"-o {name}={value}" for name, value in chosen.items())
        conf = {"plain": "ssh", "hosts": NAME, "dir": str(self.folder), "ssh": f"ssh {pins}"}
        (self.folder / "ssh.conf").write_text(assignments(conf))
        (self.folder / "agent.conf").write_text(assignments({"ssh": f"ssh {pins}"}))
        (self.folder / "ready" / NAME).touch()
        for name, program in (("bin/ssh", "ssh"), ("ssh_words", "ssh_words")):
            (self.folder / name).unlink(missing_ok=True)
            (self.folder / name).symlink_to(LIBEXEC / program)
        return ["env", f"MPIBOOT_LAUNCH_DIR={self.folder}", str(LIBEXEC / "agent")]


@pytest.mark.parametrize("option", OPTIONS)
def test_a_server_with_another_key_is_refused(tmp_path: Path, option: str) -> None:
    # Where a host has a key of its own it goes by no alias, which this option needs.
    local = option == "NoHostAuthenticationForLocalhost"
    server = Server(tmp_path, HostKeys.ACCEPT_NEW if local else HostKeys.JOB)
    word = OPTIONS[option].replace("%s", str(tmp_path))
    strict = [] if option in ("StrictHostKeyChecking", "-F") else ["-oStrictHostKeyChecking=yes"]
    plain = ["ssh", word, "-i", str(tmp_path / "job"), "-oBatchMode=yes", *strict, NAME, "true"]
    # A file of the user's own, too, which is read behind what mpiboot writes.
    keyword, _, value = word.removeprefix("-o").partition("=")
    (tmp_path / "included").write_text(f"{keyword} {value}\n" if word[1] == "o" else "")
    agent, ssh = server.launch(f"{word} -F {tmp_path}/included"), str(tmp_path / "bin/ssh")
    ways = {
        "plain ssh": plain,
        "among the user's arguments": [*agent, NAME, "true"],
        "from a file of the MPI's own": [*agent, word, NAME, "true"],
        "of a program": [ssh, word, NAME, "true"],
        "of a program, behind the host": [ssh, NAME, word, "true"],
    }
    found = dict(zip(ways, server.run(*ways.values()), strict=True))
    assert found.pop("plain ssh")[0] == "0"
    for way, (status, message) in found.items():
        assert (status, "Host key verification failed" in message) == ("255", True), (way, message)


def test_the_server_with_the_jobs_key_is_let_in(tmp_path: Path) -> None:
    server = Server(tmp_path, HostKeys.JOB)
    agent = server.launch("")
    sshd = (tmp_path / "sshd_config").read_text()
    (tmp_path / "sshd_config").write_text(sshd.replace(f"{tmp_path}/other", f"{tmp_path}/job"))
    lines = ([*agent, NAME, "true"], [str(tmp_path / "bin/ssh"), NAME, "-n", "true"])
    assert [status for status, _ in server.run(*lines)] == ["0", "0"]
