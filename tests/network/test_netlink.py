from __future__ import annotations

import errno
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from pyroute2 import IPRoute  # noqa: F401 - the package whole, which netlink loads in parts
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg

from mpiboot.core.facts import Link
from mpiboot.network import netlink, rdma
from mpiboot.network.netlink import link, observe
from mpiboot.network.pod import is_local, source_address
from mpiboot.network.rdma import KernelRdma

GET, PORT_GET = (5 << 10) + 1, (5 << 10) + 5
ERROR, DONE, MULTI, DUMP_INTR = 2, 3, 2, 0x10
Answers = Callable[[int, int], list[bytes]]


def attribute(kind: int, value: bytes) -> bytes:
    data = struct.pack("=HH", 4 + len(value), kind) + value
    return data + bytes(-len(data) % 4)


def number(kind: int, value: int) -> bytes:
    return attribute(kind, struct.pack("=I", value))


def message(kind: int, body: bytes, sequence: int, flags: int = MULTI) -> bytes:
    return struct.pack("=IHHII", 16 + len(body), kind, flags, sequence, 0) + body


def done(sequence: int, code: int = 0, flags: int = MULTI) -> bytes:
    return message(DONE, struct.pack("=i", code), sequence, flags)


def device(index: int, sequence: int, *more: bytes, flags: int = MULTI) -> bytes:
    name = attribute(2, f"mlx5_{index}".encode() + b"\0")
    body = number(1, index) + name + number(3, 1) + attribute(67, b"roce\0")
    return message(GET, body + b"".join(more), sequence, flags)


def port(sequence: int, *more: bytes) -> bytes:
    # Each answer has the type of GET, also one to PORT_GET.
    return message(GET, number(3, 1) + attribute(12, b"\4") + b"".join(more), sequence)


def usual(kind: int, sequence: int) -> list[bytes]:
    if kind == GET:
        return [device(3, sequence) + done(sequence)]
    assert kind == PORT_GET
    return [port(sequence, number(50, 7), attribute(51, b"net1\0")) + done(sequence)]


