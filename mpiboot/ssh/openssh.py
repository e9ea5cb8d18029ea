"""OpenSSH's sshd with a private configuration: whether it can run here, its argv, and its port.

From /etc/ssh only the configured port is read; no port stays bound.
"""

from __future__ import annotations

import contextlib
import math
import os
import shlex
import shutil
import socket
from collections.abc import Mapping
from mmap import PROT_READ, mmap
from pathlib import Path
from typing import Final, NamedTuple

from mpiboot.core.model import Decision, Identity, Source
from mpiboot.ssh.sessions import WRAPPER
from mpiboot.system import files, processes
from mpiboot.system.keys import JobKey
from mpiboot.system.process import process_handle

LISTENING: Final = "Server listening on "
# Where distributions install it; sshd needs its own absolute path to re-execute itself.
# The last one holds programs that mpiboot's shims have replaced.
_FOLDERS: Final = (
    *("/usr/sbin", "/usr/local/sbin", "/usr/lib/ssh", "/opt/openssh/sbin"),
    "/usr/local/lib/mpiboot/real",
)
_SFTP: Final = ("/usr/lib/openssh", "/usr/libexec/openssh", "/usr/lib/ssh")
_PRIVSEP: Final = "/run/sshd"
# capabilities(7): what sshd as root uses for its unprivileged child.
_NEEDED: Final = {6: "SETGID", 7: "SETUID", 18: "SYS_CHROOT"}
_NO_LOGIN: Final = frozenset(("nologin", "false", "true", "sync"))
_KEEPALIVES: Final = 3


class WorkerSetup(NamedTuple):
    """An SSH server's settings; constant while this worker runs."""

    identity: Identity
    folder: Path
    key: JobKey
    address: str
    port: int
    token: str
    keepalive: float
    environ: Mapping[str, str]  # the pod's own, with HOME, USER and LOGNAME


def reason_against(binary: str, identity: Identity, folder: Path) -> str:
    """Why sshd can't serve this pod; empty if it can.

    As root, creates /run/sshd if it is missing.

    Args:
        binary: the path of sshd; empty where there is none.
        identity: this pod's user.
        folder: where its private files will be.
    """
    root, shell = identity.uid == 0, identity.shell
    missing = [name for bit, name in _NEEDED.items() if not identity.capabilities >> bit & 1]
    places = ", ".join(_FOLDERS)
    # Who is not root can't read it, nor can sshd then.
    accounts = processes.text(Path("/etc/shadow")).splitlines()
    locked = (line.startswith(f"{identity.user}:!") for line in accounts)
    objections = (
        (not binary, f"the image has no sshd (looked in PATH, {places})"),
        (not identity.known, f"uid {identity.uid} has no passwd entry"),
        (not _runs_commands(shell), f"the shell {shell} of {identity.user} runs no commands"),
        (root and missing, "sshd as root needs the capabilities " + ", ".join(missing)),
        (
            root and binary and not _privsep(binary),
            f"sshd as root needs {_PRIVSEP}, which can't be made",
        ),
        (any(locked), f"the account {identity.user} is locked in /etc/shadow"),
        (not _pidfd(), "this system can't tell when a connection's process ends (no pidfd)"),
        (
            any(not char.isprintable() or char in "\"'\\%$`" for char in str(folder)),
            f"sshd's configuration can't hold the path {folder}",
        ),
    )
    return next((message for holds, message in objections if holds), "")


def find(path: str) -> str:
    """Path of the installed sshd; empty where there is none."""
    # Skip mpiboot's own sshd shim.
    for folder in (*path.split(os.pathsep), *_FOLDERS):
        found = shutil.which("sshd", path=folder) if folder.startswith("/") else None
        if found and "mpiboot" not in Path(found).resolve().name:
            return found
    return ""


