from __future__ import annotations

import signal

import pytest

from mpiboot.supervisor import parent
from mpiboot.system import control_groups


@pytest.mark.parametrize(
    ("limit", "code", "reference", "message"),
    [
        (
            "this container's memory limit, 64 MiB, was reached (oom_kill 1)",
            69,
            "launcher-memory",
            "",
        ),
        ("", 137, "killed", "; the launcher's memory limit?"),
    ],
)
def test_a_child_that_was_killed_is_told_with_the_limit_that_was_reached(
    monkeypatch: pytest.MonkeyPatch, limit: str, code: int, reference: str, message: str
) -> None:
    monkeypatch.setattr(control_groups, "used_up", {4: limit}.__getitem__)
    found = parent.died(signal.SIGKILL, 4)
    assert (found.code, found.reference) == (code, reference)
    killed = f"{reference}: the process that waits for hosts was killed by SIGKILL"
    more = f" as {limit}" if limit else message
    assert found.message.startswith(f"{killed}{more}: nothing was started\n")
