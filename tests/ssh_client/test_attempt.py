from __future__ import annotations

from mpiboot.ssh_client.attempt import Outcome

# How far each attempt came, from the least to the most: a host's attempts are told by the furthest.
WITHOUT_GREETING = (
    Outcome.NO_SOCKET,
    Outcome.REFUSED,
    Outcome.UNREACHABLE,
    Outcome.TIMEOUT,
    Outcome.SILENT,
    Outcome.NOT_SSH,
)
DENIED = (Outcome.KEY_REFUSED, Outcome.PASSWORD_ASKED)


def test_the_furthest_is_the_last() -> None:
    assert sorted(Outcome, key=lambda item: item.rank) == list(Outcome)
    assert Outcome.REFUSED.rank < Outcome.TIMEOUT.rank < Outcome.CLOSED.rank
    assert Outcome.HOST_KEY_DIFFERS.rank < Outcome.KEY_REFUSED.rank
    assert max(Outcome, key=lambda item: item.rank) is Outcome.OK


def test_which_of_them_have_seen_an_ssh_server_and_which_said_no() -> None:
    assert tuple(item for item in Outcome if not item.greeted) == WITHOUT_GREETING
    assert tuple(item for item in Outcome if item.denied) == DENIED
