from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import cast

import pytest

from mpiboot.observe import links as observed_links
from mpiboot.observe.links import is_local, links, observe, source_address


def test_loopback_is_a_link_with_its_address() -> None:
    found = {link.name: link for link in links()}

    assert found["lo"].kind == "loopback"
    assert found["lo"].up
    assert found["lo"].mtu > 0
    assert "127.0.0.1/8" in found["lo"].addresses


async def test_links_can_be_listed_beside_a_running_loop() -> None:
    found = await asyncio.to_thread(links)

    assert any(link.name == "lo" for link in found)


def test_what_netlink_tells_is_whole() -> None:
    seen, _, odd = observe()
    assert seen == links()
    assert odd == ()


def test_without_a_descriptor_for_netlink_nothing_is_seen_and_that_is_said() -> None:
    program = """
import json, resource
import pyroute2, pyroute2.netlink.exceptions
from mpiboot.observe.links import observe
for most in (3, 5, 7, 256):
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, 256))
    links, routes, odd = observe()
    print(json.dumps([len(links), len(routes), odd]))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    first, *_, last = [json.loads(line) for line in done.stdout.splitlines()]
    assert first == [0, 0, ["netlink: Too many open files: links and routes are not known"]]
    # With enough of them the same process sees them all.
    assert last[0] > 0
    assert last[2] == []


def test_without_a_route_there_is_no_source() -> None:
    assert source_address("255.255.255.255") == ""
    assert source_address("not an address") == ""


def test_every_address_of_this_host_is_local() -> None:
    own = [item for link in links() if link.up for item in link.addresses]

    for address in (item.partition("/")[0] for item in own):
        if not address.startswith("fe80:"):
            assert is_local(address), address


@pytest.mark.parametrize("address", ["127.0.0.2", "192.0.2.254", "203.0.113.1", "name", ""])
def test_other_addresses_are_not_local(address: str) -> None:
    assert not is_local(address)


class Message(dict[str, int]):
    """An answer of netlink's with nothing but its head."""

    def get_attr(self, name: str) -> object:
        return {"IFLA_IFNAME": "net1", "IFLA_MTU": 9000}.get(name)

    def get_nested(self, *_: str) -> None:
        return None


@pytest.mark.parametrize(
    ("flags", "up", "carrier"),
    [
        (0x0, False, False),
        (0x1, True, False),  # IFF_UP: the other end is not there
        (0x1043, True, True),  # and IFF_RUNNING, with IFF_BROADCAST and IFF_MULTICAST
        (0x1002, False, False),
        (0x40, False, True),
    ],
)
def test_a_link_that_is_up_has_a_carrier_only_where_the_kernel_says_so(
    flags: int, tmp_path: Path, *, up: bool, carrier: bool
) -> None:
    message = Message(index=7, flags=flags, ifi_type=1)
    found = observed_links._link(cast("observed_links._Message", message), (), tmp_path)
    assert (found.name, found.index, found.mtu) == ("net1", 7, 9000)
    assert (found.up, found.carrier) == (up, carrier)
