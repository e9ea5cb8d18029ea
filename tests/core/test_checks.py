from __future__ import annotations

import pytest

from mpiboot.core.checks import (
    BY_REFERENCE,
    CHECKS,
    WARNINGS,
    Check,
    ExitCode,
    MpibootError,
    error,
    failed,
)
from mpiboot.core.model import Level


def test_every_reference_is_used_once_and_can_be_written_in_a_manifest() -> None:
    references = [check.reference for check in CHECKS]
    assert len(references) == len(set(references)) == len(BY_REFERENCE)
    assert [name for name in references if not name.replace("-", "").isalpha()] == []
    assert [name for name in references if name != name.lower()] == []
    assert WARNINGS - BY_REFERENCE.keys() == set()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.reference)
def test_every_row_has_a_title_and_its_error_that_rows_exit_code(check: Check) -> None:
    assert check.title
    assert not check.title.endswith(".")
    assert not check.hint.endswith(".")
    assert "\n" not in check.hint + check.title
    wrong = error(check.reference, "it is so", host="w-0")
    assert (type(wrong.code), wrong.code, str(wrong)) == (int, int(check.code), "it is so")
    assert (wrong.finding.hint, wrong.others) == (check.hint, ())


def test_every_exit_code_belongs_to_a_row_and_none_can_be_mistaken_for_a_signal() -> None:
    assert {check.code for check in CHECKS} == set(ExitCode)
    assert all(0 < code < 128 and code.meaning for code in ExitCode)


def test_the_documented_codes_and_which_of_them_a_new_try_can_help_do_not_change() -> None:
    assert {int(check.code) for check in CHECKS if check.retry} == {66, 68, 69, 75}
    assert {check.reference: int(check.code) for check in CHECKS}.items() >= {
        "usage": 2,
        "role": 2,
        "hostfile-invalid": 65,
        "hostfile-missing": 66,
        "names-unresolved": 68,
        "workers-unreachable": 69,
        "bug": 70,
        "interface-missing": 72,
        "ssh-denied": 77,
        "host-key-differs": 77,
        "settings-conflict": 78,
        "slots": 78,
        "program-missing": 127,
    }.items()


def test_a_failure_has_the_rows_hint_unless_another_is_given() -> None:
    found = failed("ssh-key", "no key", host="w-0", evidence=("a", "b"))
    assert (found.level, found.check, found.host) == (Level.FAIL, "ssh-key", "w-0")
    assert (found.hint, found.evidence) == (BY_REFERENCE["ssh-key"].hint, ("a", "b"))
    assert failed("ssh-key", "no key", hint="").hint == ""


def test_another_code_and_other_findings_can_be_given() -> None:
    other = failed("ssh-denied", "w-1 too", host="w-1")
    wrong = MpibootError(failed("workers-unreachable", "w-0 is lost"), (other,), code=143)
    assert (wrong.code, wrong.others) == (143, (other,))
    assert MpibootError(failed("bug", "x"), code=0).code == 0
