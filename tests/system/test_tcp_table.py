from __future__ import annotations

import sys

import pytest

from mpiboot.core.addresses import address_of

pytestmark = pytest.mark.skipif(sys.byteorder != "little", reason="the words are of such a machine")


@pytest.mark.parametrize(
    ("word", "address"),
    [
        ("0100007F", "127.0.0.1"),
        ("0B00F40A", "10.244.0.11"),
        ("00000000000000000000000001000000", "::1"),
        ("0000000000000000FFFF00000B00F40A", "10.244.0.11"),
        ("000000FD000000000000000007000000", "fd00::7"),
    ],
)
def test_addresses_are_read_in_this_machines_byte_order(word: str, address: str) -> None:
    assert address_of(word) == address
