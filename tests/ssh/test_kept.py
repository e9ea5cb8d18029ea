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


def taken(kept: ConnectionPool) -> object:
    return kept.take("10.0.0.1", 22, "me")


def test_one_is_given_away_once_the_latest_first(kept: ConnectionPool) -> None:
    first, second = keep(kept), keep(kept)
    assert taken(kept) is second
    assert taken(kept) is first
    assert taken(kept) is None


def test_a_host_that_is_silent_is_lost_after_the_keepalive(kept: ConnectionPool) -> None:
    assert keep(kept).keepalive == (11, 4)


@pytest.mark.parametrize(
    "place", [("10.0.0.2", 22, "me"), ("10.0.0.1", 2222, "me"), ("10.0.0.1", 22, "root")]
)
def test_one_leads_to_its_address_port_and_user_alone(
    kept: ConnectionPool, place: tuple[str, int, str]
) -> None:
    keep(kept)
    assert kept.take(*place) is None


def test_one_that_has_ended_is_passed_over(kept: ConnectionPool) -> None:
    first, second = keep(kept), keep(kept)
    second.closed = True
    assert taken(kept) is first


def test_those_that_nobody_took_are_closed(kept: ConnectionPool) -> None:
    first, last, other = keep(kept), keep(kept), keep(kept, user="root")
    assert taken(kept) is last
    kept.close()
    assert (first.closed, last.closed, other.closed) == (True, False, True)
    assert taken(kept) is None
