from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
from pathlib import Path

import asyncssh
import pytest

from mpiboot.core.model import Identity
from mpiboot.ssh import openssh
from mpiboot.system.keys import JobKey

ALL = (1 << 41) - 1
ROOT = Identity(0, 0, "root", "/root", "/bin/bash", known=True, capabilities=ALL)
USER = Identity(1000, 1000, "mpi", "/home/mpi", "/bin/bash", known=True, capabilities=0)
GOOD = openssh.OpensshConditions(
    "/usr/sbin/sshd", privsep=True, locked=False, shell=True, pidfd=True
)

# As sshd itself reads the configuration: one key lets in, to one command, and nothing is forwarded.
NOTHING_BUT_THE_JOB = {
    "authenticationmethods": "publickey",
    "pubkeyauthentication": "yes",
    "passwordauthentication": "no",
    "kbdinteractiveauthentication": "no",
    "hostbasedauthentication": "no",
    "usepam": "no",
    "allowusers": "root",
    "permitrootlogin": "without-password",
    "permituserrc": "no",
    "permituserenvironment": "no",
    "permittty": "no",
    "permittunnel": "no",
    "disableforwarding": "yes",
    "compression": "no",
    "logingracetime": "60",
    "maxstartups": "1000:30:1000",
    "maxsessions": "200",
}


def serving(
    identity: Identity, folder: Path, address: str, port: int, keepalive: float
) -> openssh.WorkerSetup:
    key = JobKey(folder / "key", "ssh-ed25519 AAAA")
    return openssh.WorkerSetup(identity, folder, key, address, port, "abc", keepalive, {})


@pytest.mark.parametrize("identity", [ROOT, USER])
def test_nothing_speaks_against_sshd_where_everything_is_there(identity: Identity) -> None:
    assert openssh.reason_against(GOOD, identity, "/run/with blank/worker") == ""


@pytest.mark.parametrize(
    ("conditions", "identity", "folder", "message"),
    [
        (GOOD._replace(path=""), ROOT, "/run", "no sshd"),
        (GOOD, dataclasses.replace(USER, known=False), "/run", "uid 1000 has no passwd entry"),
        (GOOD._replace(shell=False), USER, "/run", "runs no commands"),
        (GOOD, dataclasses.replace(ROOT, capabilities=ALL & ~(1 << 18)), "/run", "SYS_CHROOT"),
        (GOOD, dataclasses.replace(ROOT, capabilities=0), "/run", "SETGID, SETUID, SYS_CHROOT"),
        (GOOD._replace(privsep=False), ROOT, "/run", "/run/sshd"),
        (GOOD._replace(locked=True), ROOT, "/run", "locked in /etc/shadow"),
        (GOOD._replace(pidfd=False), ROOT, "/run", "pidfd"),
        (GOOD, ROOT, "/run/it's", "can't hold the path"),
        (GOOD, ROOT, "/run/%h", "can't hold the path"),
    ],
)
def test_what_speaks_against_sshd_is_said(
    conditions: openssh.OpensshConditions, identity: Identity, folder: str, message: str
) -> None:
    assert message in openssh.reason_against(conditions, identity, folder)


def test_a_folder_with_blanks_is_quoted_for_sshd_and_for_the_shell() -> None:
    text = openssh.configuration(
        "/nothing", serving(USER, Path("/run/a b/worker"), "fd00::5", 2222, 30.0)
    )
    lines = text.splitlines()
    assert "ListenAddress [fd00::5]:2222" in lines
    assert 'HostKey "/run/a b/worker/key"' in lines
    assert any(
        line.startswith("ForceCommand exec /bin/sh ") and line.endswith(" '/run/a b/worker' abc")
        for line in lines
    )
    assert "ClientAliveInterval 10" in lines
    assert "AllowUsers mpi" in lines
    assert "PerSourcePenalties no" not in lines


def test_an_option_is_written_only_for_a_build_that_knows_it(tmp_path: Path) -> None:
    binary = tmp_path / "sshd"
    binary.write_bytes(b"\0persourcepenalties\0")
    text = openssh.configuration(str(binary), serving(USER, tmp_path, "127.0.0.1", 22, 0))
    assert "PerSourcePenalties no\n" in text
    assert "ClientAliveInterval 0\n" in text


@pytest.mark.skipif(not shutil.which("sshd", path="/usr/sbin"), reason="no sshd")
def test_the_installed_sshd_accepts_the_configuration(tmp_path: Path) -> None:
    folder = tmp_path / "with blank"
    folder.mkdir()
    key = asyncssh.generate_private_key("ssh-ed25519")
    (folder / "key").write_bytes(key.export_private_key("openssh"))
    (folder / "key").chmod(0o600)
    binary = openssh.find("/usr/sbin")
    text = openssh.configuration(binary, serving(ROOT, folder, "127.0.0.1", 2222, 30.0))
    (folder / "sshd_config").write_text(text)
    done = subprocess.run(
        [binary, "-T", "-f", str(folder / "sshd_config")],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert f"authorizedkeysfile {folder}/authorized_keys\n".replace(" b", " b") in done.stdout
    assert f"'{folder}' abc" in done.stdout
    taken = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert taken.items() >= NOTHING_BUT_THE_JOB.items()


@pytest.mark.parametrize(
    ("shell", "expected"),
    [
        ("/bin/sh", "/bin/sh"),
        ("/usr/sbin/nologin", "/bin/sh"),
        ("/bin/false", "/bin/sh"),
        ("/nothing/such", "/bin/sh"),
    ],
)
def test_a_shell_that_runs_no_commands_is_replaced(shell: str, expected: str) -> None:
    assert openssh.shell_of(dataclasses.replace(USER, shell=shell)) == expected


@pytest.mark.skipif(not shutil.which("sshd", path="/usr/sbin"), reason="no sshd")
def test_sshd_is_found_outside_of_the_path(tmp_path: Path) -> None:
    assert openssh.find(str(tmp_path)) == "/usr/sbin/sshd"


def test_what_decides_is_looked_at_of_the_sshd_in_the_path(tmp_path: Path) -> None:
    sshd = tmp_path / "sshd"
    sshd.touch(0o755)
    identity = dataclasses.replace(USER, shell="/bin/sh", user="nobody-of-this-name")
    found = openssh.conditions(identity, str(tmp_path))
    assert found == openssh.OpensshConditions(
        path=str(sshd), privsep=True, locked=False, shell=True, pidfd=hasattr(os, "pidfd_open")
    )


def test_an_account_that_is_locked_is_found_beside_what_is_no_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shadow = tmp_path / "shadow"
    shadow.write_bytes(b"root:*:\xff::\nmpi:!:19000::\n")
    monkeypatch.setattr(openssh, "Path", {"/etc/shadow": shadow}.get)
    assert (openssh._locked("mpi"), openssh._locked("root")) == (True, False)
