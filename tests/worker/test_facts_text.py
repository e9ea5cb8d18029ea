"""A pod's facts as a person reads them: by the names of the JSON, without what is empty."""

from __future__ import annotations

from dataclasses import replace

from mpiboot.core.facts import Attachment, AttachmentSource, PodFacts, RdmaPort
from mpiboot.worker.facts import as_tables
from tests.fakes import plans
from tests.fakes import workers as w


def of_a_vf() -> PodFacts:
    facts = w.sriov(0).facts
    assert facts is not None
    return facts


def below(found: PodFacts, head: str) -> list[list[str]]:
    """The rows of the table that begins with a head, with it."""
    tables = as_tables(found).split("\n\n")
    (table,) = (text for text in tables if text.startswith(f"{head} "))
    return [line.split() for line in table.splitlines()]


def test_values_stand_by_their_names() -> None:
    mpi = plans.MPIS["openmpi4"]
    found = replace(of_a_vf(), mpi=mpi, search_paths=(("PATH", "/a:/b"), ("MANPATH", "/c")))
    rows = {name: " ".join(words) for name, *words in below(found, "fact")}
    assert rows["identity.own_users"] == "no"
    assert rows["mpi.banner"] == mpi.banner
    assert rows["shm"] == str(8 << 30)
    assert rows["search_paths"] == "PATH=/a:/b MANPATH=/c"
    assert not {"sshd_reason", "environment", "cpus", "program"} & rows.keys()


def test_records_have_a_row_each_behind_those_that_they_belong_to() -> None:
    found = of_a_vf()
    (device,) = found.fabric.devices
    closed = replace(device, name="mlx5_9", open_error="no device", ports=(RdmaPort(2),))
    said = (Attachment(AttachmentSource.MULTUS, "net1"), Attachment(AttachmentSource.DRA, pci="x"))
    fabric = replace(found.fabric, devices=(device, closed), attachments=said)
    found = replace(found, fabric=fabric)
    head, *links = below(found, "links")
    assert [row[0] for row in links] == ["lo", "eth0", "net1"]
    assert links[1][head.index("addresses")] == "10.244.1.5/24"
    assert [row[0] for row in below(found, "ports")[1:]] == ["mlx5_3:1", "mlx5_9:2"]
    assert [row[0] for row in below(found, "gids")[1:]] == [f"mlx5_3:1:{at}" for at in range(4)]
    assert below(found, "fabric.attachments")[1:] == [
        ["0", "multus", "net1", "no", "-"],
        ["1", "dra", "-", "no", "x"],
    ]
    assert "no device" in as_tables(found)


def test_a_narrow_terminal_breaks_no_word() -> None:
    eth0 = replace(of_a_vf().links[1], addresses=("10.244.1.5/24", "fe80::fc:ff:fe00:1/64"))
    facts = replace(of_a_vf(), links=(eth0,))
    assert max(map(len, as_tables(facts, 60).splitlines())) <= 60
