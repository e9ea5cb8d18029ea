from __future__ import annotations

import pytest

from mpiboot.hosts.failures import as_error, detail, final
from mpiboot.ssh.attempt import Attempt, Outcome, Target

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
    assert final(probes, OURS) is None


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
    assert final(probes, OURS) is probes[which]


def test_one_port_has_nobody_to_wait_for() -> None:
    assert final([NODE], OURS) is NODE


def test_ports_that_said_the_same_are_one() -> None:
    probes = [probe(Outcome.REFUSED, port) for port in (22, 2222)] + [NODE]

    assert detail(probes) == (
        "connection refused on 10.0.0.1 ports 22, 2222; "
        "another host key (SHA256:theirs) on 10.0.0.1 port 22"
    )


def shown(greeting: str = "SSH-2.0-OpenSSH_9.2", *, welcome: bool = False) -> Attempt:
    """A server with a host key that is not the job's."""
    return Attempt(
        Target("w-0", "10.0.0.1", 22, "mpi"),
        Outcome.HOST_KEY_DIFFERS,
        greeting=greeting,
        host_key="ssh-rsa BBBB",
        fingerprint=THEIRS,
        welcome=welcome,
    )


OWN_KEY = "sshd on w-0 (10.0.0.1 port 22, {}) has a host key of its own, {}, not the job's, {}"
OTHER_JOB = "mpiboot on w-0 (10.0.0.1 port 22, {}) has another key, {}, not the job's, {}"


@pytest.mark.parametrize("welcome", [False, True])
@pytest.mark.parametrize("greeting", ["SSH-2.0-OpenSSH_9.2", "SSH-2.0-mpiboot"])
def test_a_host_key_of_another_job_is_told_from_that_of_a_stock_image(
    greeting: str, *, welcome: bool
) -> None:
    found = as_error(shown(greeting, welcome=welcome), "SHA256:mine", "ssh-rsa AAAA", OURS).finding
    other_job = greeting == "SSH-2.0-mpiboot" and not welcome
    message = (OTHER_JOB if other_job else OWN_KEY).format(greeting, THEIRS, OURS)
    assert (found.check, found.host, found.message) == ("host-key-differs", "w-0", message)
    known = "it would accept the job's key" if welcome else "it refuses the job's key"
    assert found.evidence == (known, "it shows: ssh-rsa BBBB")
    secret = "launcher and workers must mount the same key Secret"
    assert (secret if other_job else "MPIBOOT_HOST_KEYS=accept-new") in found.hint


def test_mpiboot_with_another_key_will_not_get_the_jobs_by_waiting() -> None:
    refused = probe(Outcome.REFUSED, 2222)
    assert final([shown(), refused], OURS) is None
    other = shown("SSH-2.0-mpiboot")
    assert final([other, refused], OURS) is other


def test_only_all_ports_of_one_address_are_everyone() -> None:
    elsewhere = Attempt(Target("w-0", "fd00::1", 22, "root"), Outcome.REFUSED)
    assert final([NODE, probe(Outcome.REFUSED, 2222), elsewhere], OURS) is None
    assert final([NODE, elsewhere, probe(Outcome.CLOSED, 2222)], OURS) is NODE


@pytest.mark.parametrize(
    ("outcome", "message", "what"),
    [
        (Outcome.KEY_REFUSED, "no such user", "refuses the launcher's key SHA256:mine for"),
        (Outcome.PASSWORD_ASKED, "", "asks for a password and does not accept public keys for"),
    ],
)
def test_who_lets_nobody_in_is_told_with_the_line_that_is_missing(
    outcome: Outcome, message: str, what: str
) -> None:
    attempt = Attempt(
        Target("w-0", "10.0.0.1", 22, "mpi"), outcome, message=message, greeting="SSH-2.0-x"
    )
    found = as_error(attempt, "SHA256:mine", "ssh-rsa AAAA", OURS).finding
    assert (found.check, found.host) == ("ssh-denied", "w-0")
    assert found.message == f"sshd on w-0 (10.0.0.1 port 22, SSH-2.0-x) {what} user mpi"
    line = "authorized_keys of mpi there should hold: ssh-rsa AAAA"
    assert found.evidence == ((f"it says: {message}", line) if message else (line,))
    assert "the same key Secret" in found.hint


def test_what_a_server_said_stands_behind_its_outcome() -> None:
    attempts = [
        Attempt(Target("w-0", "10.0.0.1", 22, "r"), Outcome.CLOSED, message="bye"),
        Attempt(Target("w-0", "10.0.0.1", 2222, "r"), Outcome.CLOSED),
        Attempt(Target("w-0", "10.0.0.2", 22, "r"), Outcome.CLOSED),
    ]
    closed = Outcome.CLOSED.value
    assert detail(attempts) == (
        f"{closed} (bye) on 10.0.0.1 port 22; {closed} on 10.0.0.1 port 2222; "
        f"{closed} on 10.0.0.2 port 22"
    )
