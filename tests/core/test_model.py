"""What every record is where little is known, and what each says of itself."""

from __future__ import annotations

from dataclasses import MISSING, fields, replace

import pytest

from mpiboot.core.checks import Check, ExitCode
from mpiboot.core.model import (
    NO_FABRIC,
    NO_GPUS,
    Attachment,
    AttachmentSource,
    Fabric,
    Finding,
    Gid,
    GidType,
    Gpus,
    Host,
    Hostfile,
    Identity,
    Level,
    Link,
    Mesh,
    NoFacts,
    RdmaDevice,
    Role,
    Route,
    Worker,
)
from tests.fakes import plans


def optional(record: object) -> dict[str, object]:
    """What a record has in the fields that nobody filled."""
    found = fields(record)  # type: ignore[arg-type]
    return {item.name: getattr(record, item.name) for item in found if item.default is not MISSING}


def test_a_bare_host_is_one_slot_that_nobody_gave() -> None:
    assert optional(Host("w-0")) == {
        "slots": 1,
        "slots_given": False,
        "max_slots": None,
        "user": "",
        "binding": "",
        "line": 0,
        "notes": (),
    }


def test_comments_make_no_other_host_and_slots_do() -> None:
    host = Host("w-0", 2)
    assert replace(host, notes=("# rack 7",)) == host
    assert replace(host, slots=3) != host
    assert Hostfile("/x", "default", (host, Host("w-1"))).slots == 3
    assert Hostfile("/x", "default", ()).source is None


def test_a_finding_is_of_this_pod_until_a_host_is_named() -> None:
    found = Finding("slots", Level.WARN, "odd")
    assert optional(found) == {"host": "", "evidence": (), "hint": "", "hosts": ()}
    assert found.where == ""
    assert replace(found, host="w-0").where == "w-0"
    several = replace(found, hosts=("w-0", "w-1"))
    assert several.where == "2 hosts (w-0, w-1)"


def test_a_link_is_there_and_stands_on_no_other_until_the_kernel_says_so() -> None:
    assert optional(Link(1, "eth0", "veth", up=True, mtu=1500, addresses=())) == {
        "hardware": "",
        "pci": "",
        "pkey": None,
        "carrier": True,
        "lower": 0,
        "dev_port": 0,
        "tentative": (),
        "duplicate": (),
    }


def test_of_a_pod_nothing_of_its_fabric_mesh_or_gpus_may_be_known() -> None:
    facts = plans.worker(Host("w-0"), 0, None).facts
    assert facts is not None
    assert optional(facts) == {
        "fabric": NO_FABRIC,
        "mesh": None,
        "sshd_reason": "",
        "memory_refused": "",
        "gpus": NO_GPUS,
        "cpus": facts.cpus,
        "parameters": (),
        "search_paths": (),
    }
    empty = {"count": 0, "kind": "", "lost": 0, "peer_memory": (), "fabric": ""}
    assert optional(NO_GPUS) == empty == optional(Gpus())
    assert not Identity(0, 0, "r", "/", "", known=True, capabilities=0).own_users
    assert Mesh("istio", ("it says so",)).evidence == ("it says so",)


def test_of_a_route_and_a_gid_no_more_than_they_are_may_be_known() -> None:
    assert optional(Route("0.0.0.0/0", "eth0")) == {"gateway": "", "source": ""}
    assert optional(Gid(0, "fe80::1", GidType.ROCE_V2, "net1")) == {"link": 0}


def test_of_a_fabric_nothing_may_be_known() -> None:
    assert optional(Fabric()) == {
        "netns_mode": "",
        "infiniband_folder": False,
        "devices": (),
        "routes": (),
        "attachments": (),
        "unreadable": (),
        "missing": (),
        "settings": (),
        "refused": "",
    }
    assert Fabric() == NO_FABRIC


def device(**values: object) -> RdmaDevice:
    made = RdmaDevice(0, "mlx5_0", "roce", "CA", "", "mlx5", "0000:3b:00.0", "", "", ())
    return replace(made, **values)  # type: ignore[arg-type]


def test_a_device_is_usable_where_it_opens_and_the_library_has_a_driver() -> None:
    assert (device().library_error, device().opens, device().usable) == ("", True, True)
    closed, bare = device(open_error="EPERM"), device(library_error="no driver")
    assert (closed.opens, closed.usable) == (False, False)
    assert (bare.opens, bare.usable) == (True, False)


@pytest.mark.parametrize(
    ("values", "efa"),
    [
        ({}, False),
        ({"driver": "efa"}, True),
        ({"driver": "EFA_x"}, True),
        ({"node_type": "Unspecified", "protocol": ""}, True),
        ({"node_type": "unspecified"}, False),
        ({"protocol": ""}, False),
    ],
)
def test_an_efa_is_known_by_its_driver_or_by_having_no_protocol(
    values: dict[str, object],
    efa: bool,  # noqa: FBT001 - a row of the table
) -> None:
    assert device(**values).efa is efa


@pytest.mark.parametrize(
    ("message", "named"),
    [
        ({}, False),
        ({"rdma": "mlx5_0"}, True),
        ({"rdma": "mlx5_1"}, False),
        ({"pci": "0000:3b:00.0"}, True),
        ({"pci": "0000:3b:00.1"}, False),
        ({"rdma": "mlx5_1", "pci": "0000:3b:00.0"}, True),
    ],
)
def test_a_platform_names_a_device_by_its_name_or_its_function(
    message: dict[str, str],
    named: bool,  # noqa: FBT001 - a row of the table
) -> None:
    attachment = Attachment(AttachmentSource.MULTUS, **message)  # type: ignore[arg-type]
    assert attachment.names(device()) is named
    assert not attachment.default
    assert not Attachment(AttachmentSource.MULTUS).names(device(name="", pci=""))


def test_an_error_is_worth_a_new_try_by_its_code_alone() -> None:
    again = {code for code in ExitCode if Check("x", "x", code, "").retry}
    assert again == {
        ExitCode.HOSTFILE_MISSING,
        ExitCode.NAMES_UNRESOLVED,
        ExitCode.WORKERS_UNREACHABLE,
        ExitCode.NOT_READY,
    }
    assert Check("x", "x", ExitCode.BUG, "").roles == (Role.LAUNCHER, Role.WORKER)


@pytest.mark.parametrize(
    ("reason", "runs", "late"),
    [
        (NoFacts.NO_MPIBOOT, False, False),
        (NoFacts.LATE, True, True),
        (NoFacts.UNREADABLE, True, False),
    ],
)
def test_whether_a_worker_runs_mpiboot_and_still_gathers_is_known_by_its_facts_or_their_lack(
    reason: NoFacts,
    runs: bool,  # noqa: FBT001 - a row of the table
    late: bool,  # noqa: FBT001
) -> None:
    bare = Worker(Host("w-0"), "10.0.0.1", 22, "root", "10.0.0.9", None, no_facts=reason)
    assert (bare.runs_mpiboot, bare.late) == (runs, late)
    told = replace(bare, facts=plans.worker(Host("w-0"), 0, None).facts)
    assert (told.runs_mpiboot, told.late) == (True, False)


def test_of_a_worker_only_where_it_answered_may_be_known() -> None:
    found = Worker(Host("w-0"), "10.0.0.1", 22, "root", "10.0.0.9", None)
    known = optional(found)
    assert known.pop("no_facts") is NoFacts.NO_MPIBOOT
    assert known == {
        "mpi": None,
        "oom_kills": None,
        "marks": (),
        "attempts": (),
        "held": (),
        "called_mpi": None,
        "look_failed": "",
    }
