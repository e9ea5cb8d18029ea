from __future__ import annotations

import pytest

from mpiboot.core.wording import lasting


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (-3, "0s"),
        (45.4, "45s"),
        (60, "1m"),
        (500, "8m20s"),
        (7500, "2h5m"),
        (3601, "1h1s"),
    ],
)
def test_a_length_of_time_is_in_its_two_largest_units(seconds: float, text: str) -> None:
    assert lasting(seconds) == text
