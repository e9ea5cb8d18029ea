from __future__ import annotations

import pytest

from mpiboot.core.checks import CHECKS, Check, failed
from mpiboot.core.errors import MpibootError, error


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.reference)
def test_an_error_carries_the_exit_code_of_its_row(check: Check) -> None:
    wrong = error(check.reference, "said so", host="w-0")
    assert wrong.code == int(check.code)
    assert type(wrong.code) is int
    assert str(wrong) == "said so"
    assert wrong.finding.hint == check.hint
    assert wrong.others == ()


def test_another_code_and_other_findings_can_be_given() -> None:
    other = failed("ssh-denied", "w-1 too", host="w-1")
    wrong = MpibootError(failed("workers-unreachable", "w-0 is lost"), (other,), code=143)
    assert wrong.code == 143
    assert wrong.others == (other,)


def test_a_code_of_zero_is_kept_as_given() -> None:
    assert MpibootError(failed("bug", "x"), code=0).code == 0