def _privsep(binary: str) -> bool:
    """Whether root's sshd has its privilege separation folder."""
    if not contains_string(binary, _PRIVSEP):
        return True  # other builds use a folder that their package installs
    try:
        # A fresh tmpfs on /run hides the one that the package made.
        Path(_PRIVSEP).mkdir(mode=0o755, exist_ok=True)
    except OSError:
        return False
    return True


def _pidfd() -> bool:
    """Whether this system and this Python can watch a process that isn't a child."""
    handle = process_handle(os.getpid())
    if handle is None:
        return False
    os.close(handle)
    return True


def configuration(binary: str, setup: WorkerSetup) -> str:
    """The text of the private sshd_config.

    Only what differs from sshd's defaults, in options that every build since OpenSSH 8.0 knows;
    newer ones are used only if the binary contains their names.
    """
    folder, address = setup.folder, setup.address
    # /bin/sh by name: the package or its volume may have lost the file's execute bit.
    wrapper = shlex.join(("/bin/sh", str(WRAPPER), str(folder), setup.token))
    where = f"[{address}]:{setup.port}" if ":" in address else f"{address}:{setup.port}"
    interval = math.ceil(setup.keepalive / _KEEPALIVES)
    options = {
        "ListenAddress": where,
        "HostKey": f'"{folder}/key"',
        "AuthorizedKeysFile": f'"{folder}/authorized_keys"',
        # The folder is private already; its parents (/tmp, a volume) may fail sshd's check.
        "StrictModes": "no",
        "AuthenticationMethods": "publickey",
        "PasswordAuthentication": "no",
        "KbdInteractiveAuthentication": "no",
        "UsePAM": "no",
        "AllowUsers": setup.identity.user,
        "PermitRootLogin": "prohibit-password",
        "PermitUserRC": "no",
        "PermitTTY": "no",
        "DisableForwarding": "yes",
        "ForceCommand": f"exec {wrapper}",
        # bash reads ~/.bashrc for commands over SSH at its first level only: not for ForceCommand,
        # whose result the pod's environment would replace, but for the command itself.
        "SetEnv": "SHLVL=1",
        "PidFile": "none",
        # In the banner: tells the launcher that this is a worker, not the node's own sshd.
        "VersionAddendum": "mpiboot",
        "Compression": "no",
        "LoginGraceTime": "60",
        "MaxStartups": "1000",
        "MaxSessions": "200",
        "ClientAliveInterval": str(interval),
        "ClientAliveCountMax": str(_KEEPALIVES),
        # sshd's defaults (or those of a build in FIPS mode) without SHA-1.
        "KexAlgorithms": "-*-sha1",
        "MACs": "-*-sha1*",
        "HostKeyAlgorithms": "-ssh-rsa*",
    }
    if contains_string(binary, "persourcepenalties"):
        # OpenSSH 9.8: a launcher that only reads the banner would be blocked for a while.
        options["PerSourcePenalties"] = "no"
    if server := shutil.which("sftp-server", path=os.pathsep.join(_SFTP)):
        options["Subsystem"] = f"sftp {server}"  # as any command: behind the session wrapper
    return "".join(f"{name} {value}\n" for name, value in options.items())


def prepare(binary: str, setup: WorkerSetup) -> list[str]:
    """Write the private files; return the argv that starts sshd in the foreground.

    Raises:
        MpibootError: ``runtime-folder``; a file can't be written.
    """
    config = setup.folder / "sshd_config"
    files.write_private(setup.folder / "authorized_keys", setup.key.public + "\n")
    files.write_private(config, configuration(binary, setup))
    return [binary, "-D", "-e", "-f", str(config)]


def shell_of(identity: Identity) -> str:
    """The shell for the user's commands: the passwd entry's where it runs commands, else sh."""
    return identity.shell if _runs_commands(identity.shell) else "/bin/sh"


def _runs_commands(shell: str) -> bool:
    return os.access(shell, os.X_OK) and Path(shell).name not in _NO_LOGIN


