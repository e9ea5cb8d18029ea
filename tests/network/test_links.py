from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Callable

import pytest
from pyroute2 import IPRoute  # noqa: F401 - the package whole, which netlink loads in parts
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg

from mpiboot.network import netlink
from mpiboot.network.netlink import link, observe
from mpiboot.network.pod import is_local, source_address
from tests.network.test_rdma_netlink import kernel


def test_loopback_is_a_link_with_its_address() -> None:
    found = {link.name: link for link in observe()[0]}
    assert found["lo"].kind == "loopback"
    assert found["lo"].up
    assert found["lo"].mtu > 0
    assert "127.0.0.1/8" in found["lo"].addresses


async def test_links_can_be_listed_beside_a_running_loop() -> None:
    for seen, odd in (observe(), await asyncio.to_thread(observe)):
        assert any(link.name == "lo" for link in seen)
        assert odd == ()


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (lambda sequence: message(3, sequence, -errno.EPERM), "Operation not permitted"),
        (lambda sequence: message(2, sequence, -errno.EINVAL), "Invalid argument"),
        (lambda sequence: message(16, sequence, 0), "the kernel's answer has no end"),
        (lambda sequence: message(3, sequence, 0, 0x12), "changes interrupted the dump 20 times"),
    ],
)
def test_a_dump_that_fails_or_has_no_end_is_said(
    answer: Callable[[int], bytes], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(netlink, "TIMEOUT_S", 0.05 if "no end" in why else 60.0)
    with kernel(lambda _kind, _request, sequence: [answer(sequence)]) as channel:
        monkeypatch.setattr(socket, "socket", lambda *_: channel)
        found = observe()
    assert found == ((), (f"netlink: {why}: links are not known",))


def message(kind: int, sequence: int, code: int, flags: int = 2) -> bytes:
    """A message of a dump: its end, an error, or a link with no attributes."""
    body = struct.pack("=i", code) + bytes(20)
    return struct.pack("=IHHII", 16 + len(body), kind, flags, sequence, 0) + body


def test_without_a_descriptor_for_netlink_nothing_is_seen_and_that_is_said() -> None:
    program = """
import json, resource
from mpiboot.network.netlink import observe
for most in (3, 256):
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, 256))
    links, odd = observe()
    print(json.dumps([len(links), odd]))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    first, *_, last = [json.loads(line) for line in done.stdout.splitlines()]
    assert first == [0, ["netlink: Too many open files: links are not known"]]
    # With enough of them the same process sees them all.
    assert last[0] > 0
    assert last[1] == []


def test_without_a_route_there_is_no_source() -> None:
    assert source_address("255.255.255.255") == ""
    assert source_address("not an address") == ""


def test_every_address_of_this_host_is_local() -> None:
    own = [item for link in observe()[0] if link.up for item in link.addresses]
    for address in (item.partition("/")[0] for item in own):
        if not address.startswith("fe80:"):
            assert is_local(address), address


@pytest.mark.parametrize("address", ["127.0.0.2", "192.0.2.254", "203.0.113.1", "name", ""])
def test_other_addresses_are_not_local(address: str) -> None:
    assert not is_local(address)


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
    flags: int, *, up: bool, carrier: bool
) -> None:
    message = ifinfmsg()
    message["ifi_type"], message["index"], message["flags"] = 1, 7, flags
    message["attrs"] = [("IFLA_IFNAME", "net1"), ("IFLA_MTU", 9000)]
    message.encode()
    found = link(message, ())
    assert (found.name, found.index, found.mtu) == ("net1", 7, 9000)
    assert (found.up, found.carrier) == (up, carrier)


NAMESPACE = """
ip link set lo up
ip link add net1 type veth peer name net2
ip addr add 10.1.0.1/24 dev net1
ip addr add 10.9.0.1 peer 10.9.0.2/32 dev net2
ip addr add fd00::1/64 dev net1 nodad
ip link set net1 mtu 9000 address 02:00:00:00:00:01 up
ip link set net2 up
exec "$@"
"""
SHOW = """
import json
from dataclasses import asdict
from mpiboot.network.netlink import observe
print(json.dumps(list(map(asdict, observe()[0]))))
"""


def test_links_are_those_of_the_pod() -> None:
    if os.getuid() or not shutil.which("ip"):
        pytest.skip("needs root and ip")
    argv = ("unshare", "--net", "sh", "-ec", NAMESPACE, "sh", sys.executable, "-c", SHOW)
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    seen = json.loads(done.stdout)
    by_name = {link["name"]: link for link in seen}
    net1, net2 = by_name["net1"], by_name["net2"]
    assert (net1["kind"], net1["up"], net1["carrier"], net1["mtu"]) == ("veth", True, True, 9000)
    assert net1["addresses"][:2] == ["10.1.0.1/24", "fd00::1/64"]
    assert net1["hardware"] == "02:00:00:00:00:01"
    assert net2["addresses"][0] == "10.9.0.1/32"  # its own, and not its peer's
