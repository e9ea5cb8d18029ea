"""How many files a process may have open, whatever its limits are."""

from __future__ import annotations

import resource

import pytest

from mpiboot.system import os_calls

NO_LIMIT = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("soft", "hard", "most"),
    [
        (1024, 4096, 4096),
        (1024, 1 << 20, 1 << 17),
        (1 << 18, 1 << 20, 1 << 18),  # never less than it was
        (1024, NO_LIMIT, 1 << 17),
        (NO_LIMIT, NO_LIMIT, 1 << 17),
    ],
)
def test_the_soft_limit_is_raised_as_far_as_the_hard_one_and_never_lowered(
    soft: int, hard: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda what, limits: raised.append((what, limits)))
    assert os_calls.most_open_files() == most
    os_calls.allow_most_open_files()
    assert raised == ([] if soft == NO_LIMIT else [(resource.RLIMIT_NOFILE, (most, hard))])


def test_a_sandbox_that_refuses_leaves_the_limit_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def refuse(_: int, limits: tuple[int, int]) -> None:
        asked.append(limits)
        raise OSError

    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 4096))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    os_calls.allow_most_open_files()
    assert asked == [(4096, 4096)]
