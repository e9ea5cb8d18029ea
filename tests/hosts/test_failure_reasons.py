from __future__ import annotations

from dataclasses import replace

import pytest

from mpiboot.hosts import failures
from mpiboot.hosts.dns import NoAddress, ResolvConf
from mpiboot.ssh.attempt import Attempt, Outcome, Target

TARGET = Target("w-0", "10.0.0.1", 22, "root")


def why(
    outcome: Outcome, *, stalled: bool = False, refused: float = 0.0, greeting: str = ""
) -> tuple[str, str]:
    attempt = Attempt(TARGET, outcome, stalled=stalled, greeting=greeting)
    message, hint = failures.why(attempt, [attempt], refused)
    return message, hint or ""


@pytest.mark.parametrize("outcome", list(Outcome))
def test_a_proxy_may_be_why_there_is_no_greeting(outcome: Outcome) -> None:
    message, hint = why(outcome)
    proxied = outcome in (Outcome.SILENT, Outcome.CLOSED)
    assert hint.startswith("no SSH greeting: a proxy in front of the pod") == proxied
    differs = outcome is Outcome.HOST_KEY_DIFFERS
    assert message == outcome.value + (", not this job's" if differs else "")
    assert "proxy" not in why(outcome, greeting="SSH-2.0-OpenSSH_9.2")[1]


@pytest.mark.parametrize(
    ("outcome", "cause", "words"),
    [
        (Outcome.SLOW, "are large packets lost (MTU)?", ""),
        (
            Outcome.COMMAND_FAILED,
            "do the login shell's start files hang, or are large packets lost (MTU)?",
            "before a command bash reads ~/.bashrc (zsh ~/.zshenv, csh ~/.cshrc): ",
        ),
    ],
)
def test_what_hangs_after_the_greeting_may_be_the_mtu_or_a_start_file(
    outcome: Outcome, cause: str, words: str
) -> None:
    message, hint = why(outcome, stalled=True)
    assert message == f"{outcome.value}: {cause}"
    assert hint.startswith(words)
    assert "ping -M do" in hint
    assert "MTU" not in why(outcome)[0]


def test_a_worker_that_refuses_for_twenty_seconds_may_have_a_command_of_its_own() -> None:
    assert why(Outcome.REFUSED, refused=19.9)[0] == Outcome.REFUSED.value
    message, hint = why(Outcome.REFUSED, refused=20.0)
    assert message == "connection refused for 20 s: likely the worker lacks `args: [worker]`"
    assert hint == why(Outcome.REFUSED)[1]
    assert "`command:` in its spec replaces it" in hint
    assert "write `args: [worker]`" in hint
    assert why(Outcome.TIMEOUT, refused=20.0) == (Outcome.TIMEOUT.value, "")
    assert failures.more(message, Attempt(TARGET, Outcome.REFUSED)) == (
        "; for 20 s: likely the worker lacks `args: [worker]`"
    )


@pytest.mark.parametrize("outcome", [Outcome.TIMEOUT, Outcome.UNREACHABLE])
def test_a_filtered_port_is_a_network_policys_or_a_firewalls(outcome: Outcome) -> None:
    """A port of another address that refuses says nothing of this pod."""
    probe = Attempt(TARGET, outcome)
    others = [
        Attempt(replace(TARGET, port=2222), Outcome.REFUSED),
        Attempt(replace(TARGET, port=2206), Outcome.REFUSED),
        Attempt(replace(TARGET, port=21, address="10.0.0.9"), Outcome.REFUSED),
    ]
    message, hint = failures.why(probe, [probe, *others], 0.0)
    assert message == f"{outcome.value}, though other ports refuse"
    assert hint == (
        "port 22 of w-0 is filtered: its pod is there, and refuses connections to port 2206. A "
        "NetworkPolicy or firewall must let the launcher connect to port 22 of the workers"
    )
    assert failures.more(message, probe) == "; though other ports refuse"
    assert failures.why(probe, [probe, others[-1]], 0.0) == (outcome.value, None)


@pytest.mark.parametrize(
    ("search", "told"),
    [
        ((), "(no search list)"),
        (("corp.example",), "(search corp.example)"),
        (("ns.svc.cluster.local", "svc.cluster.local", "cluster.local"), ""),
    ],
)
def test_the_nodes_resolver_in_a_pod_is_told_by_its_search_list(
    search: tuple[str, ...], told: str
) -> None:
    conf = ResolvConf(("10.0.0.10",), search)
    for reason in (NoAddress.NXDOMAIN, NoAddress.NO_RECORD):
        hint = failures.unresolved(reason, conf) or ""
        assert told in hint
        assert ("`dnsPolicy: ClusterFirstWithHostNet`" in hint) == bool(told)
    for other in (NoAddress.TIMEOUT, NoAddress.SERVFAIL, None):
        assert failures.unresolved(other, conf) is None
