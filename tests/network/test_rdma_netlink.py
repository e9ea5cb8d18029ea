from __future__ import annotations

import errno
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from mpiboot.core.facts import LinkLayer, RdmaPort
from mpiboot.network import netlink, rdma
from mpiboot.network.rdma import KernelRdma

GET, PORT_GET, SYS_GET = (5 << 10) + 1, (5 << 10) + 5, (5 << 10) + 6
ERROR, DONE, MULTI, DUMP_INTR = 2, 3, 2, 0x10

Answers = Callable[[int, bytes, int], list[bytes]]


def attribute(kind: int, value: bytes) -> bytes:
    data = struct.pack("=HH", 4 + len(value), kind) + value
    return data + bytes(-len(data) % 4)


def u32(kind: int, value: int) -> bytes:
    return attribute(kind, struct.pack("=I", value))


def u64(kind: int, value: int) -> bytes:
    return attribute(kind, struct.pack("=Q", value))


def u8(kind: int, value: int) -> bytes:
    return attribute(kind, bytes([value]))


def text(kind: int, value: str) -> bytes:
    return attribute(kind, value.encode() + b"\0")


def message(kind: int, body: bytes, sequence: int, flags: int = MULTI) -> bytes:
    return struct.pack("=IHHII", 16 + len(body), kind, flags, sequence, 0) + body


def done(sequence: int, code: int = 0) -> bytes:
    return message(DONE, struct.pack("=i", code), sequence)


def refusal(sequence: int, code: int) -> bytes:
    return message(ERROR, struct.pack("=i", -code) + bytes(16), sequence, flags=0)


def device(index: int, sequence: int, *more: bytes) -> bytes:
    body = (
        u32(1, index)
        + text(2, f"mlx5_{index}")
        + u32(3, 1)
        + u64(6, 0x0C42A10300B6E000 + index)
        + u8(14, 1)
        + text(67, "roce")
    )
    return message(GET, body + b"".join(more), sequence)


def port(sequence: int, *more: bytes) -> bytes:
    body = u32(3, 1) + u8(12, 4) + u8(13, 5) + b"".join(more)
    # Each answer has the type of GET, also one to PORT_GET.
    return message(GET, body, sequence)


def usual(kind: int, request: bytes, sequence: int) -> list[bytes]:
    if kind == GET:
        return [device(3, sequence) + done(sequence)]
    if kind == PORT_GET:
        return [port(sequence, u32(50, 7), text(51, "net1")) + done(sequence)]
    assert kind == SYS_GET
    return [message(SYS_GET, u8(66, 1), sequence, flags=0)]


