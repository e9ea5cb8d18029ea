from __future__ import annotations

import pytest

from mpiboot.core.checks import BY_REFERENCE, CHECKS, Check, ExitCode, failed
from mpiboot.core.model import Level


def test_every_reference_is_used_once_and_can_be_written_in_a_manifest() -> None:
    references = [check.reference for check in CHECKS]
    assert len(references) == len(set(references)) == len(BY_REFERENCE)
    for reference in references:
        assert reference == reference.lower()
        assert reference.replace("-", "").isalpha()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.reference)
def test_every_row_says_what_is_checked_and_for_whom(check: Check) -> None:
    assert check.title
    assert not check.title.endswith(".")
    assert check.roles
    assert not check.hint.endswith(".")
    assert "\n" not in check.hint + check.title


def test_every_exit_code_belongs_to_a_row_and_none_can_be_mistaken_for_a_signal() -> None:
    assert {check.code for check in CHECKS} == set(ExitCode)
    assert len({int(code) for code in ExitCode}) == len(ExitCode)
    assert all(0 < code < 128 for code in ExitCode)


def test_codes_tell_a_failure_policy_whether_to_try_again() -> None:
    assert {int(check.code) for check in CHECKS if check.retry} == {66, 68, 69, 75}


def test_the_documented_codes_do_not_change() -> None:
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
    row = BY_REFERENCE["ssh-key"]
    found = failed("ssh-key", "no key", host="w-0", evidence=("a", "b"))
    assert (found.level, found.check, found.host) == (Level.FAIL, "ssh-key", "w-0")
    assert found.hint == row.hint
    assert found.evidence == ("a", "b")
    assert failed("ssh-key", "no key", hint="").hint == ""


def test_a_reference_that_no_row_has_is_an_error_at_once() -> None:
    with pytest.raises(KeyError):
        failed("no-such-check", "x")
