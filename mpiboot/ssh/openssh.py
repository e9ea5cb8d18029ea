"""OpenSSH's sshd from a private configuration: can it run here, how it is started, and its port.

Of /etc/ssh only the port is read that the image's own configuration names; no port stays bound.
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
from mpiboot.system import files
from mpiboot.system.keys import JobKey
from mpiboot.system.process import process_handle

LISTENING: Final = "Server listening on "
# Where distributions keep it; sshd needs its own absolute path, to start itself anew.
# The last one holds programs whose place a shim of mpiboot's has taken.
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
    """What a server serves by; it doesn't change while this worker runs."""

    identity: Identity
    folder: Path
    key: JobKey
    address: str
    port: int
    token: str
    keepalive: float
    environ: Mapping[str, str]  # the pod's own, with HOME, USER and LOGNAME


def reason_against(binary: str, identity: Identity, folder: Path) -> str:
    """Why sshd can't serve this pod; empty where nothing speaks against it.

    Makes /run/sshd where root may and it is missing.

    Args:
        binary: the path of sshd; empty where there is none.
        identity: this pod's user.
        folder: where its private files will be.
    """
    root, shell = identity.uid == 0, identity.shell
    missing = [name for bit, name in _NEEDED.items() if not identity.capabilities >> bit & 1]
    places = ", ".join(_FOLDERS)
    objections = (
        (not binary, f"the image has no sshd (looked in PATH, {places})"),
        (not identity.known, f"uid {identity.uid} has no passwd entry"),
        (not _runs_commands(shell), f"the shell {shell} of {identity.user} runs no commands"),
        (root and missing, "sshd as root needs the capabilities " + ", ".join(missing)),
        (
            root and binary and not _privsep(binary),
            f"sshd as root needs {_PRIVSEP}, which can't be made",
        ),
        (_locked(identity.user), f"the account {identity.user} is locked in /etc/shadow"),
        (not _pidfd(), "this system can't tell when a connection's process ends (no pidfd)"),
        (
            any(not char.isprintable() or char in "\"'\\%$`" for char in str(folder)),
            f"sshd's configuration can't hold the path {folder}",
        ),
    )
    return next((message for holds, message in objections if holds), "")


def find(path: str) -> str:
    """The sshd that is installed; empty where there is none."""
    # A folder that holds mpiboot's shims would answer with mpiboot itself: those are skipped.
    for folder in (*path.split(os.pathsep), *_FOLDERS):
        found = shutil.which("sshd", path=folder) if folder.startswith("/") else None
        if found and "mpiboot" not in Path(found).resolve().name:
            return found
    return ""


def _locked(user: str) -> bool:
    try:
        lines = Path("/etc/shadow").read_text("utf-8", "replace").splitlines()
    except OSError:
        return False  # who can't read it is not root, and sshd can't read it either
    return any(line.startswith(f"{user}:!") for line in lines)


def _privsep(binary: str) -> bool:
    """Whether root's sshd has the folder that it wants."""
    if not contains_string(binary, _PRIVSEP):
        return True  # other builds have a folder of their package
    try:
        # A fresh tmpfs on /run hides the one that the package made.
        Path(_PRIVSEP).mkdir(mode=0o755, exist_ok=True)
    except OSError:
        return False
    return True


def _pidfd() -> bool:
    """Whether this system and this Python can watch a process that is no child."""
    handle = process_handle(os.getpid())
    if handle is None:
        return False
    os.close(handle)
    return True


def configuration(binary: str, setup: WorkerSetup) -> str:
    """The text of the private sshd_config.

    Only what differs from sshd's defaults, by options that every build since OpenSSH 8.0 knows, but
    for those looked up in the binary.
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
        # The folder is private already; its parents (/tmp, a volume) need not please sshd.
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
        "UseDNS": "no",  # Red Hat's 7.4 would look up each client's name
        # In the greeting: the launcher tells a worker from a node's own sshd by it.
        "VersionAddendum": "mpiboot",
        "Compression": "no",
        "LoginGraceTime": "60",
        "MaxStartups": "1000",
        "MaxSessions": "200",
        "ClientAliveInterval": str(interval),
        "ClientAliveCountMax": str(_KEEPALIVES),
        # Of sshd's defaults, with those of a build in FIPS mode, all but SHA-1.
        "KexAlgorithms": "-*-sha1",
        "MACs": "-*-sha1*",
        "HostKeyAlgorithms": "-ssh-rsa*",
    }
    if contains_string(binary, "persourcepenalties"):
        # OpenSSH 9.8: a launcher that only looks at the greeting would be shut out for a while.
        options["PerSourcePenalties"] = "no"
    if server := shutil.which("sftp-server", path=os.pathsep.join(_SFTP)):
        options["Subsystem"] = f"sftp {server}"  # as any command: behind the session wrapper
    return "".join(f"{name} {value}\n" for name, value in options.items())


def prepare(binary: str, setup: WorkerSetup) -> list[str]:
    """Write the private files; the argv that starts sshd in the foreground.

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
        # It listens: two may bind with SO_REUSEADDR, which this sets.
        socket.create_server((address, port), family=family).close()
    except OSError:
        return False
    return True


def choose_port(environ: Mapping[str, str], home: str, address: str) -> Decision:
    """Choose the port: the image's or platform's own, 22 if it can be bound, 2222.

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
    for path in likely:
        try:
            found = port_in(path.read_text("utf-8", "replace"), own)
        except OSError:
            continue
        if found:
            return found, str(path)
    return None


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

    To run it would cost a process, and an unknown option ends it at its start.
    """
    try:
        # Mapped: a megabyte that is read once stays in a process that stays.
        with open(binary, "rb") as file, mmap(file.fileno(), 0, prot=PROT_READ) as data:  # noqa: PTH123
            return data.find(word.encode()) >= 0
    except (OSError, ValueError):  # an empty file can't be mapped
        return False