@contextmanager
def kernel(answers: Answers) -> Iterator[socket.socket]:
    """Play the kernel's end of a socket: datagrams in, datagrams out."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)

    def serve() -> None:
        while request := theirs.recv(1 << 16):
            _, kind, _, sequence, _ = struct.unpack_from("=IHHII", request)
            for answer in answers(kind, sequence):
                theirs.send(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield ours
    finally:
        theirs.shutdown(socket.SHUT_RD)  # a last answer may still be on its way
        thread.join()
        ours.close()
        theirs.close()


Read = Callable[[Answers], KernelRdma]


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Read:
    def told(answers: Answers) -> KernelRdma:
        with kernel(answers) as channel:
            monkeypatch.setattr(socket, "socket", lambda *_: channel)
            return rdma.query_kernel()

    return told


ONE = KernelRdma({"mlx5_3": {1: "net1"}})
STRANGE = (attribute(0, bytes(8)), attribute(900, b"new"), attribute(0x8000 | 15, number(16, 1)))
NOT_UTF8 = message(GET, number(1, 4) + attribute(2, b"\xff\xfe\0"), 0)


@pytest.mark.parametrize(
    ("to", "answer", "expected"),
    [
        (0, lambda _: [], ONE),
        # A port of another network namespace has no link.
        (PORT_GET, lambda seq: [port(seq) + done(seq)], KernelRdma({"mlx5_3": {1: ""}})),
        (GET, lambda seq: [device(3, seq, *STRANGE), done(seq)], ONE),
        # A failed dump says so only in its end.
        (
            PORT_GET,
            lambda seq: [done(seq, -errno.EINVAL)],
            KernelRdma({}, "the ports of mlx5_3: Invalid argument"),
        ),
        (
            GET,
            lambda seq: [message(ERROR, struct.pack("=i", -errno.EPERM) + bytes(16), seq, flags=0)],
            KernelRdma({}, "Operation not permitted"),
        ),
        # The late rest of another answer is passed over.
        (GET, lambda seq: [device(9, seq + 1000), device(3, seq), done(seq)], ONE),
        (
            GET,
            lambda seq: [NOT_UTF8[:8] + struct.pack("=I", seq) + NOT_UTF8[12:] + done(seq)],
            KernelRdma({r"\xff\xfe": {1: "net1"}}),
        ),
        # Many devices come in many datagrams.
        (
            GET,
            lambda seq: [
                *(b"".join(device(at + n, seq) for n in range(8)) for at in range(0, 64, 8)),
                done(seq),
            ],
            KernelRdma({f"mlx5_{index}": {1: "net1"} for index in range(64)}),
        ),
    ],
)
def test_what_the_kernel_answers(
    read: Read, to: int, answer: Callable[[int], list[bytes]], expected: KernelRdma
) -> None:
    found = read(lambda kind, seq: answer(seq) if kind == to else usual(kind, seq))
    assert found == expected


@pytest.mark.parametrize("marked", [0, 1], ids=["entry", "end"])
def test_a_dump_that_a_change_interrupted_is_requested_anew(read: Read, marked: int) -> None:
    asked = []

    def answers(kind: int, sequence: int) -> list[bytes]:
        asked.append(kind)
        if asked != [GET]:
            return usual(kind, sequence)
        flags = [MULTI, MULTI]
        flags[marked] |= DUMP_INTR
        return [device(9, sequence, flags=flags[0]), done(sequence, flags=flags[1])]

    assert read(answers) == ONE


def test_the_real_kernel_answers_or_has_no_rdma() -> None:
    try:
        found = rdma.query_kernel()
    except OSError as error:
        assert error.errno in {errno.EPROTONOSUPPORT, errno.EAFNOSUPPORT, errno.EPERM}  # noqa: PT017
        return
    assert not found.refused


# -- links --


@pytest.mark.parametrize(
    ("kind", "code", "flags", "why"),
    [
        (DONE, -errno.EPERM, MULTI, "Operation not permitted"),
        (ERROR, -errno.EINVAL, MULTI, "Invalid argument"),
        (16, 0, MULTI, "the kernel's answer has no end"),
        (DONE, 0, MULTI | DUMP_INTR, "changes interrupted the dump 20 times"),
    ],
)
def test_a_dump_that_fails_or_has_no_end_is_said(
    kind: int, code: int, flags: int, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(netlink, "TIMEOUT_S", 0.05 if "no end" in why else 60.0)
    body = struct.pack("=i", code) + bytes(20)
    with kernel(lambda _kind, sequence: [message(kind, body, sequence, flags)]) as channel:
        monkeypatch.setattr(socket, "socket", lambda *_: channel)
        found = observe()
    assert found == ((), (f"netlink: {why}: links are not known",))


def test_which_addresses_are_this_pods() -> None:
    assert (source_address("255.255.255.255"), source_address("not an address")) == ("", "")
    own = [item for link in observe()[0] if link.up for item in link.addresses]
    for address in (item.partition("/")[0] for item in own):
        assert address.startswith("fe80:") or is_local(address), address
    others = ("127.0.0.2", "192.0.2.254", "203.0.113.1", "name", "")
    assert not any(map(is_local, others))


def seen(flags: int = 0x41, kind: str = "", arp: int = 1, data: bytes = b"", key: int = 0) -> Link:
    """A link as the kernel's own bytes tell it, by another's hand."""
    made = ifinfmsg()
    made["ifi_type"], made["index"], made["flags"] = arp, 7, flags
    info: list[object] = [("IFLA_INFO_KIND", kind)]
    if key:
        info.append(("IFLA_INFO_DATA", {"attrs": [("IFLA_IPOIB_PKEY", key)]}))
    made["attrs"] = [("IFLA_IFNAME", "net1"), ("IFLA_MTU", 9000)]
    if kind:
        made["attrs"].append(("IFLA_LINKINFO", {"attrs": info}))
    made.encode()
    raw = bytes(made.data) + data
    found = netlink.linkmsg(struct.pack("=I", len(raw)) + raw[4:])
    found.decode()
    return link(found, ())


def test_a_link_that_is_up_has_a_carrier_only_where_the_kernel_says_so() -> None:
    # IFF_UP alone: the other end is not there; IFF_RUNNING is its carrier.
    flags = {0x0: (False, False), 0x1: (True, False), 0x1043: (True, True), 0x40: (False, True)}
    links = {value: seen(value) for value in flags}
    assert {value: (one.up, one.carrier) for value, one in links.items()} == flags
    assert {(one.name, one.index, one.mtu) for one in links.values()} == {("net1", 7, 9000)}


def test_links_have_the_kind_of_their_driver_or_of_their_hardware() -> None:
    kinds = [seen().kind, seen(arp=772).kind, seen(kind="vlan").kind, seen(arp=65534).kind]
    assert kinds == ["ether", "loopback", "vlan", "type 65534"]
    child, parent = seen(kind="ipoib", arp=32, key=0x8001), seen(arp=32)
    assert [(one.kind, one.pkey) for one in (child, parent)] == [("ipoib", 0x8001), ("ipoib", None)]
    # An attribute of one byte, as a bond's first one is, where IPoIB has its key.
    info = attribute(1, b"bond\0") + attribute(2, attribute(1, b"\4"))
    assert seen(data=attribute(18, info)).kind == "bond"


def test_an_address_of_any_length_is_whole() -> None:
    for length in (4, 6, 20):  # a tunnel's has 4 bytes, IPoIB's 20
        raw = bytes(range(length))
        assert seen(data=attribute(1, raw)).hardware == raw.hex(":")


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
from mpiboot.network.netlink import observe
for link in observe()[0]:
    what = (link.kind, link.up, link.carrier, link.mtu, link.addresses[:2], link.hardware)
    print(json.dumps([link.name, what]))
"""


def test_links_are_those_of_the_pod() -> None:
    if os.getuid() or not shutil.which("ip"):
        pytest.skip("needs root and ip")
    argv = ("unshare", "--net", "sh", "-ec", NAMESPACE, "sh", sys.executable, "-c", SHOW)
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    found = dict(json.loads(line) for line in done.stdout.splitlines())
    addresses = ["10.1.0.1/24", "fd00::1/64"]
    assert found["net1"] == ["veth", True, True, 9000, addresses, "02:00:00:00:00:01"]
    assert found["net2"][4][0] == "10.9.0.1/32"  # its own, and not its peer's
