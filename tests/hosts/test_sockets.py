from __future__ import annotations

import pytest

from mpiboot.hosts import pacing


@pytest.mark.parametrize(
    ("files", "connections", "look_ups"),
    [(1 << 17, 128, 130784), (1024, 128, 736), (320, 128, 32), (318, 127, 32), (128, 32, 32)],
)
def test_logins_and_look_ups_share_the_files_that_may_be_open(
    files: int, connections: int, look_ups: int
) -> None:
    """A login has two of them, and 32 are for all that is neither."""
    assert pacing.most_connections(files) == connections
    assert pacing.lookup_sockets(files) == look_ups
    assert 2 * connections + look_ups + 32 == files


def test_one_host_at_a_time_is_always_tried() -> None:
    assert (pacing.most_connections(10), pacing.lookup_sockets(10)) == (1, 1)
