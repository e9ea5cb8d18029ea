"""How far one SSH attempt at one address came: the words that observers and gate share.

Pure records; nothing here connects anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final


class Outcome(str, Enum):
    """How far an attempt came, the furthest last; the value is what a person is told."""

    NO_SOCKET = "this pod has no socket for the address"
    REFUSED = "connection refused"
    UNREACHABLE = "no route"
    TIMEOUT = "connection timed out"
    SILENT = "connected, but no SSH greeting"
    NOT_SSH = "what answers there is not SSH"
    CLOSED = "connection closed"
    PROTOCOL = "no common SSH protocol"
    SLOW = "SSH login timed out"
    HOST_KEY_DIFFERS = "another host key"
    KEY_REFUSED = "key refused"
    PASSWORD_ASKED = "password asked"  # noqa: S105 - what the server does
    COMMAND_FAILED = "logged in, but the command failed"
    OK = "ready"

    @property
    def rank(self) -> int:
        """Place in this list."""
        return _ORDER.index(self)

    @property
    def denied(self) -> bool:
        """Whether the server answered well and said no to our key."""
        return self in (Outcome.KEY_REFUSED, Outcome.PASSWORD_ASKED)

    @property
    def greeted(self) -> bool:
        """Whether an SSH server was seen."""
        return self not in (
            Outcome.NO_SOCKET,
            Outcome.REFUSED,
            Outcome.UNREACHABLE,
            Outcome.TIMEOUT,
            Outcome.SILENT,
            Outcome.NOT_SSH,
        )


_ORDER: Final = tuple(Outcome)


@dataclass(frozen=True, slots=True)
class Target:
    """Where to log in: a host of the hostfile at one of its addresses and one port."""

    host: str
    address: str
    port: int
    user: str


@dataclass(frozen=True, slots=True)
class LoginTimeouts:
    """How long each step of an attempt may take, in seconds."""

    connect: float = 2.5
    greeting: float = 5.0
    login: float = 20.0
    command: float = 30.0


@dataclass(frozen=True, slots=True)
class Attempt:
    """What one attempt found.

    ``host_key`` is the public key that the server showed (a line as in known_hosts, without the
    host), ``fingerprint`` that of it. ``welcome`` tells, where that key is not the job's, that the
    server would have let us in with the job's key all the same. ``stalled`` tells that small
    packets came and then nothing more.
    """

    target: Target
    outcome: Outcome
    said: str = ""
    output: str = ""
    greeting: str = ""
    local_address: str = ""
    host_key: str = ""
    fingerprint: str = ""
    welcome: bool = False
    stalled: bool = False
