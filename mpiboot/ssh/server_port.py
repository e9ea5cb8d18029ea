"""Which port a worker's SSH server gets, and why.

Reads the image's own SSH configuration for a port and nothing else; keeps no port bound.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from mpiboot.core.model import Decision, Source

SSH: Final = 22
# What the MPI Operator's and Trainer's images use where 22 is out of reach.
HIGH: Final = 2222


def can_bind(address: str, port: int) -> bool:
    """Whether this process could listen there now."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((address, port))
            # Two may bind with SO_REUSEADDR; only one may listen.
            probe.listen(1)
    except OSError:
        return False
    return True


def choose(given: Decision | None, environ: Mapping[str, str], home: str, address: str) -> Decision:
    """Choose the port: the user's, the image's or platform's own, 22 if it can be bound, 2222.

    Args:
        given: what the user's setting says, if it does.
        environ: the pod's environment.
        home: this user's home folder.
        address: the control address.
    """
    if given:
        return given
    named = named_port(environ, home)
    taken = ""
    if named:
        port, path = named
        if can_bind(address, port):
            return Decision("ssh-port", str(port), Source.PLATFORM, f"Port in {path}")
        taken = f"{port} of {path} can't be bound; "
    if can_bind(address, SSH):
        reason = f"{taken}the default of SSH"
        return Decision("ssh-port", str(SSH), Source.DEFAULT, reason)
    reason = f"{taken}{SSH} can't be bound here"
    return Decision("ssh-port", str(HIGH), Source.DETECTED, reason)


def named_port(environ: Mapping[str, str], home: str) -> tuple[int, str] | None:
    """Find the port that the image's own SSH configuration names, and in which file."""
    likely = [Path("/etc/ssh/sshd_config")]
    for folder in _homes(environ, home):
        likely += [folder / ".sshd_config", folder / ".ssh/config"]
    with contextlib.suppress(OSError):
        likely[1:1] = sorted(Path("/etc/ssh/sshd_config.d").glob("*.conf"))
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
