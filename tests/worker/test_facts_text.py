"""A pod's facts as a person reads them: each that is there has its row, and no other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mpiboot.core.facts import Attachment, AttachmentSource, Cpus, Fabric, Gpus, PodFacts, RdmaPort
from mpiboot.worker.facts import as_tables
from tests.fakes import plans
from tests.fakes import workers as w


def of_a_vf() -> PodFacts:
    facts = w.sriov(0).facts
    assert facts is not None
    return facts


def row(found: PodFacts, name: str) -> str:
    """What stands behind a fact's name; empty where there is no such row."""
    lines = as_tables(found).partition("\n\n")[0].splitlines()
    return next((line.removeprefix(name).strip() for line in lines if line.startswith(name)), "")


def below(found: PodFacts, head: str) -> list[list[str]]:
    """The rows of the table that begins with a head."""
    _, _, text = as_tables(found).partition(f"\n{head}")
    table = text.partition("\n\n")[0]
    return [line.split() for line in table.splitlines()[1:]]


def test_each_fact_has_its_value() -> None:
    text = as_tables(of_a_vf())
    first, links, ports, gids = text.split("\n\n")
    assert first.startswith("fact ")
    assert row(of_a_vf(), "host name") == "w-0"
    assert row(of_a_vf(), "user namespace") == "the node's"
    assert row(of_a_vf(), "home") == "/root"
    assert row(of_a_vf(), "control address") == "10.244.1.5"
    assert row(of_a_vf(), "MPI") == "none on PATH"
    assert row(of_a_vf(), "sshd") == "openssh"
    assert row(of_a_vf(), "CPUs") == "8"
    own = replace(of_a_vf(), cpus=Cpus(8, 4, 64))
    assert row(own, "CPUs") == "8 of the node's 64, the pod's own"
    shared = replace(of_a_vf(), cpus=Cpus(60, 30, 64, quota=4.0))
    assert row(shared, "CPUs") == "60 of the node's 64, shared"
    assert row(of_a_vf(), "shared memory") == "8 GiB"
    assert row(of_a_vf(), "GPUs") == "0"
    assert links.splitlines()[-1] == "net1  vf        up     1500  192.168.5.7/24"
    assert ports.splitlines()[1] == "mlx5_3:1   Ethernet  ACTIVE  net1  100   1024  opens"
    assert ports.splitlines()[2] == "(network namespace mode: shared)"
    assert gids.splitlines()[-1] == "mlx5_3:1   3      ::ffff:192.168.5.7  net1  RoCE v2"
    assert len(gids.splitlines()) == 5


@pytest.mark.parametrize(
    ("gpus", "count", "memory", "fabric"),
    [
        (Gpus(), "0", "", ""),
        (Gpus(8, "NVIDIA 2330"), "8 NVIDIA 2330", "nothing seen", ""),
        (Gpus(1, "N", peer_memory=("a", "b"), fabric="Completed"), "1 N", "a or b", "Completed"),
    ],
)
def test_of_gpus_only_what_is_there_is_told(
    gpus: Gpus, count: str, memory: str, fabric: str
) -> None:
    facts = replace(of_a_vf(), gpus=gpus)
    assert row(facts, "GPUs") == count
    assert row(facts, "RDMA to GPU memory by") == memory
    assert row(facts, "NVLink fabric") == fabric


def test_what_a_pod_lacks_is_told() -> None:
    facts = of_a_vf()
    who = replace(facts.identity, user="uid7", uid=7, gid=8, known=False, own_users=True)
    mpi = plans.MPIS["openmpi4"]
    bare = replace(facts, identity=who, control_address="", sshd="", memlock=65536, mpi=mpi)
    assert row(bare, "user  ") == "uid7 (uid 7, gid 8), made up"
    assert row(bare, "user namespace") == "the pod's own"
    assert row(bare, "control address") == "none"
    assert row(bare, "sshd") == "not started by mpiboot here"
    assert row(bare, "locked memory") == "64 KiB"
    assert row(bare, "MPI") == "mpirun (Open MPI) 4.1.4 (/usr/bin/mpirun)"
    links = (
        replace(facts.links[0], kind="", addresses=(), up=False, carrier=False),
        replace(facts.links[1], carrier=False),
    )
    assert below(replace(facts, links=links), "link ") == [
        ["lo", "-", "down", "1500", "-"],
        ["eth0", "veth", "no", "carrier", "1500", "10.244.1.5/24"],
    ]


def test_ports_of_which_nothing_is_known_and_devices_without_any_have_a_row() -> None:
    facts = of_a_vf()
    (device,) = facts.fabric.devices
    devices = (
        replace(device, ports=(RdmaPort(1),), library_error="no driver"),
        replace(device, name="mlx5_8", ports=()),
    )
    fabric = replace(facts.fabric, devices=devices, netns_mode="")
    assert below(replace(facts, fabric=fabric), "RDMA port") == [
        ["mlx5_3:1", "-", "-", "-", "-", "-", "no", "driver"],
        ["mlx5_8", "-", "-", "-", "-", "-", "-"],
        ["(network", "namespace", "mode:", "not", "known)"],
    ]
    assert "GID" not in as_tables(replace(facts, fabric=fabric))
    alone = replace(facts, fabric=replace(fabric, devices=devices[1:]))
    assert len(below(alone, "RDMA port")) == 2
    assert "no RDMA device" not in as_tables(alone)


def test_the_platforms_word_and_what_could_not_be_read_are_told() -> None:
    message = (
        Attachment(AttachmentSource.MULTUS, "net1", "0000:3b:00.2", "mlx5_3", "ns/rail"),
        Attachment(AttachmentSource.DRA),
    )
    fabric = Fabric(attachments=message, unreadable=("/sys/a: no", "/sys/b: no"))
    facts = replace(of_a_vf(), fabric=fabric)
    assert below(facts, "platform") == [
        ["multus", "net1", "0000:3b:00.2", "mlx5_3", "ns/rail"],
        ["dra", "-", "-", "-", "-"],
    ]
    assert as_tables(facts).endswith("\nnot read: /sys/a: no\n\nnot read: /sys/b: no\n")
    plain = as_tables(replace(facts, fabric=Fabric()))
    assert not {"platform", "not read", "route to", "not in this image"} & {
        word for word in ("platform", "not read", "route to", "not in this image") if word in plain
    }


def test_a_narrow_terminal_breaks_no_word() -> None:
    eth0 = replace(of_a_vf().links[1], addresses=("10.244.1.5/24", "fe80::fc:ff:fe00:1/64"))
    facts = replace(of_a_vf(), links=(eth0,))
    text = as_tables(facts, 60)
    assert max(map(len, text.splitlines())) <= 60
    assert text.split() == as_tables(facts).split()
