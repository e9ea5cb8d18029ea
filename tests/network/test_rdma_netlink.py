from __future__ import annotations

import errno
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from mpiboot.network import netlink, rdma
from mpiboot.network.rdma import KernelRdma

GET, PORT_GET = (5 << 10) + 1, (5 << 10) + 5
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
    assert kind == PORT_GET
    return [port(sequence, u32(50, 7), text(51, "net1")) + done(sequence)]


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


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Callable[[Answers], KernelRdma]:
    def read(answers: Answers) -> KernelRdma:
        with kernel(answers) as channel:
            monkeypatch.setattr(socket, "socket", lambda *_: channel)
            return rdma.query_kernel()

    return read


Told = Callable[[Answers], KernelRdma]
ONE = KernelRdma({"mlx5_3": {1: "net1"}})


def test_a_device_is_read_with_its_port(told: Told) -> None:
    assert told(usual) == ONE


def test_a_port_of_another_network_namespace_has_no_netdev(told: Told) -> None:
    def answers(kind: int, request: bytes, sequence: int) -> list[bytes]:
        if kind == PORT_GET:
            return [port(sequence) + done(sequence)]
        return usual(kind, request, sequence)

    assert told(answers) == KernelRdma({"mlx5_3": {1: ""}})


def test_unknown_attributes_are_passed_over(told: Told) -> None:
    strange = (attribute(0, bytes(8)), attribute(900, b"new"), attribute(0x8000 | 15, u32(16, 1)))

    def answers(kind: int, request: bytes, sequence: int) -> list[bytes]:
        if kind == GET:
            return [device(3, sequence, *strange), done(sequence)]
        return usual(kind, request, sequence)

    assert told(answers) == ONE


def test_sixty_four_devices_come_in_many_datagrams(told: Told) -> None:
    def answers(kind: int, request: bytes, sequence: int) -> list[bytes]:
        if kind == GET:
            return [
                b"".join(device(index, sequence) for index in range(first, first + 8))
                for first in range(0, 64, 8)
            ] + [done(sequence)]
        return usual(kind, request, sequence)

    assert told(answers).links == {f"mlx5_{index}": {1: "net1"} for index in range(64)}


def test_a_device_that_goes_away_meanwhile_has_no_ports(told: Told) -> None:
    def answers(kind: int, request: bytes, sequence: int) -> list[bytes]:
        if kind == PORT_GET:
            return [done(sequence, -errno.EINVAL)]  # a failed dump says so only in its end
        return usual(kind, request, sequence)

    assert told(answers) == KernelRdma({}, "the ports of mlx5_3: Invalid argument")


def test_an_answer_without_an_end_is_given_up_and_nothing_more_is_asked(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(netlink, "TIMEOUT_S", 0.5)
    asked = []

    def answers(kind: int, request: bytes, sequence: int) -> list[bytes]:
        asked.append(kind)
        return [device(3, sequence)]

    assert told(answers) == KernelRdma({}, "the kernel's answer has no end")
    assert asked == [GET]


@pytest.mark.parametrize("marked", ["entry", "end"])
def test_a_dump_that_a_change_interrupted_is_requested_anew(told: Told, marked: str) -> None:
    asked = []

    def answers(kind: int, request: bytes, sequence: int) -> list[bytes]:
        asked.append(kind)
        if asked != [GET]:
            return usual(kind, request, sequence)
        dump = {"entry": device(9, sequence), "end": done(sequence)}
        flags = struct.pack("=H", MULTI | DUMP_INTR)
        dump[marked] = dump[marked][:6] + flags + dump[marked][8:]
        return list(dump.values())

    assert told(answers) == ONE


def test_a_refused_list_is_an_oddity(told: Told) -> None:
    def answers(kind: int, request: bytes, sequence: int) -> list[bytes]:
        return [refusal(sequence, errno.EPERM)]

    assert told(answers) == KernelRdma({}, "Operation not permitted")


def test_the_late_rest_of_another_answer_is_passed_over(told: Told) -> None:
    def answers(kind: int, request: bytes, sequence: int) -> list[bytes]:
        return [device(9, sequence + 1000), *usual(kind, request, sequence)]

    assert told(answers) == ONE


def test_a_device_whose_name_is_no_utf8_is_readable(told: Told) -> None:
    def answers(kind: int, request: bytes, sequence: int) -> list[bytes]:
        if kind == GET:
            return [
                message(GET, u32(1, 4) + attribute(2, b"\xff\xfe\0"), sequence) + done(sequence)
            ]
        return usual(kind, request, sequence)

    assert told(answers).links == {r"\xff\xfe": {1: "net1"}}


def test_the_real_kernel_answers_or_has_no_rdma() -> None:
    try:
        found = rdma.query_kernel()
    except OSError as error:
        assert error.errno in {errno.EPROTONOSUPPORT, errno.EAFNOSUPPORT, errno.EPERM}  # noqa: PT017
        return
    assert not found.refused
