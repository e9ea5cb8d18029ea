"""What hosts that are not ready lack, when a line of it is due, and what failed logins mean."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from mpiboot.core import log
from mpiboot.core.facts import Host
from mpiboot.core.model import LogFormat
from mpiboot.hosts import progress
from mpiboot.hosts.dns import NoAddress, ResolvConf
from mpiboot.hosts.progress import HostState, Stage, final, finding, line, states
from mpiboot.ssh.attempt import Attempt, Outcome, Target

if TYPE_CHECKING:
    from mpiboot.ssh.login import Login


def of(*names: str, reason: str = "") -> tuple[HostState, ...]:
    made = states([Host(name) for name in names])
    for state in made:
        state.reason = reason
    return made


def numbered(*stages: tuple[Stage, str], more: int = 0) -> tuple[HostState, ...]:
    """Hosts in these stages for these reasons, and so many that are ready."""
    known = of(*(f"w-{number}.job.ns.svc" for number in range(len(stages) + more)))
    for state, (stage, reason) in itertools.zip_longest(known, stages, fillvalue=(Stage.READY, "")):
        assert isinstance(state, HostState)
        state.stage, state.reason = stage, reason
    return known


REFUSED = Stage.SSH, "connection refused"
NO_NAME = Stage.DNS, "NXDOMAIN"
WAITING = "hosts ready, waiting for"


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        (
            numbered(REFUSED, NO_NAME, more=62),
            f"62/64 {WAITING} SSH on w-0 (connection refused), DNS for w-1 (NXDOMAIN)",
        ),
        (
            numbered(*[NO_NAME] * 1000),
            f"0/1000 {WAITING} DNS for w-0, w-1, w-2 and 997 more (NXDOMAIN)",
        ),
        (numbered(more=1), "1/1 hosts ready"),
        (numbered((Stage.KUBECTL, "gone")), f"0/1 {WAITING} kubectl exec on w-0 (gone)"),
        (  # who is furthest, then the largest group
            numbered(
                *((Stage.DNS, "a"), (Stage.DNS, "b"), (Stage.DNS, "b"), (Stage.SSH, "c")),
                *((Stage.READY, ""), (Stage.SSH, "")),
            ),
            f"1/6 {WAITING} SSH on w-3 (c), SSH on w-5, DNS for w-1, w-2 (b), DNS for w-0 (a)",
        ),
        (
            numbered(*((Stage.DNS, f"{number}") for number in range(10))),
            f"0/10 {WAITING} {', '.join(f'DNS for w-{n} ({n})' for n in range(4))} and 6 more",
        ),
    ],
)
def test_a_line_has_how_many_are_ready_and_what_the_others_wait_for(
    known: tuple[HostState, ...], expected: str
) -> None:
    assert line(known) == expected


def test_a_finding_has_as_much_as_is_known() -> None:
    state = of("w-0.job")[0]
    assert "headless Service" in finding(state).hint
    state.reason, state.detail, state.hint = "NXDOMAIN", "NXDOMAIN (asked 10.96.0.10)", "do this"
    found = finding(state)
    assert (found.check, found.host, found.hint) == ("names-unresolved", "w-0.job", "do this")
    assert found.message == "DNS: NXDOMAIN (asked 10.96.0.10)"


async def test_a_line_is_due_after_a_second_and_ever_less_often(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """While nothing changes the same one comes again after 90 seconds; a step at a time."""
    log.configure(form=LogFormat.JSON)
    now, known = [0.0], states([Host("w-0")])

    async def sleep(pause: float) -> None:
        now[0] += pause
        known[0].reason = f"step {now[0]:.2f}" if now[0] < 300 else ""
        if now[0] > 1000:
            raise TimeoutError

    monkeypatch.setattr(progress, "asyncio", SimpleNamespace(sleep=sleep))
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now[0]))
    with pytest.raises(TimeoutError):
        await progress.report(known, lambda: 1000 - now[0])
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    logged = [1000 - line["gives_up_in"] for line in lines]
    gaps = [round(after - before) for before, after in itertools.pairwise(logged)]
    assert (logged[:3], max(gaps), gaps[-2:]) == ([1.0, 2.0, 3.0], 28 * 4, [28 * 4] * 2)
    assert len(lines) < 45
    step = "0/1 hosts ready, waiting for DNS for w-0 (step 1.00); gives up in 16m39s"
    assert lines[0]["message"] == step


OURS, THEIRS, THIRD = "SHA256:ours", "SHA256:theirs", "SHA256:third"
LOGIN = cast(
    "Login",
    SimpleNamespace(host_fingerprint=OURS, fingerprint="SHA256:mine", public_line="ssh-rsa AAAA"),
)
TARGET = Target("w-0", "10.0.0.1", 22, "mpi")


def attempt(
    outcome: Outcome, port: int = 22, key: str = "", *, address: str = "10.0.0.1", **more: object
) -> Attempt:
    made = Attempt(replace(TARGET, port=port, address=address), outcome, fingerprint=key)
    return replace(made, **more)  # type: ignore[arg-type]


NODE = attempt(Outcome.HOST_KEY_DIFFERS, key=THEIRS, greeting="SSH-2.0-OpenSSH_9.2")
STOCK = replace(NODE, welcome=True)
OTHER_JOB = replace(NODE, greeting="SSH-2.0-mpiboot")
NOBODY = attempt(Outcome.REFUSED, 2222)
ELSEWHERE = attempt(Outcome.REFUSED, address="fd00::1")


@pytest.mark.parametrize(
    ("attempts", "which"),
    [
        *(
            ([attempt(outcome), NOBODY], None)
            for outcome in Outcome
            if outcome not in (Outcome.KEY_REFUSED, Outcome.PASSWORD_ASKED)
        ),
        # May change by waiting: ours may come up beside the node's.
        ([NODE, NOBODY], None),
        ([NODE, attempt(Outcome.SILENT, 2222)], None),
        ([NODE, NOBODY, ELSEWHERE], None),
        ([attempt(Outcome.KEY_REFUSED, key=THEIRS), NOBODY], None),
        # Waiting can't change these.
        ([NODE], 0),  # nobody else is there
        ([NODE, ELSEWHERE, attempt(Outcome.CLOSED, 2222)], 0),  # all ports of one address
        ([STOCK, NOBODY], 0),
        ([OTHER_JOB, NOBODY], 0),
        ([NODE, attempt(Outcome.HOST_KEY_DIFFERS, 2222, THIRD)], 0),
        ([NOBODY, attempt(Outcome.KEY_REFUSED, key=OURS)], 1),
        ([NOBODY, attempt(Outcome.PASSWORD_ASKED, key=OURS)], 1),
        ([attempt(Outcome.KEY_REFUSED, key=THEIRS), attempt(Outcome.CLOSED, 2222)], 0),
    ],
)
def test_a_failure_is_final_where_waiting_cannot_change_it(
    attempts: list[Attempt], which: int | None
) -> None:
    found = final(attempts, LOGIN)
    if which is None:
        assert found is None
    else:
        target = attempts[which].target
        assert found is not None
        assert f"({target.address} port {target.port}, " in found.message


def test_ports_with_the_same_result_are_one() -> None:
    attempts = [
        *(attempt(Outcome.CLOSED, message="bye"), attempt(Outcome.REFUSED, 9), NOBODY, NODE),
        attempt(Outcome.CLOSED, address="10.0.0.2"),
    ]
    state = of("w-0")[0]
    progress.note_failure(state, attempts[-1], attempts, 0.0)
    assert state.detail.startswith(
        "connection closed (bye) on 10.0.0.1 port 22; connection refused on 10.0.0.1 ports 9, "
        f"2222; another host key ({THEIRS}) on 10.0.0.1 port 22; connection closed on 10.0.0.2 "
        "port 22"
    )


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
    found = final([replace(failed, host_key="ssh-rsa BBBB")], LOGIN)
    assert found is not None
    expected = (check, "w-0", message.format(failed.greeting), evidence)
    assert (found.check, found.host, found.message, found.evidence) == expected
    assert hint in found.hint


LACKS = ": likely the worker lacks `args: [worker]`"
STALLED = ": are large packets lost (MTU), or do the login shell's start files hang?"
FILTERED = "A NetworkPolicy or firewall must let the launcher connect to port 22 of the workers"


@pytest.mark.parametrize(
    ("best", "waited", "more", "hint"),
    [
        (attempt(Outcome.REFUSED), 19.9, "", "`command:` in its spec replaces it"),
        (attempt(Outcome.REFUSED), 20.0, LACKS, "write `args: [worker]`"),
        *(
            (attempt(outcome), 20.0, "", FILTERED)
            for outcome in (Outcome.TIMEOUT, Outcome.UNREACHABLE)
        ),
        *(
            (attempt(outcome, stalled=True), 0.0, STALLED, "try `ping -M do")
            for outcome in (Outcome.SLOW, Outcome.COMMAND_FAILED)
        ),
        *(
            (attempt(outcome), 0.0, "", "no SSH greeting: a proxy in front of the pod")
            for outcome in (Outcome.SILENT, Outcome.CLOSED)
        ),
        (attempt(Outcome.CLOSED, greeting="SSH-2.0-x"), 0.0, "", "`ssh -v -p 22 mpi@w-0`"),
        (attempt(Outcome.HOST_KEY_DIFFERS), 0.0, ", not this job's", ""),
    ],
)
def test_a_reason_is_the_outcome_and_what_it_points_to(
    best: Attempt, waited: float, more: str, hint: str
) -> None:
    state = of("w-0")[0]
    progress.note_failure(state, best, [best], waited)
    assert state.reason == best.outcome.value + more
    assert hint in (state.hint or "")


CLUSTER = ("ns.svc.cluster.local", "svc.cluster.local", "cluster.local")


@pytest.mark.parametrize(
    ("search", "shown"),
    [((), "(no search list)"), (("corp.example",), "(search corp.example)"), (CLUSTER, "")],
)
@pytest.mark.parametrize("reason", NoAddress)
def test_the_nodes_resolver_in_a_pod_is_known_by_its_search_list(
    search: tuple[str, ...], shown: str, reason: NoAddress
) -> None:
    hint = progress.dns_hint(reason, ResolvConf(("10.0.0.10",), search)) or ""
    hinted = bool(shown) and reason in (NoAddress.NXDOMAIN, NoAddress.NO_RECORD)
    assert ("`dnsPolicy: ClusterFirstWithHostNet`" in hint) == hinted
    assert not hinted or shown in hint
