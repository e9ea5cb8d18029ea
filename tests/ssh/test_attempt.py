from __future__ import annotations

from dataclasses import astuple

from mpiboot.ssh.attempt import LoginTimeouts, Outcome


def test_which_of_them_have_seen_an_ssh_server_and_which_said_no() -> None:
    before = [item.name for item in Outcome if not item.greeted]
    assert before == ["NO_SOCKET", "REFUSED", "UNREACHABLE", "TIMEOUT", "SILENT", "NOT_SSH"]
    assert [item.value for item in Outcome if item.denied] == ["key refused", "password asked"]


def test_each_step_has_a_limit_and_each_later_one_more_time() -> None:
    limits = astuple(LoginTimeouts())
    assert [0, *limits, 60] == sorted({0, *limits, 60})
