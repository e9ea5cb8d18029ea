from __future__ import annotations

from dataclasses import astuple

from mpiboot.ssh.attempt import Attempt, LoginTimeouts, Outcome, Target

# How far an attempt came, from the least to the most, as a person is told it.
WITHOUT_GREETING = (
    "this pod has no socket for the address",
    "connection refused",
    "no route",
    "connection timed out",
    "connected, but no SSH greeting",
    "what answers there is not SSH",
)
WITH_GREETING = (
    "connection closed",
    "no common SSH protocol",
    "SSH login timed out",
    "another host key",
    "key refused",
    "password asked",
    "logged in, but the command failed",
    "ready",
)


def test_a_hosts_attempts_are_told_by_the_one_that_came_furthest() -> None:
    outcomes = [item.value for item in sorted(Outcome, key=lambda item: item.rank)]
    assert outcomes == [*WITHOUT_GREETING, *WITH_GREETING]


def test_which_of_them_have_seen_an_ssh_server_and_which_said_no() -> None:
    assert tuple(item.value for item in Outcome if not item.greeted) == WITHOUT_GREETING
    assert [item.value for item in Outcome if item.denied] == ["key refused", "password asked"]


def test_what_an_attempt_did_not_find_is_empty() -> None:
    target = Target("w-0", "10.0.0.1", 22, "me")
    nothing = ("", "", "", "", "", "", False, False)
    assert astuple(Attempt(target, Outcome.TIMEOUT))[2:] == nothing


def test_each_step_has_a_limit_and_each_later_one_more_time() -> None:
    limits = astuple(LoginTimeouts())
    assert [0, *limits, 60] == sorted({0, *limits, 60})
