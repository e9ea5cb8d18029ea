from __future__ import annotations

import pytest

from mpiboot.core.checks import AGAIN, BY_REFERENCE, CHECKS, WARNINGS, Check, error


def test_the_table_and_its_exit_codes() -> None:
    references = [check.reference for check in CHECKS]
    assert len(references) == len(BY_REFERENCE)
    assert [name for name in references if not name.replace("-", "").islower()] == []
    assert BY_REFERENCE.keys() >= WARNINGS
    assert all(0 < check.code < 128 for check in CHECKS)  # 128 and more: a signal
    assert {check.code for check in CHECKS if check.code in AGAIN} == {66, 68, 69, 75}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.reference)
def test_every_row_is_whole_and_its_error_has_that_rows_exit_code(check: Check) -> None:
    assert check.title
    assert not check.title.endswith(".")
    assert not check.hint.endswith(".")
    assert check.hint or check.reference in ("slots", "settings-conflict")
    assert "\n" not in check.hint + check.title
    wrong = error(check.reference, "it is so", host="w-0")
    assert (type(wrong.code), wrong.code, str(wrong)) == (int, check.code, "it is so")
    assert (wrong.finding.hint, wrong.others) == (check.hint, ())
