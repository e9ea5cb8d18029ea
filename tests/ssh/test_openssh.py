"""A worker's sshd: what speaks against it, its configuration as sshd itself reads it, its port."""

from __future__ import annotations

import shutil
import socket
import subprocess
from dataclasses import replace
from pathlib import Path

import asyncssh
import pytest

from mpiboot.core.model import Decision, Identity, Source
from mpiboot.ssh import openssh
from mpiboot.system.keys import JobKey
from tests.fakes.worker import free_port

ALL = (1 << 41) - 1
ROOT = Identity(0, 0, "root", "/root", "/bin/sh", known=True, capabilities=ALL)
USER = Identity(1000, 1000, "mpi", "/home/mpi", "/bin/sh", known=True, capabilities=0)
SSHD = openssh.find("/usr/sbin")
needs_sshd = pytest.mark.skipif(not SSHD, reason="no sshd")

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
    "usedns": "no",
    "loglevel": "INFO",
}


def configuration(
    binary: str, folder: Path, address: str = "127.0.0.1", keepalive: float = 30.0
) -> str:
    identity = ROOT if binary == SSHD else USER
    key = JobKey(folder / "key", "ssh-ed25519 AAAA")
    setup = openssh.WorkerSetup(identity, folder, key, address, 2222, "abc", keepalive, {})
    return openssh.configuration(binary, setup)


@pytest.fixture
def sshd(tmp_path: Path) -> str:
    """A build that wants /run/sshd, and knows one option more."""
    path = tmp_path / "sshd"
    path.write_bytes(b"\0/run/sshd\0persourcepenalties\0")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("identity", "folder", "lacks", "message"),
    [
        (ROOT, "/run/with blank", "", ""),
        (USER, "/run", "the folder", ""),  # root's sshd alone wants it
        (USER, "/run", "sshd", "no sshd"),
        (replace(USER, known=False), "/run", "", "uid 1000 has no passwd entry"),
        (replace(USER, shell="/bin/false"), "/run", "", "/bin/false of mpi runs no commands"),
        (replace(ROOT, capabilities=ALL & ~(1 << 18)), "/run", "", "capabilities SYS_CHROOT"),
        (replace(ROOT, capabilities=0), "/run", "", "SETGID, SETUID, SYS_CHROOT"),
        (ROOT, "/run", "the folder", "/run/sshd"),
        (replace(USER, user="locked"), "/run", "", "locked in /etc/shadow"),
        (USER, "/run", "pidfd", "pidfd"),
        (ROOT, "/run/it's", "", "can't hold the path"),
        (ROOT, "/run/%h", "", "can't hold the path"),
    ],
)
def test_what_speaks_against_sshd(
    sshd: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    identity: Identity,
    folder: str,
    lacks: str,
    message: str,
) -> None:
    shadow, privsep = tmp_path / "shadow", tmp_path / "privsep"
    shadow.write_bytes(b"root:*:\xff::\nlocked:!:19000::\n")
    if lacks == "the folder":
        privsep = tmp_path / "none" / "privsep"
    paths = {"/etc/shadow": shadow, "/run/sshd": privsep}
    monkeypatch.setattr(openssh, "Path", lambda path: paths.get(path) or Path(path))
    if lacks == "pidfd":
        monkeypatch.setattr(openssh, "process_handle", lambda _: None)
    binary = "" if lacks == "sshd" else sshd
    found = openssh.reason_against(binary, identity, Path(folder))
    assert (message in found) if message else not found
    assert privsep.exists() == (identity.uid == 0 and lacks != "the folder")


def test_a_folder_with_blanks_is_quoted_and_an_option_is_for_builds_that_know_it(sshd: str) -> None:
    text = configuration("/nothing", Path("/run/a b/worker"), "fd00::5")
    lines = text.splitlines()
    assert {
        "ListenAddress [fd00::5]:2222",
        'HostKey "/run/a b/worker/key"',
        "ClientAliveInterval 10",
        "AllowUsers mpi",
    } <= {*lines}
    (forced,) = (line for line in lines if line.startswith("ForceCommand exec /bin/sh "))
    assert forced.endswith(" '/run/a b/worker' abc")
    assert "PerSourcePenalties no" not in lines
    assert "PerSourcePenalties no\n" in configuration(sshd, Path("/run"), keepalive=0)


