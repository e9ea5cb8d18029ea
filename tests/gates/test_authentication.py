from __future__ import annotations

import pytest

from mpiboot.gates.authentication import as_error, detail, final
from mpiboot.ssh_client.attempt import Attempt, Outcome, Target

OURS, THEIRS = "SHA256:ours", "SHA256:theirs"


def probe(outcome: Outcome, port: int = 22, *, key: str = "", welcome: bool = False) -> Attempt:
    return Attempt(
        Target("w-0", "10.0.0.1", port, "root"), outcome, fingerprint=key, welcome=welcome
    )


NODE = probe(Outcome.HOST_KEY_DIFFERS, key=THEIRS)
STOCK = probe(Outcome.HOST_KEY_DIFFERS, key=THEIRS, welcome=True)


@pytest.mark.parametrize(
    "probes",
    [
        [probe(outcome, 22), probe(Outcome.REFUSED, 2222)]
        for outcome in Outcome
        if outcome not in (Outcome.KEY_REFUSED, Outcome.PASSWORD_ASKED)
    ]
    + [
        [NODE, probe(Outcome.REFUSED, 2222)],
        [NODE, probe(Outcome.SILENT, 2222)],
        [probe(Outcome.KEY_REFUSED, 22, key=THEIRS), probe(Outcome.REFUSED, 2222)],
    ],
)
def test_what_may_change_by_waiting_is_not_final(probes: list[Attempt]) -> None:
    assert final(probes, 2, OURS) is None


@pytest.mark.parametrize(
    ("probes", "which"),
    [
        ([STOCK, probe(Outcome.REFUSED, 2222)], 0),
        ([NODE, probe(Outcome.HOST_KEY_DIFFERS, 2222, key="SHA256:third")], 0),
        ([probe(Outcome.REFUSED, 22), probe(Outcome.KEY_REFUSED, 2222, key=OURS)], 1),
        ([probe(Outcome.REFUSED, 22), probe(Outcome.PASSWORD_ASKED, 2222, key=OURS)], 1),
        ([probe(Outcome.KEY_REFUSED, 22, key=THEIRS), probe(Outcome.CLOSED, 2222)], 0),
    ],
)
def test_what_waiting_cannot_change_is_final(probes: list[Attempt], which: int) -> None:
    assert final(probes, 2, OURS) is probes[which]


def test_one_port_has_nobody_to_wait_for() -> None:
    assert final([NODE], 1, OURS) is NODE


def test_ports_that_said_the_same_are_one() -> None:
    probes = [probe(Outcome.REFUSED, port) for port in (22, 2222)] + [NODE]

    assert detail(probes) == (
        "connection refused on 10.0.0.1 ports 22, 2222; "
        "another host key (SHA256:theirs) on 10.0.0.1 port 22"
    )


def test_errors_say_who_what_and_what_to_do() -> None:
    differs = as_error(STOCK, OURS, "ssh-rsa AAAA", OURS)
    denied = as_error(probe(Outcome.KEY_REFUSED), OURS, "ssh-rsa AAAA", OURS)

    assert (differs.code, denied.code) == (77, 77)
    assert OURS in differs.finding.said
    assert THEIRS in differs.finding.said
    assert "it would accept the job's key" in differs.finding.evidence
    assert f"refuses the launcher's key {OURS} for user root" in denied.finding.said
    assert "authorized_keys of root there should hold: ssh-rsa AAAA" in denied.finding.evidence