@contextmanager
def kernel(answers: Answers) -> Iterator[socket.socket]:
    """Play the kernel's end of a socket: datagrams in, datagrams out."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)

    def serve() -> None:
        while request := theirs.recv(1 << 16):
            _, kind, _, sequence, _ = struct.unpack_from("=IHHII", request)
            for answer in answers(kind, request, sequence):
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


def told(answers: Answers, seconds: float = 30) -> KernelRdma:
    with kernel(answers) as channel:
        return rdma.read(netlink.Kernel(channel=channel), seconds)


def test_a_device_is_read_with_its_port() -> None:
    found = told(usual)
    assert found.mode == "shared"
    assert found.complete
    assert not found.unreadable
    (one,) = found.devices
    assert (one.index, one.name, one.protocol) == (3, "mlx5_3", "roce")
    assert one.ports == (RdmaPort(1, link_layer=LinkLayer.ETHERNET, netdev="net1"),)


def test_a_port_of_another_network_namespace_has_no_netdev() -> None:
    def answers(kind: int, request: bytes, sequence: int) -> list[bytes]:
        if kind == PORT_GET:
            return [port(sequence) + done(sequence)]
        return usual(kind, request, sequence)

    assert told(answers).devices[0].ports == (RdmaPort(1, link_layer=LinkLayer.ETHERNET),)


def test_unknown_attributes_are_passed_over() -> None:
    strange = (attribute(0, bytes(8)), attribute(900, b"new"), attribute(0x8000 | 15, u32(16, 1)))

    def answers(kind: int, request: bytes, sequence: int) -> list[bytes]:
        if kind == GET:
            return [device(3, sequence, *strange), done(sequence)]
        return usual(kind, request, sequence)

    found = told(answers)
    assert [one.name for one in found.devices] == ["mlx5_3"]
    assert not found.unreadable


def test_sixty_four_devices_come_in_many_datagrams() -> None:
    def answers(kind: int, request: bytes, sequence: int) -> list[bytes]:
        if kind == GET:
            return [
                b"".join(device(index, sequence) for index in range(first, first + 8))
                for first in range(0, 64, 8)
            ] + [done(sequence)]
        return usual(kind, request, sequence)

    found = told(answers)
    assert [one.index for one in found.devices] == list(range(64))
    assert all(one.ports for one in found.devices)


def test_the_exclusive_mode_is_told() -> None:
    def answers(kind: int, request: bytes, sequence: int) -> list[bytes]:
        if kind == SYS_GET:
            return [message(SYS_GET, u8(66, 0), sequence, flags=0)]
        return usual(kind, request, sequence)

    assert told(answers).mode == "exclusive"


@pytest.mark.parametrize("code", [errno.EINVAL, errno.EOPNOTSUPP])
def test_an_old_kernel_that_knows_no_mode_is_shared(code: int) -> None:
    def answers(kind: int, request: bytes, sequence: int) -> list[bytes]:
        if kind == SYS_GET:
            return [refusal(sequence, code)]
        return usual(kind, request, sequence)

    found = told(answers)
    assert found.mode == "shared"
    assert not found.unreadable


def test_a_device_that_goes_away_meanwhile_has_no_ports() -> None:
    def answers(kind: int, request: bytes, sequence: int) -> list[bytes]:
        if kind == PORT_GET:
            return [done(sequence, -errno.EINVAL)]  # a failed dump says so only in its end
        return usual(kind, request, sequence)

    found = told(answers)
    assert found.devices[0].ports == ()
    assert found.complete
    assert found.unreadable == ("netlink: the ports of mlx5_3: Invalid argument",)


def test_an_answer_without_an_end_is_given_up_and_nothing_more_is_asked() -> None:
    asked = []

    def answers(kind: int, request: bytes, sequence: int) -> list[bytes]:
        asked.append(kind)
        return [device(3, sequence)]

    found = told(answers, seconds=0.5)
    assert not found.devices
    assert not found.complete
    assert found.unreadable == (
        "netlink: the list of RDMA devices: the kernel's answer has no end",
    )
    assert asked == [GET]


@pytest.mark.parametrize("marked", ["entry", "end"])
def test_a_dump_that_a_change_interrupted_is_requested_anew(marked: str) -> None:
    asked = []

    def answers(kind: int, request: bytes, sequence: int) -> list[bytes]:
        asked.append(kind)
        if asked != [GET]:
            return usual(kind, request, sequence)
        dump = {"entry": device(9, sequence), "end": done(sequence)}
        flags = struct.pack("=H", MULTI | DUMP_INTR)
        dump[marked] = dump[marked][:6] + flags + dump[marked][8:]
        return list(dump.values())

    found = told(answers)
    assert [one.name for one in found.devices] == ["mlx5_3"]
    assert found.complete


def test_a_refused_list_is_an_oddity() -> None:
    def answers(kind: int, request: bytes, sequence: int) -> list[bytes]:
        return [refusal(sequence, errno.EPERM)]

    found = told(answers)
    assert not found.devices
    assert not found.complete
    assert found.unreadable[0] == "netlink: the list of RDMA devices: Operation not permitted"


def test_the_late_rest_of_another_answer_is_passed_over() -> None:
    def answers(kind: int, request: bytes, sequence: int) -> list[bytes]:
        return [device(9, sequence + 1000), *usual(kind, request, sequence)]

    assert [one.name for one in told(answers).devices] == ["mlx5_3"]


def test_a_device_whose_name_is_no_utf8_is_left_out_and_the_list_is_not_whole() -> None:
    def answers(kind: int, request: bytes, sequence: int) -> list[bytes]:
        if kind == GET:
            odd = message(GET, u32(1, 4) + attribute(2, b"\xff\xfe\0"), sequence)
            return [odd + device(3, sequence), done(sequence)]
        return usual(kind, request, sequence)

    found = told(answers)
    assert [one.name for one in found.devices] == ["mlx5_3"]
    assert not found.complete


def test_the_real_kernel_answers_or_has_no_rdma() -> None:
    try:
        found = rdma.ask_kernel()
    except OSError as error:
        assert error.errno in {errno.EPROTONOSUPPORT, errno.EAFNOSUPPORT, errno.EPERM}  # noqa: PT017
        return
    assert found.mode in {"shared", "exclusive"}