@needs_sshd
def test_the_installed_sshd_accepts_the_configuration(tmp_path: Path) -> None:
    (folder := tmp_path / "with blank").mkdir()
    openssh.reason_against(SSHD, ROOT, folder)  # makes /run/sshd
    key = asyncssh.generate_private_key("ssh-ed25519")
    (folder / "key").write_bytes(key.export_private_key("openssh"))
    (folder / "key").chmod(0o600)
    (folder / "sshd_config").write_text(configuration(SSHD, folder))
    argv = [SSHD, "-T", "-f", str(folder / "sshd_config")]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"authorizedkeysfile {folder}/authorized_keys\n" in done.stdout
    assert f"'{folder}' abc" in done.stdout
    taken = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert taken.items() >= NOTHING_BUT_THE_JOB.items()


@pytest.mark.parametrize("shell", ["/bin/sh", "/usr/sbin/nologin", "/bin/false", "/nothing/such"])
def test_a_shell_that_runs_no_commands_is_replaced(shell: str) -> None:
    assert openssh.shell_of(replace(USER, shell=shell)) == "/bin/sh"


@needs_sshd
def test_sshd_is_found_in_the_path_and_outside_of_it(sshd: str, tmp_path: Path) -> None:
    assert openssh.find(str(tmp_path)) == sshd
    assert openssh.find(str(tmp_path / "empty")) == shutil.which("sshd", path="/usr/sbin")


# What Volcano's ssh plugin with --ssh-port=2206 mounts (v1.15.1, ssh.go, generateSSHConfig).
VOLCANO = """\
StrictHostKeyChecking no
UserKnownHostsFile /dev/null
Host j-master-0
  HostName j-master-0.j
  Port 2206
Host j-worker-0
  HostName j-worker-0.j
  Port 2206
"""


@pytest.mark.parametrize(
    ("text", "pod", "port"),
    [
        ("#Port 22\n", "", None),
        *((f"  {text}\n", "", 2200) for text in ("Port 2200", "port=2200 ", 'Port "2200"')),
        ("Port 0\nPort x\nPort 99999\nPort 2202\n", "", 2202),
        ("Host other\n  Port 2203\n", "", None),
        ("Host other\n  Port 2203\nHost *\n  Port 2204\n", "", 2204),
        ("Match user x\nPort 2205\n", "", None),
        (VOLCANO, "j-worker-0", 2206),
        (VOLCANO, "j-master-0", 2206),
        (VOLCANO, "other", None),
        (VOLCANO, "", None),
    ],
)
def test_the_port_of_a_configuration(text: str, pod: str, port: int | None) -> None:
    assert openssh.port_in(text, pod) == port


def test_the_clients_port_is_not_the_images_servers(tmp_path: Path) -> None:
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".sshd_config").write_text("Port 2207\n")
    assert openssh.client_port({}, str(tmp_path)) is None
    config = tmp_path / ".ssh/config"
    config.write_text(VOLCANO.replace("j-worker-0", socket.gethostname()))
    assert openssh.client_port({}, str(tmp_path)) == (2206, str(config))
    assert openssh.client_port({"HOME": str(tmp_path)}, "") == (2206, str(config))


@pytest.mark.parametrize("name", [".sshd_config", ".ssh/config"])
def test_a_configuration_in_the_home_folder_names_the_port(name: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        (tmp_path / ".ssh").mkdir()
        (tmp_path / name).write_text(f"Port {port}\n")
        chosen = openssh.choose_port({}, str(tmp_path), "127.0.0.1")
        assert chosen.value in ("22", "2222")
        assert f"{port} of {tmp_path}/{name} can't be bound" in chosen.reason
    port = free_port()
    (tmp_path / name).write_text(f"Port {port}\n")
    chosen = openssh.choose_port({}, str(tmp_path), "127.0.0.1")
    assert chosen == Decision("ssh-port", str(port), Source.PLATFORM, f"Port in {tmp_path / name}")


@pytest.mark.parametrize("address", ["192.0.2.1", "2001:db8::1"])
def test_an_address_of_nobody_cannot_be_bound(address: str) -> None:
    assert not openssh.can_bind(address, 2222)


@pytest.mark.parametrize(
    ("free", "chosen"),
    [
        (22, Decision("ssh-port", "22", Source.DEFAULT, "the default of SSH")),
        (2222, Decision("ssh-port", "2222", Source.DETECTED, "22 can't be bound here")),
    ],
)
def test_where_nobody_names_a_port_the_default_is_taken_if_it_can_be_bound(
    free: int, chosen: Decision, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openssh, "named_port", lambda _environ, _home: None)
    monkeypatch.setattr(openssh, "can_bind", lambda _address, port: port == free)
    assert openssh.choose_port({}, str(tmp_path), "127.0.0.1") == chosen