SSH: Final = 22
# What the MPI Operator's and Trainer's images use where 22 is out of reach.
HIGH: Final = 2222


def can_bind(address: str, port: int) -> bool:
    """Whether this process could listen there now."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        # Listens too: with SO_REUSEADDR, which this sets, two sockets may bind.
        socket.create_server((address, port), family=family).close()
    except OSError:
        return False
    return True


def choose_port(environ: Mapping[str, str], home: str, address: str) -> Decision:
    """Choose the port: the image's or platform's own, else 22 if it can be bound, else 2222.

    Args:
        environ: the pod's environment.
        home: this user's home folder.
        address: the control address.
    """
    taken = ""
    if named := named_port(environ, home):
        port, path = named
        if can_bind(address, port):
            return Decision("ssh-port", str(port), Source.PLATFORM, f"Port in {path}")
        taken = f"{port} of {path} can't be bound; "
    if can_bind(address, SSH):
        reason = f"{taken}the default of SSH"
        return Decision("ssh-port", str(SSH), Source.DEFAULT, reason)
    return Decision("ssh-port", str(HIGH), Source.DETECTED, f"{taken}{SSH} can't be bound here")


def named_port(environ: Mapping[str, str], home: str) -> tuple[int, str] | None:
    """Find the port that the image's own SSH configuration names, and in which file."""
    homes = _homes(environ, home)
    # First what a platform mounts for the job's logins (Volcano's --ssh-port), then the user's own:
    # the image's may name a port that only root can bind everywhere.
    likely = [folder / name for name in (".ssh/config", ".sshd_config") for folder in homes]
    likely.append(Path("/etc/ssh/sshd_config"))
    with contextlib.suppress(OSError):
        likely += sorted(Path("/etc/ssh/sshd_config.d").glob("*.conf"))
    return _first_port(likely)


def client_port(environ: Mapping[str, str], home: str) -> tuple[int, str] | None:
    """Find the port that this user's SSH client would use for the job's pods, and in which file."""
    return _first_port([folder / ".ssh/config" for folder in _homes(environ, home)])


def _homes(environ: Mapping[str, str], home: str) -> list[Path]:
    folders = dict.fromkeys((environ.get("HOME", ""), home))
    return [Path(folder) for folder in folders if folder.startswith("/")]


def _first_port(likely: list[Path]) -> tuple[int, str] | None:
    own = socket.gethostname()
    found = ((port_in(processes.text(path), own), str(path)) for path in likely)
    return next(((port, path) for port, path in found if port), None)


def port_in(text: str, own: str = "") -> int | None:
    """The first ``Port`` of a configuration that holds for every host, or for this pod. Pure.

    Volcano's ssh plugin writes a ``Host`` for each pod of the job, all with one port
    (v1.15.1, plugins/ssh/ssh.go, generateSSHConfig).
    """
    general = True
    for line in text.splitlines():
        words = line.replace("=", " ", 1).replace('"', "").split()
        if len(words) < 2:  # noqa: PLR2004 - a keyword and its value
            continue
        keyword = words[0].lower()
        if keyword in ("host", "match"):
            general = keyword == "host" and not {"*", own or "*"}.isdisjoint(words[1:])
        elif keyword == "port" and general and words[1].isascii() and words[1].isdigit():
            number = int(words[1])
            if 0 < number < 65536:  # noqa: PLR2004 - the range of a TCP port
                return number
    return None


def contains_string(binary: str, word: str) -> bool:
    """Whether a program's file contains a word, such as an option's name.

    Cheaper than running it; sshd exits at startup on an unknown option.
    """
    try:
        # Mapped: reading a megabyte would grow this long-running process for good.
        with open(binary, "rb") as file, mmap(file.fileno(), 0, prot=PROT_READ) as data:  # noqa: PTH123
            return data.find(word.encode()) >= 0
    except (OSError, ValueError):  # an empty file can't be mapped
        return False
