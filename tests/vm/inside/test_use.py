"""A program that uses RDMA gets exactly what was decided, and its bytes cross the decided link."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from mpiboot.core.facts import PodFacts
from mpiboot.core.settings import Settings
from tests.fakes import networks
from tests.vm.inside.machine import (
    active,
    devinfo,
    has_gid,
    others_gid,
    run,
    seen,
    wait_for,
    worker,
)

PORT = 18515
# The newest NCCL that has to be told the index: what is right is then in a variable.
SETTINGS = Settings(nccl_version="2.20.5")


@pytest.fixture
def wire() -> Iterator[None]:
    """Two devices at the two ends of a cable, each with an address of one subnet.

    Soft-RoCE of this kernel sends from the machine's first namespace only, so both ends stay
    there, and what would be local traffic is sent over the cable by rules on the leaving link.
    A pod's address stands in the first device's table before its own: the index is not the usual.
    """
    run("ip link add rail0 type veth peer name rail1")
    for end in (0, 1):
        run(f"ip link set rail{end} mtu 4200 up")
        run(f"rdma link add rxe{end} type rxe netdev rail{end}")
        for name in (f"rail{end}", "all"):
            folder = Path("/proc/sys/net/ipv4/conf") / name
            (folder / "accept_local").write_text("1")
            (folder / "rp_filter").write_text("0")
    for end in (0, 1):
        active(f"rxe{end}")
    others_gid()
    for end in (0, 1):
        run(f"ip address add 10.9.0.{end + 1}/24 dev rail{end}")
        has_gid(f"rxe{end}", f"::ffff:10.9.0.{end + 1}")
        run(f"ip rule add pref {10 + end} oif rail{end} lookup {100 + end}")
        run(f"ip route add 10.9.0.{2 - end} dev rail{end} table {100 + end}")
    run("ip rule add pref 1000 lookup local")
    run("ip rule delete pref 0")
    yield
    run("ip rule add pref 0 lookup local")
    for preference in (10, 11, 1000):
        run(f"ip rule delete pref {preference}")


def as_pod(found: PodFacts, link: str) -> PodFacts:
    """The facts of a pod that has this one of the two links, as each end would be in a cluster."""
    kept = tuple(item for item in found.links if item.name in {"lo", link})
    devices = tuple(
        replace(
            item,
            ports=tuple(
                replace(port, netdev=port.netdev if port.netdev == link else "")
                for port in item.ports
            ),
        )
        for item in found.fabric.devices
    )
    fabric = replace(found.fabric, devices=devices)
    return replace(found, control_address="", links=kept, fabric=fabric)


def index_of(address: str, name: str) -> str:
    (found,) = [index for index, gid, _ in devinfo(name).gids if gid == address]
    return str(found)


def sent() -> int:
    (link,) = json.loads(run("ip -j -s link show dev rail0"))
    return int(link["stats64"]["tx"]["bytes"])


def pingpong(values: Mapping[str, str], index: str, *peer: str) -> subprocess.Popen[str]:
    """Start one end of libibverbs' example program on what mpiboot's variables name."""
    name, _, port = values["UCX_NET_DEVICES"].partition(":")
    words = ("-d", name, "-i", port, "-g", index, "-s", "65536", "-n", "20", "-p", str(PORT))
    return subprocess.Popen(
        ["ibv_rc_pingpong", "--chk", *words, *peer],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def listens() -> bool:
    tables = [Path("/proc/net") / name for name in ("tcp", "tcp6")]
    return any(f":{PORT:04X} " in table.read_text() for table in tables)


def ended(*programs: subprocess.Popen[str]) -> list[tuple[int, str]]:
    """Give each one's status and words; once one has failed, or after a minute, kill the rest."""
    with suppress(AssertionError):
        wait_for(lambda: any(item.poll() for item in programs) or all(map(_over, programs)))
    done = []
    for program in programs:
        if not _over(program):
            program.kill()
        message, _ = program.communicate()
        done.append((program.returncode, message))
    return done


def _over(program: subprocess.Popen[str]) -> bool:
    return program.poll() is not None


def both_ends(
    first: tuple[Mapping[str, str], str], second: tuple[Mapping[str, str], str]
) -> list[tuple[int, str]]:
    server = pingpong(*first)
    with suppress(AssertionError):
        wait_for(lambda: listens() or server.poll() is not None)
    return ended(server, pingpong(*second, "127.0.0.1"))


def test_a_verbs_program_runs_on_the_device_and_index_of_each_worker(wire: None) -> None:
    found = seen()
    workers = [
        worker(as_pod(found, f"rail{end}"), f"10.99.0.{end + 1}", f"w-{end}") for end in (0, 1)
    ]
    decided = networks.decide(workers, SETTINGS)
    mine = [{**decided.common, **decided.per_host[f"w-{end}"]} for end in (0, 1)]
    indexes = [values["NCCL_IB_GID_INDEX"] for values in mine]
    # An entry before the right one is another pod's, which NCCL would take by itself.
    theirs = networks.decide([worker(seen("other"), "10.99.0.9")], SETTINGS).common
    assert theirs["NCCL_IB_GID_INDEX"] == index_of("::ffff:10.9.0.77", "rxe0")
    assert int(theirs["NCCL_IB_GID_INDEX"]) < int(indexes[0])
    assert [values["UCX_NET_DEVICES"] for values in mine] == ["rxe0:1", "rxe1:1"]
    assert indexes == [index_of(f"::ffff:10.9.0.{end + 1}", f"rxe{end}") for end in (0, 1)]
    before = sent()
    done = both_ends((mine[0], indexes[0]), (mine[1], indexes[1]))
    assert [status for status, _ in done] == [0, 0], done
    for number, (_, message) in enumerate(done):
        assert "local address:  LID 0x0000" in message
        assert f"GID ::ffff:10.9.0.{number + 1}\n" in message
    assert sent() - before > 20 * 65536
