"""How many ranks are left, of what each host tells."""

from __future__ import annotations

from mpiboot.after_job.stop_ranks import Count


def test_sums_are_told_when_every_host_has_told_its_number() -> None:
    count = Count(["", "w-0", "w-1"])
    assert count.take("", 0) is None
    assert count.take("w-0", 2) is None
    assert count.take("w-1", 2) == (4, 4)
    assert count.take("w-1", 2) is None
    assert count.take("w-0", 1) == (3, 4)


def test_a_rank_that_died_before_others_were_counted_is_missed() -> None:
    count = Count(["w-0", "w-1"])
    assert count.take("w-0", 2) is None
    assert count.take("w-0", 0) is None
    assert count.take("w-1", 2) == (2, 4)


def test_a_host_whose_ranks_have_ended_is_not_waited_for() -> None:
    count = Count(["w-0", "w-1"])
    count.take("w-0", 0)
    assert count.take("w-1", 1) == (1, 1)
    assert count.take("w-1", 0) == (0, 1)
