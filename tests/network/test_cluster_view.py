"""What is wrong with the data network of one worker or of all, and the table that shows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from mpiboot.core.checks import BY_REFERENCE
from mpiboot.core.facts import Gpus, PortState, Worker
from mpiboot.core.model import Finding, Identity, Level
from mpiboot.core.setting_types import DataNetworkUse
from mpiboot.core.settings import Settings
from mpiboot.network import cluster_view
from mpiboot.network.decision import DataNetwork
from tests.fakes import networks
from tests.fakes import workers as w

PREFER = Settings(nccl_version="2.28.9")
REQUIRE = replace(PREFER, data_network=DataNetworkUse.REQUIRE)
USER = Identity(1000, 1000, "me", "/home/me", "/bin/sh", known=True, capabilities=0)
MIB = 1 << 20


def decide(
    *workers: Worker, settings: Settings = PREFER, values: Mapping[str, str] | None = None
) -> DataNetwork:
    taken = dict.fromkeys(values or {}, "the launcher's environment")
    return networks.decide(workers, settings, taken, values)


def problems(
    *workers: Worker, settings: Settings = PREFER, values: Mapping[str, str] | None = None
) -> list[tuple[str, str]]:
    found = decide(*workers, settings=settings, values=values)
    return [(item.check, item.message) for item in found.findings]


def of(found: DataNetwork, check: str) -> list[Finding]:
    return [item for item in found.findings if item.check == check]


def only(found: DataNetwork, check: str) -> Finding:
    (finding,) = of(found, check)
    return finding


def second_address(worker: Worker, address: str) -> Worker:
    return w.with_links(worker, "net1", addresses=(address,))


# The table


def test_a_row_shows_what_a_worker_has() -> None:
    row = cluster_view.row(decide(w.sriov(0)).networks[0])
    assert dict(zip(cluster_view.HEADINGS, row, strict=True)) == {
        "worker": "w-0",
        "control": "eth0 10.244.1.5",
        "data": "net1 192.168.5.7",
        "HCA": "mlx5_3:1",
        "state": "ACTIVE",
        "Gb/s": "100",
        "MTU": "1500",
        "GID": "3",
    }
    assert cluster_view.row(decide(w.plain(0)).networks[0]).data == "none"


# One worker: limits of its pod


@pytest.mark.parametrize(
    ("memlock", "identity", "message"),
    [
        (-1, USER, ""),
        (256 * MIB, USER, ""),
        (255 * MIB, USER, "255 MiB, without IPC_LOCK (a user other than root does not get added"),
        (8 * MIB, USER, "8 MiB, without IPC_LOCK (a user other than root does not get added"),
        (65536, replace(USER, uid=0), "64 KiB, without IPC_LOCK"),
        (MIB, replace(USER, uid=0), "1 MiB, without IPC_LOCK"),
        (0, replace(USER, capabilities=1 << 14), ""),
        (0, replace(USER, capabilities=1 << 13 | 1 << 15, uid=0), "0 bytes, without IPC_LOCK"),
        (
            65536,
            replace(w.ROOT, own_users=True),
            "64 KiB, without IPC_LOCK of the node (the pod has users of its own: hostUsers is",
        ),
    ],
)
def test_how_much_memory_may_be_locked(memlock: int, identity: Identity, message: str) -> None:
    found = decide(w.changed(w.sriov(0), memlock=memlock, identity=identity)).findings
    assert [item.check for item in found] == (["memlock"] if message else [])
    for item in found:
        assert item.message.startswith(f"memory lock limit {message}")
        assert ("hostUsers: true" in item.hint) == identity.own_users
        assert "IPC_LOCK" in item.hint
    # Without RDMA nothing is locked.
    assert problems(w.changed(w.plain(0), memlock=memlock, identity=identity)) == []


@pytest.mark.parametrize(
    ("shm", "slots", "message"),
    [
        (0, 8, ""),  # not known
        (1, 8, "/dev/shm has 0 MiB for 8 ranks"),
        (64 * MIB, 2, "/dev/shm has 64 MiB for 2 ranks"),
        (64 * MIB, 1, ""),
        (64 * MIB + 1, 8, ""),
    ],
)
def test_how_large_shared_memory_has_to_be(shm: int, slots: int, message: str) -> None:
    worker = w.changed(w.plain(0), shm=shm)
    worker = replace(worker, host=replace(worker.host, slots=slots))
    assert problems(worker) == ([("shm", message)] if message else [])


# One worker: ports and links


NOT_UP = ": the subnet manager has not brought it up"


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (PortState.ACTIVE, ""),
        (PortState.DOWN, "DOWN, not ACTIVE"),
        (PortState(""), "in an unknown state, not ACTIVE"),
        (PortState.INIT, f"INIT, not ACTIVE{NOT_UP}"),
        (PortState.ARMED, f"ARMED, not ACTIVE{NOT_UP}"),
    ],
)
def test_a_ports_state(state: PortState, message: str) -> None:
    found = decide(w.with_device(w.sriov(0), port={"state": state}))
    assert [(item.check, item.message) for item in found.findings] == (
        [("rdma-port", f"port mlx5_3:1 is {message}")] if message else []
    )
    waits = state in (PortState.INIT, PortState.ARMED)
    pending = (f"port mlx5_3:1 is {state.value}, not yet ACTIVE",) if waits else ()
    assert found.networks[0].pending == pending
    assert BY_REFERENCE["rdma-port"].retry


def test_a_device_that_can_not_be_used() -> None:
    found = decide(w.with_device(w.sriov(0), open_error="Operation not permitted"))
    finding = only(found, "rdma-node")
    assert finding.message == "device mlx5_3 does not open (Operation not permitted)"
    assert "resources: {limits:" in finding.hint
    assert "NCCL_IB_HCA" not in found.common


def test_a_device_without_a_driver_in_the_image_is_said_with_the_packages() -> None:
    # NCCL drops such a device without a word, and the job would run over TCP.
    no_driver = "libibverbs.so.1 has no driver for it"
    found = decide(w.sriov(0), w.with_device(w.sriov(1), library_error=no_driver))
    finding = only(found, "rdma-library")
    assert (finding.host, finding.level) == ("w-1", Level.WARN)
    assert finding.message == f"device mlx5_3: {no_driver}"
    assert "ibverbs-providers" in finding.hint
    assert found.common["NCCL_NET"] == "Socket"


def test_a_link_without_carrier_and_a_table_without_our_entry() -> None:
    dark = only(decide(w.with_links(w.sriov(0), "net1", carrier=False)), "rdma-port")
    assert dark.message == "link net1 of mlx5_3:1 has no carrier"
    gids = w.table("net1", "192.168.5.7", types=2)[:3]
    bare = only(decide(w.with_device(w.sriov(0), port={"gids": gids})), "rdma-gid")
    assert "no RoCE v2 entry for 192.168.5.7" in bare.message


@pytest.mark.parametrize(
    ("control", "data", "check"),
    [
        ("10.244.1.5/24", "10.244.1.9/24", "control-subnet"),
        ("10.244.1.5/24", "10.244.2.9/16", "control-subnet"),
        ("10.244.2.5/16", "10.244.1.9/24", "control-subnet"),
        ("10.244.1.5/24", "10.244.2.9/24", ""),
        ("10.244.1.5/32", "10.244.1.9/24", ""),  # its own address alone is no subnet
        ("10.244.1.5/24", "fd00::9/64", ""),
        ("fd00::5/64", "fd00::9/64", "control-subnet"),
    ],
)
def test_links_of_one_subnet(control: str, data: str, check: str) -> None:
    eth0, net1 = w.eth0(control), w.link("net1", data, index=21, kind="macvlan")
    worker = w.worker("w-0", eth0, net1, control=control.partition("/")[0])
    message = f"eth0 ({control}) and net1 ({data}) are in one subnet"
    assert problems(worker) == ([(check, message)] if check else [])


def test_three_data_links_of_one_subnet_are_told_for_each_but_the_last() -> None:
    links = [w.link(f"net{n}", f"10.9.0.{n}/24", index=20 + n, kind="macvlan") for n in (1, 2, 3)]
    named = replace(REQUIRE, data_ifname=("net1", "net2", "net3"))
    found = of(decide(w.worker("w-0", w.eth0(), *links), settings=named), "data-subnet")
    assert [(item.level, item.message) for item in found] == [
        (Level.WARN, "net1 (10.9.0.1/24) and net2 (10.9.0.2/24) are in one subnet"),
        (Level.WARN, "net2 (10.9.0.2/24) and net3 (10.9.0.3/24) are in one subnet"),
    ]


def test_a_worker_without_a_control_link() -> None:
    worker = w.worker("w-0", w.link("net1", "10.9.0.1/24", index=21, kind="macvlan"), control="")
    assert problems(worker) == [("control-link", "no link of its own has the control address")]


def test_why_a_worker_has_no_rdma() -> None:
    foreign = tuple(
        w.device(f"mlx5_{n}", w.port(w.table("pf0", "10.0.0.1")), open_error="no device node")
        for n in range(26)
    )
    worker = w.worker("w-0", w.eth0(), devices=foreign)
    # A pod that wants none of them is not warned, but the reason is there for one that does.
    found = decide(worker)
    assert not found.findings
    (shown,) = [item for item in found.decisions if item.name == "data-network"]
    assert "w-0: only devices of the node are seen, and none belongs to the pod" in shown.reason
    assert "devices of the node" not in str(decide(w.plain(0)).decisions)
    message = "26 RDMA devices of the node are visible, none is this pod's"
    assert problems(worker, settings=REQUIRE) == [("rdma-missing", message)]


# Values that the user has set


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("NCCL_IB_DISABLE", "1", "keeps NCCL from mlx5_3:1, which could carry its data"),
        ("NCCL_IB_DISABLE", "0", ""),
        ("NCCL_IB_HCA", "=mlx5_9", "fits nothing here (there are mlx5_3)"),
        ("NCCL_IB_HCA", "mlx5", ""),
        ("NCCL_SOCKET_IFNAME", "=lo", ""),
        ("NCCL_SOCKET_IFNAME", "=eth0", ""),
        ("NCCL_SOCKET_IFNAME", "eth7, net9", "fits nothing here (there are lo, eth0, net1)"),
        # Loopback counts where it is named, not where it is left over.
        ("NCCL_SOCKET_IFNAME", "^eth,net,lo", "fits nothing here (there are lo, eth0, net1)"),
        ("NCCL_SOCKET_IFNAME", "^eth0,net1", "fits nothing here (there are lo, eth0, net1)"),
    ],
)
def test_the_users_own_values_are_checked_with_nccls_rules(
    name: str, value: str, message: str
) -> None:
    found = decide(w.sriov(0), values={name: value})
    shown = f'"{value}"' if value.startswith("=") else value
    assert [item.message for item in of(found, "nccl-value")] == (
        [f"{name}={shown} {message}"] if message else []
    )


HAS = "mlx5_4:1 has 0x7fff at 0, 0x1 at 1"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        *(("NCCL_IB_PKEY", value, HAS) for value in ("2", "32769")),
        *(("UCX_IB_PKEY", value, HAS) for value in ("0x2", "0x8001")),
        *(("NCCL_IB_PKEY", value, "") for value in ("1", "0", "", "x")),
        *(("UCX_IB_PKEY", value, "") for value in ("0x0001", "0x7fff", "auto")),
    ],
)
def test_the_users_partition_is_compared_with_the_ports(
    name: str, value: str, message: str
) -> None:
    found = of(decide(w.ipoib(0, "net1", pkey=1), values={name: value}), "nccl-value")
    assert [item.message for item in found] == [f"{name}={value}: {message}"] * bool(message)


def test_nccl_may_be_kept_from_ports_that_could_not_carry_its_data() -> None:
    values = {"NCCL_IB_DISABLE": "1"}
    assert only(decide(w.sriov(0), values=values), "nccl-value").level is Level.WARN
    strict = decide(w.sriov(0), values=values, settings=REQUIRE)
    assert only(strict, "nccl-value").level is Level.FAIL
    for worker in (w.tcp(0), w.efa(0), w.ipoib(state="INIT")):
        assert not of(decide(worker, values=values), "nccl-value")


def test_a_value_of_a_workers_own_pod_is_checked_there() -> None:
    name = "NCCL_IB_HCA"
    own = w.changed(w.sriov(1), environment=(name,), fabric={"settings": ((name, "=mlx5_77"),)})
    finding = only(decide(w.sriov(0), own), "nccl-value")
    assert (finding.host, '"=mlx5_77" fits nothing here' in finding.message) == ("w-1", True)
    # What is set for all ranks comes before it.
    assert not of(decide(w.sriov(0), own, values={name: "=mlx5_3"}), "nccl-value")
    unknown = networks.decide([own], PREFER, {name: "a list of variables"})
    assert not of(unknown, "nccl-value")


# All workers


def test_all_is_well_with_equal_workers() -> None:
    assert not decide(w.rails8(0), w.rails8(1), w.rails8(2), settings=REQUIRE).findings


@pytest.mark.parametrize(
    ("workers", "message"),
    [
        ((w.rails8(0), w.rails8(1)), ""),
        ((w.sriov(0), w.without_facts("w-1")), ""),
        (
            (w.changed(w.plain(0), gpus=Gpus(8)), w.changed(w.plain(1), gpus=Gpus(7))),
            "w-1: 7 GPUs, 0 RDMA ports, MTU 1500; the others (1): 8 GPUs, 0 RDMA ports, MTU 1500",
        ),
        ((w.sriov(0), w.with_links(w.plain(1), mtu=1500), w.sriov(2)), ""),
        (
            (w.tcp(0), w.with_links(w.tcp(1), "net1", mtu=9000), w.tcp(2)),
            "w-1: 0 GPUs, 0 RDMA ports, MTU 1500, 9000; the others (2): 0 GPUs, 0 RDMA ports, MTU ",
        ),
        (
            (w.sriov(0), w.one_v6(1)),
            "w-1: 0 GPUs, 1 RDMA ports by IPv6, MTU 1500; the others (1): 0 GPUs, 1 RDMA ports, ",
        ),
    ],
)
def test_workers_that_are_not_as_most_are_named_once(
    workers: tuple[Worker, ...], message: str
) -> None:
    found = of(decide(*workers, settings=REQUIRE), "workers-differ")
    assert [item.level for item in found] == [Level.WARN] * bool(message)
    assert "".join(item.message for item in found).startswith(
        f"workers differ: {message}" * bool(message)
    )


def test_rails_in_one_flat_subnet_are_said_and_never_stop() -> None:
    worker = w.rails8(0)
    assert worker.facts is not None
    links = tuple(
        replace(link, addresses=tuple(one.replace("/24", "/12") for one in link.addresses))
        if link.name.startswith("net")
        else link
        for link in worker.facts.links
    )
    found = decide(w.changed(worker, links=links), settings=REQUIRE)
    assert of(found, "data-subnet")
    assert {item.level for item in found.findings} == {Level.WARN}


def test_a_named_link_is_listed_where_it_is_missing() -> None:
    named = replace(PREFER, data_ifname=("net1",))
    some = only(decide(w.tcp(0), w.tcp(1, "dra0"), w.tcp(2, "dra0"), settings=named), "data-link")
    assert (some.level, some.hosts) == (Level.FAIL, ("w-1", "w-2"))
    assert only(decide(w.plain(0), settings=named), "data-link").host == "w-0"
    both = replace(PREFER, data_ifname=("net1", "dra0"))
    either = of(decide(w.tcp(0), w.tcp(1, "dra0"), settings=both), "data-link")
    assert {item.level for item in either} == {Level.WARN}


def test_one_problem_on_many_workers_is_one_line() -> None:
    found = decide(*(w.changed(w.plain(place), shm=64 * MIB) for place in range(9)))
    finding = only(found, "shm")
    assert finding.where == "9 hosts (w-0, w-1, w-2, w-3 and 5 more)"
    assert len(finding.hosts) == 9
    assert finding.evidence == ()


# The last of two workers has this problem; the other one has RDMA unless the row says otherwise.
BROKEN = {
    "rdma-missing": w.changed(w.sriov(1), fabric={"devices": ()}),
    "rdma-node": w.with_device(w.sriov(1), open_error="no device node"),
    "rdma-library": w.with_device(w.sriov(1), library_error="no driver"),
    "rdma-port": w.with_device(w.sriov(1), port={"state": PortState.DOWN}),
    "rdma-gid": w.with_device(w.sriov(1), port={"gids": w.table("net1", "192.168.5.8")[:3]}),
    "rdma-differs": w.ipoib(1),
    "memlock": w.changed(w.sriov(1), memlock=8 * MIB, identity=USER),
    "shm": w.changed(w.sriov(1), shm=64 * MIB),
    "data-networks": w.with_links(w.tcp(1), "net1", addresses=("192.168.7.5/24",)),
    "control-subnet": w.tcp(1, subnet="10.244.1"),
    "data-carrier": w.with_links(w.tcp(1), "net1", carrier=False),
    "data-address": w.with_links(w.macvlan(1), "net1", addresses=()),
    "data-facts": w.without_facts("w-1"),
}


@pytest.mark.parametrize("check", BROKEN)
def test_each_problem_warns_with_prefer_and_stops_with_require(check: str) -> None:
    first = w.tcp(0) if check == "data-networks" else w.sriov(0)
    workers = (first, BROKEN[check])
    found = of(decide(*workers), check)
    assert {one.level for one in found} == {Level.WARN}
    strict = of(decide(*workers, settings=REQUIRE), check)
    assert {one.level for one in strict} == {Level.FAIL}
    assert all(one.message and one.hint for one in strict)
    assert not decide(*workers, settings=replace(PREFER, data_network=DataNetworkUse.OFF)).findings
    if check in ("rdma-missing", "rdma-node", "memlock", "shm"):
        # Where the pod is what to change, its lines are the fix.
        pod_lines = ("resources: {", "securityContext: {", "volumes: [")
        assert any(word in found[0].hint for word in pod_lines)
