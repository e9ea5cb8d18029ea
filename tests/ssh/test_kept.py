"""The gate's logins that stay open, by where and as whom they lead."""

from __future__ import annotations

from typing import cast

import asyncssh
import pytest

from mpiboot.ssh.attempt import Target
from mpiboot.ssh.client_start import ConnectionPool
from mpiboot.ssh.config import SshTimeouts


class Connection:
    """One that may have ended meanwhile."""

    def __init__(self) -> None:
        self.closed = False
        self.keepalive: tuple[float, int] | None = None

    def set_keepalive(self, interval: float, count_max: int) -> None:
        self.keepalive = (interval, count_max)

    def is_closed(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def kept() -> ConnectionPool:
    return ConnectionPool(SshTimeouts(attempts=1, timeout=33, interval=11, probes=4))


def keep(
    kept: ConnectionPool, address: str = "10.0.0.1", port: int = 22, user: str = "me"
) -> Connection:
    made = Connection()
    kept.keep(Target("w-0", address, port, user), cast("asyncssh.SSHClientConnection", made))
    return made


def test_one_leads_to_its_address_port_and_user_and_is_given_away_once(
    kept: ConnectionPool,
) -> None:
    first, second, ended, other = keep(kept), keep(kept), keep(kept), keep(kept, user="root")
    ended.closed = True
    assert first.keepalive == (11, 4)  # a host that is silent is lost after that
    for place in (("10.0.0.2", 22, "me"), ("10.0.0.1", 2222, "me"), ("10.0.0.1", 22, "you")):
        assert kept.take(*place) is None
    here = ("10.0.0.1", 22, "me")
    latest: object = kept.take(*here)
    assert latest is second  # the latest that is still open
    kept.close()
    assert (first.closed, second.closed, other.closed) == (True, False, True)
    assert kept.take(*here) is None
