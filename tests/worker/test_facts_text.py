"""A pod's facts as a person reads them: by the names of the JSON, without what is empty."""

from __future__ import annotations

from dataclasses import replace

from mpiboot.worker.facts import as_text
from tests.fakes import plans
from tests.fakes import workers as w


def test_values_stand_by_their_names() -> None:
    facts, mpi = w.sriov(0).facts, plans.MPIS["openmpi4"]
    assert facts is not None
    found = replace(facts, mpi=mpi, search_paths=(("PATH", "/a:/b"), ("MANPATH", "/c")))
    rows = {name: " ".join(words) for name, *words in map(str.split, as_text(found).splitlines())}
    assert rows["identity.own_users"] == "no"
    assert rows["mpi.banner"] == mpi.banner
    assert rows["shm"] == str(8 << 30)
    assert rows["search_paths"] == "PATH=/a:/b MANPATH=/c"
    assert (rows["links.1.name"], rows["links.1.addresses"]) == ("eth0", "10.244.1.5/24")
    assert rows["fabric.devices.0.name"] == "mlx5_3"
    assert rows["fabric.devices.0.ports.0.number"] == "1"
    assert not {"sshd_reason", "environment", "cpus", "program"} & rows.keys()


def test_a_narrow_terminal_breaks_no_word() -> None:
    facts = w.sriov(0).facts
    assert facts is not None
    assert max(map(len, as_text(facts, 60).splitlines())) <= 60
