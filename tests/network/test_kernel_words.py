"""What NCCL and UCX mean by a list, a table."""

from __future__ import annotations

import pytest

from mpiboot.core.facts import GidType
from mpiboot.network import nccl
from tests.fakes import workers as w


@pytest.mark.parametrize(
    ("value", "left"),
    [
        ("", ["eth0", "eth1", "lo"]),
        ("e", ["eth0", "eth1", "lo"]),  # one character counts as none
        ("^", ["eth0", "eth1", "lo"]),
        ("et", ["eth0", "eth1"]),
        ("=eth0", ["eth0"]),
        ("=eth", []),
        ("^=eth0", ["eth1", "lo"]),
        ("^eth", ["lo"]),
        ("eth1:2,lo", ["eth1", "lo"]),
        (",,lo,", ["lo"]),
        ("eth0,^lo", ["eth0"]),
        ("eth7, lo", []),
    ],
)
def test_what_a_list_for_nccl_leaves(value: str, left: list[str]) -> None:
    assert list(nccl.matching(value, ["eth0", "eth1", "lo"])) == left


def test_ucx_takes_the_newer_kind_then_ipv4_then_what_is_not_link_local() -> None:
    one = GidType.ROCE_V1.value
    entries = (
        w.gid(0, "fe80::1", "net1"),
        w.gid(1, "fd00::1", "net1"),
        w.gid(2, "10.0.0.1", "net1", one),
        w.gid(3, "10.0.0.2", "net1"),
        w.gid(4, "10.0.0.3", "net1"),
        w.gid(5, "::", "net1"),
    )
    for count, index in ((6, 3), (3, 1), (1, 0)):
        assert nccl.ucx_index(w.port(entries[:count])) == index
    assert nccl.ucx_index(w.port(entries[2:3])) == 2
    assert nccl.ucx_index(w.port(entries[5:])) is None
