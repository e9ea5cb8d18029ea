"""What failed logins mean: which are final, what each points to, and the errors made of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from mpiboot.hosts import failures
from mpiboot.hosts.dns import NoAddress, ResolvConf
from mpiboot.hosts.failures import as_error, detail, final
from mpiboot.ssh.attempt import Attempt, Outcome, Target

OURS, THEIRS, THIRD = "SHA256:ours", "SHA256:theirs", "SHA256:third"
TARGET = Target("w-0", "10.0.0.1", 22, "mpi")


def attempt(
    outcome: Outcome, port: int = 22, key: str = "", *, address: str = "10.0.0.1", **more: object
) -> Attempt:
    made = Attempt(replace(TARGET, port=port, address=address), outcome, fingerprint=key)
    return replace(made, **more)  # type: ignore[arg-type]


NODE = attempt(Outcome.HOST_KEY_DIFFERS, key=THEIRS, greeting="SSH-2.0-OpenSSH_9.2")
STOCK = replace(NODE, welcome=True)
OTHER_JOB = replace(NODE, greeting="SSH-2.0-mpiboot")
REFUSED = attempt(Outcome.REFUSED, 2222)
ELSEWHERE = attempt(Outcome.REFUSED, address="fd00::1")


@pytest.mark.parametrize(
    ("attempts", "which"),
    [
        *(
            ([attempt(outcome), REFUSED], None)
            for outcome in Outcome
            if outcome not in (Outcome.KEY_REFUSED, Outcome.PASSWORD_ASKED)
        ),
        # May change by waiting: ours may come up beside the node's.
        ([NODE, REFUSED], None),
        ([NODE, attempt(Outcome.SILENT, 2222)], None),
        ([NODE, REFUSED, ELSEWHERE], None),
        ([attempt(Outcome.KEY_REFUSED, key=THEIRS), REFUSED], None),
        # Waiting can't change these.
        ([NODE], 0),  # nobody else is there
        ([NODE, ELSEWHERE, attempt(Outcome.CLOSED, 2222)], 0),  # all ports of one address
        ([STOCK, REFUSED], 0),
        ([OTHER_JOB, REFUSED], 0),
        ([NODE, attempt(Outcome.HOST_KEY_DIFFERS, 2222, THIRD)], 0),
        ([REFUSED, attempt(Outcome.KEY_REFUSED, key=OURS)], 1),
        ([REFUSED, attempt(Outcome.PASSWORD_ASKED, key=OURS)], 1),
        ([attempt(Outcome.KEY_REFUSED, key=THEIRS), attempt(Outcome.CLOSED, 2222)], 0),
    ],
)
def test_a_failure_is_final_where_waiting_cannot_change_it(
    attempts: list[Attempt], which: int | None
) -> None:
    assert final(attempts, OURS) is (None if which is None else attempts[which])


@pytest.mark.parametrize(
    ("attempts", "message"),
    [
        (
            [attempt(Outcome.REFUSED), REFUSED, NODE],
            (
                "connection refused on 10.0.0.1 ports 22, 2222; "
                f"another host key ({THEIRS}) on 10.0.0.1 port 22"
            ),
        ),
        (
            [
                attempt(Outcome.CLOSED, message="bye"),
                attempt(Outcome.CLOSED, 2222),
                attempt(Outcome.CLOSED, address="10.0.0.2"),
            ],
            (
                "connection closed (bye) on 10.0.0.1 port 22; connection closed on 10.0.0.1 port "
                "2222; connection closed on 10.0.0.2 port 22"
            ),
        ),
    ],
)
def test_ports_with_the_same_result_are_one(attempts: list[Attempt], message: str) -> None:
    assert detail(attempts) == message


SSHD, ALIEN = "sshd on w-0 (10.0.0.1 port 22, {}) ", "mpiboot on w-0 (10.0.0.1 port 22, {}) "
OWN_KEY = SSHD + f"has a host key of its own, {THEIRS}, not the job's, {OURS}"
LINE = "authorized_keys of mpi there should hold: ssh-rsa AAAA"
SHOWN, ACCEPTS = "it shows: ssh-rsa BBBB", "it would accept the job's key"
SECRET, ACCEPT_NEW = "the same key Secret", "MPIBOOT_HOST_KEYS=accept-new"


@pytest.mark.parametrize(
    ("failed", "check", "message", "evidence", "hint"),
    [
        (
            OTHER_JOB,
            *("host-key-differs", f"{ALIEN}has another key, {THEIRS}, not the job's, {OURS}"),
            *(("it refuses the job's key", SHOWN), SECRET),
        ),
        *(
            (failed, "host-key-differs", OWN_KEY, (known, SHOWN), ACCEPT_NEW)
            for failed, known in (
                (replace(OTHER_JOB, welcome=True), ACCEPTS),
                (STOCK, ACCEPTS),
                (NODE, "it refuses the job's key"),
            )
        ),
        (
            attempt(Outcome.KEY_REFUSED, message="no such user", greeting="SSH-2.0-x"),
            *("ssh-denied", f"{SSHD}refuses the launcher's key SHA256:mine for user mpi"),
            *(("it says: no such user", LINE), SECRET),
        ),
        (
            attempt(Outcome.PASSWORD_ASKED, greeting="SSH-2.0-x"),
            "ssh-denied",
            f"{SSHD}asks for a password and does not accept public keys for user mpi",
            *((LINE,), SECRET),
        ),
    ],
)
def test_a_final_failure_is_an_error_with_what_is_to_be_done(
    failed: Attempt, check: str, message: str, evidence: tuple[str, ...], hint: str
) -> None:
    failed = replace(failed, host_key="ssh-rsa BBBB")
    found = as_error(failed, "SHA256:mine", "ssh-rsa AAAA", OURS).finding
    expected = (check, "w-0", message.format(failed.greeting), evidence)
    assert (found.check, found.host, found.message, found.evidence) == expected
    assert hint in found.hint


def why(best: Attempt, *others: Attempt, refused: float = 0.0) -> tuple[str, str]:
    more, hint = failures.why(best, [best, *others], refused)
    return more, hint or ""


@pytest.mark.parametrize("outcome", list(Outcome))
def test_a_proxy_may_be_why_there_is_no_greeting(outcome: Outcome) -> None:
    more, hint = why(attempt(outcome))
    proxied = outcome in (Outcome.SILENT, Outcome.CLOSED)
    assert hint.startswith("no SSH greeting: a proxy in front of the pod") == proxied
    assert more == (", not this job's" if outcome is Outcome.HOST_KEY_DIFFERS else "")
    assert "proxy" not in why(attempt(outcome, greeting="SSH-2.0-OpenSSH_9.2"))[1]


PORTS = [attempt(Outcome.REFUSED, 2222), attempt(Outcome.REFUSED, 2206)]
OTHER_POD = attempt(Outcome.REFUSED, 21, address="10.0.0.9")
LACKS = "for 20 s: likely the worker lacks `args: [worker]`"
FILTERED = (
    "port 22 of w-0 is filtered: its pod is there, and refuses connections to port 2206. A "
    "NetworkPolicy or firewall must let the launcher connect to port 22 of the workers"
)


@pytest.mark.parametrize(
    ("best", "others", "refused", "more", "hint"),
    [
        (attempt(Outcome.REFUSED), (), 19.9, "", "`command:` in its spec replaces it"),
        (attempt(Outcome.REFUSED), (), 20.0, f" {LACKS}", "write `args: [worker]`"),
        (attempt(Outcome.TIMEOUT), (), 20.0, "", ""),
        *(
            (attempt(outcome), (*PORTS, OTHER_POD), 0.0, ", though other ports refuse", FILTERED)
            for outcome in (Outcome.TIMEOUT, Outcome.UNREACHABLE)
        ),
        (attempt(Outcome.TIMEOUT), (OTHER_POD,), 0.0, "", ""),
        (
            attempt(Outcome.SLOW, stalled=True),
            *((), 0.0, ": are large packets lost (MTU)?", "try `ping -M do"),
        ),
        (
            attempt(Outcome.COMMAND_FAILED, stalled=True),
            *((), 0.0),
            ": do the login shell's start files hang, or are large packets lost (MTU)?",
            "before a command bash reads ~/.bashrc (zsh ~/.zshenv, csh ~/.cshrc): ",
        ),
    ],
)
def test_a_reason_is_the_outcome_and_what_it_points_to(
    best: Attempt, others: Sequence[Attempt], refused: float, more: str, hint: str
) -> None:
    found_more, found = why(best, *others, refused=refused)
    assert found_more == more
    assert hint in found
    assert bool(found) == bool(hint)


@pytest.mark.parametrize(
    ("search", "shown"),
    [
        ((), "(no search list)"),
        (("corp.example",), "(search corp.example)"),
        (("ns.svc.cluster.local", "svc.cluster.local", "cluster.local"), ""),
    ],
)
def test_the_nodes_resolver_in_a_pod_is_known_by_its_search_list(
    search: tuple[str, ...], shown: str
) -> None:
    conf = ResolvConf(("10.0.0.10",), search)
    for reason in (NoAddress.NXDOMAIN, NoAddress.NO_RECORD):
        hint = failures.unresolved(reason, conf) or ""
        assert shown in hint
        assert ("`dnsPolicy: ClusterFirstWithHostNet`" in hint) == bool(shown)
    for other in (NoAddress.TIMEOUT, NoAddress.SERVFAIL, None):
        assert failures.unresolved(other, conf) is None
