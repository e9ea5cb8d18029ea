from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from mpiboot.core.checks import BY_REFERENCE, DATA_CHECKS
from mpiboot.core.model import (
    Attachment,
    AttachmentSource,
    Finding,
    Identity,
    Level,
    Link,
    PortState,
    RdmaDevice,
    Worker,
)
from mpiboot.core.setting_types import DataNetworkUse
from mpiboot.core.settings import Settings
from mpiboot.network import decision, worker_network
from mpiboot.network.cluster_view import HEADINGS
from mpiboot.network.decision import DataNetwork
from tests.fakes import workers as w

PREFER = Settings(nccl_version="2.28.9")
REQUIRE = replace(PREFER, data_network=DataNetworkUse.REQUIRE)


def decide(
    *workers: Worker, settings: Settings = PREFER, values: Mapping[str, str] | None = None
) -> DataNetwork:
    taken = dict.fromkeys(values or {}, "the launcher's environment")
    return decision.decide(
        [worker_network.choose(one, settings) for one in workers],
        settings,
        taken,
        values=values or {},
    )


def of(found: DataNetwork, check: str) -> list[Finding]:
    return [item for item in found.findings if item.check == check]


def only(found: DataNetwork, check: str) -> Finding:
    (finding,) = of(found, check)
    return finding


def changed(
    worker: Worker,
    *,
    links: Sequence[Link] | None = None,
    devices: tuple[RdmaDevice, ...] | None = None,
    folder: bool = True,
    memlock: int = -1,
    shm: int = 8 << 30,
    identity: Identity = w.ROOT,
) -> Worker:
    assert worker.facts is not None
    fabric = replace(worker.facts.fabric, infiniband_folder=folder)
    fabric = fabric if devices is None else replace(fabric, devices=devices)
    facts = replace(worker.facts, fabric=fabric, memlock=memlock, shm=shm, identity=identity)
    return replace(worker, facts=facts if links is None else replace(facts, links=tuple(links)))


def device_of(worker: Worker) -> RdmaDevice:
    assert worker.facts is not None
    return worker.facts.fabric.devices[0]


def test_a_row_shows_what_a_worker_has() -> None:
    row = decide(w.sriov(0)).rows[0]
    assert dict(zip(HEADINGS, row.cells, strict=True)) == {
        "worker": "w-0",
        "control": "eth0 10.244.1.5",
        "data": "net1 192.168.5.7",
        "HCA": "mlx5_3:1",
        "state": "ACTIVE",
        "Gb/s": "100",
        "MTU": "1500/1024",
        "GID": "3",
    }


def test_rows_of_eight_rails_no_rdma_and_no_facts() -> None:
    rows = decide(w.rails8(0), w.plain(1), w.without_facts("w-2")).rows
    assert rows[0].state == "ACTIVE"
    assert rows[0].rate == "400"
    assert rows[0].gid == "3"
    assert rows[0].hca == "mlx5_19:1 .. mlx5_12:1 (8)"
    assert rows[1].data == "none"
    assert "does not run mpiboot" in rows[2].data


def test_all_is_well_with_equal_workers() -> None:
    assert not decide(w.rails8(0), w.rails8(1), w.rails8(2), settings=REQUIRE).findings


def test_workers_with_other_numbers_of_devices_are_named() -> None:
    short = w.rails8(2)
    assert short.facts is not None
    links = [link for link in short.facts.links if link.name != "net8"]
    short = changed(short, links=links, devices=short.facts.fabric.devices[:7])
    finding = only(decide(w.rails8(0), w.rails8(1), short), "rdma-differs")
    assert "w-2: 7 RoCE ports at 400 Gb/s; the others (2): 8 RoCE ports" in finding.message
    assert (finding.level, finding.host) == (Level.WARN, "w-2")


def test_workers_with_entries_of_different_ip_versions_are_said() -> None:
    other = w.sriov(1)
    assert other.facts is not None
    links = [
        replace(link, addresses=("fd00:5::8/64",)) if link.name == "net1" else link
        for link in other.facts.links
    ]
    port = replace(device_of(other).ports[0], gids=w.table("net1", "fd00:5::8"))
    other = changed(other, links=links, devices=(replace(device_of(other), ports=(port,)),))
    message = of(decide(w.sriov(0), other), "rdma-differs")[0].message
    assert (
        "w-1: 1 RoCE port at 100 Gb/s by IPv6; the others (1): 1 RoCE port at 100 Gb/s" in message
    )


def test_workers_of_different_kinds_stop_a_job_that_requires_rdma() -> None:
    found = decide(w.sriov(0), w.ipoib(1), settings=REQUIRE)
    assert of(found, "rdma-differs")
    assert all(item.level is Level.FAIL for item in of(found, "rdma-differs"))


@pytest.mark.parametrize("state", ["DOWN", "INIT", "ARMED"])
def test_a_port_that_is_not_active_is_said(state: str) -> None:
    finding = only(decide(w.ipoib(0, state=state)), "rdma-port")
    assert f"mlx5_4:1 is {state}, not ACTIVE" in finding.message
    assert ("the subnet manager has not brought it up" in finding.message) == (state != "DOWN")
    assert BY_REFERENCE["rdma-port"].retry


def test_a_link_without_carrier_is_said() -> None:
    worker = w.sriov(0)
    assert worker.facts is not None
    links = [replace(link, carrier=link.name != "net1") for link in worker.facts.links]
    assert "net1" in only(decide(changed(worker, links=links)), "rdma-port").message


def test_mtus_that_differ_between_workers_are_said() -> None:
    large = w.tcp(1)
    assert large.facts is not None
    links = [replace(link, mtu=9000) for link in large.facts.links]
    finding = only(decide(w.tcp(0), changed(large, links=links), w.tcp(2)), "data-mtu")
    assert "w-1: 9000; the others (2): 1500" in finding.message


def test_a_ports_mtu_that_does_not_fit_its_links_is_said() -> None:
    worker = w.macvlan(0)
    device = device_of(worker)
    port = replace(device.ports[0], mtu=4096)
    found = decide(changed(worker, devices=(replace(device, ports=(port,)),)))
    assert "MTU 1500, which allows 1024" in only(found, "rdma-mtu").message


def test_a_port_that_uses_less_than_its_link_allows_is_said_and_never_stops() -> None:
    worker = w.sriov(0)
    assert worker.facts is not None
    links = [replace(link, mtu=9000) for link in worker.facts.links]
    finding = only(decide(changed(worker, links=links), settings=REQUIRE), "rdma-mtu-low")
    assert "MTU 9000, which allows 4096 for RDMA, but port mlx5_3:1 uses 1024" in finding.message
    assert finding.level is Level.WARN


# 4176 lies between what soft-RoCE and other drivers count as headers: both answers are right.
@pytest.mark.parametrize(
    ("mtu", "active"),
    [(1500, 1024), (4000, 2048), (4176, 2048), (4176, 4096), (4200, 4096), (9000, 4096)],
)
def test_the_kernels_own_pairs_of_mtus_fit(mtu: int, active: int) -> None:
    worker = w.sriov(0)
    assert worker.facts is not None
    device = device_of(worker)
    port = replace(device.ports[0], mtu=active)
    links = [replace(link, mtu=mtu) for link in worker.facts.links]
    found = decide(changed(worker, links=links, devices=(replace(device, ports=(port,)),)))
    assert not of(found, "rdma-mtu")
    assert not of(found, "rdma-mtu-low")


def test_a_table_without_a_v2_entry_of_ours_is_said() -> None:
    worker = w.sriov(0)
    device = device_of(worker)
    port = replace(device.ports[0], gids=w.table("net1", "192.168.5.7", types=2)[:3])
    finding = only(decide(changed(worker, devices=(replace(device, ports=(port,)),))), "rdma-gid")
    assert "no RoCE v2 entry for 192.168.5.7" in finding.message


def test_data_networks_that_do_not_overlap_are_said() -> None:
    finding = only(decide(w.tcp(0), w.tcp(1, subnet="172.30.1")), "data-networks")
    assert "w-0" in finding.message
    assert "w-1" in finding.message


def test_data_links_without_an_ip_version_in_common_are_said() -> None:
    four, six = w.tcp(0), w.tcp(1)
    assert six.facts is not None
    links = tuple(
        replace(one, addresses=("fd00:7::6/64",)) if one.name == "net1" else one
        for one in six.facts.links
    )
    finding = only(decide(four, changed(six, links=links)), "data-networks")
    assert "the workers have no IP version in common on the links beside net1" in finding.message


def test_one_address_on_two_workers_is_said() -> None:
    twin = replace(w.tcp(0), host=replace(w.tcp(1).host, name="w-1"))
    assert "both have 192.168.7.5" in only(decide(w.tcp(0), twin), "data-networks").message


def test_a_data_link_in_the_control_links_subnet_is_said() -> None:
    finding = only(decide(w.tcp(0, subnet="10.244.1"), settings=REQUIRE), "control-subnet")
    assert "eth0" in finding.message
    assert "net1" in finding.message
    assert finding.level is Level.FAIL


def test_rails_in_one_flat_subnet_are_said_and_never_stop() -> None:
    worker = w.rails8(0)
    assert worker.facts is not None
    links = [
        replace(link, addresses=tuple(one.replace("/24", "/12") for one in link.addresses))
        if link.name.startswith("net")
        else link
        for link in worker.facts.links
    ]
    found = decide(changed(worker, links=links), settings=REQUIRE)
    assert of(found, "data-subnet")
    assert {item.level for item in found.findings} == {Level.WARN}


def test_rails_that_cross_are_said_with_the_cure() -> None:
    crossed = w.rails8(1)
    assert crossed.facts is not None
    first, *middle, last = crossed.facts.fabric.devices
    swapped = (replace(first, pci=last.pci), *middle, replace(last, pci=first.pci))
    workers = (w.rails8(0), changed(crossed, devices=swapped))
    newer = replace(PREFER, nccl_version="2.30.7")
    finding = only(decide(*workers, settings=newer), "rdma-rails")
    # Before 2.29.7 NCCL does not order by PCI path.
    assert not of(decide(*workers), "rdma-rails")
    assert "w-1" in finding.message
    assert "NCCL_CROSS_NIC=1" in finding.hint


def test_links_named_in_another_order_on_one_worker_still_reach_each_other() -> None:
    turned = w.rails8(1)
    assert turned.facts is not None
    names = {"net1": "net8", "net8": "net1"}
    links = [replace(one, name=names.get(one.name, one.name)) for one in turned.facts.links]
    devices = tuple(
        replace(
            device,
            ports=tuple(
                replace(
                    port,
                    netdev=names.get(port.netdev, port.netdev),
                    gids=tuple(
                        replace(gid, netdev=names.get(gid.netdev, gid.netdev)) for gid in port.gids
                    ),
                )
                for port in device.ports
            ),
        )
        for device in turned.facts.fabric.devices
    )
    found = decide(w.rails8(0), changed(turned, links=links, devices=devices))
    assert not found.findings
    # Bootstrap takes the first link, and that one leads elsewhere.
    assert found.common["NCCL_SOCKET_IFNAME"] == "=eth0"


def test_no_device_folder_is_said_with_the_pods_line() -> None:
    worker = w.sriov(0)
    closed = replace(device_of(worker), open_error="no device node", uverbs="")
    found = decide(changed(worker, devices=(closed,), folder=False))
    finding = only(found, "rdma-node")
    assert "/dev/infiniband is not there" in finding.message
    assert found.common["NCCL_IB_DISABLE"] == "1"
    assert "NCCL_IB_HCA" not in found.common
    assert "resources: {limits:" in finding.hint


def test_a_node_that_may_not_be_opened_is_said_with_its_reason() -> None:
    worker = w.sriov(0)
    closed = replace(device_of(worker), open_error="EPERM: another network namespace")
    assert "EPERM" in only(decide(changed(worker, devices=(closed,))), "rdma-node").message


def test_a_device_without_a_driver_in_the_image_is_said_with_the_packages() -> None:
    # NCCL drops such a device without a word, and the job would run over TCP.
    bare = replace(device_of(w.sriov(1)), library_error="libibverbs.so.1 has no driver for it")
    found = decide(w.sriov(0), changed(w.sriov(1), devices=(bare,)))
    finding = only(found, "rdma-library")
    assert (finding.host, finding.level) == ("w-1", Level.WARN)
    assert finding.message == "device mlx5_3: libibverbs.so.1 has no driver for it"
    assert "ibverbs-providers" in finding.hint
    assert found.common["NCCL_IB_DISABLE"] == "1"


def test_a_small_memlock_without_ipc_lock_is_said_with_the_pods_line() -> None:
    user = replace(w.ROOT, uid=1000, capabilities=0)
    finding = only(decide(changed(w.sriov(0), memlock=8 << 20, identity=user)), "memlock")
    assert "8 MiB" in finding.message
    for size, message in ((1 << 20, "1 MiB"), (64 << 10, "64 KiB")):
        assert (
            f"limit {message},"
            in only(decide(changed(w.sriov(0), memlock=size, identity=user)), "memlock").message
        )
    assert "other than root" in finding.message
    assert "IPC_LOCK" in finding.hint
    assert not of(decide(changed(w.sriov(0), memlock=8 << 20)), "memlock")
    assert not of(decide(changed(w.plain(0), memlock=65536, identity=user)), "memlock")
    own = replace(w.ROOT, own_users=True)
    inside = only(decide(changed(w.sriov(0), memlock=8 << 20, identity=own)), "memlock")
    assert "hostUsers is false" in inside.message
    assert "hostUsers: true" in inside.hint


def test_the_default_shm_with_several_ranks_is_said_with_the_pods_lines() -> None:
    finding = only(decide(changed(w.plain(0), shm=64 << 20)), "shm")
    assert "64 MiB for 8 ranks" in finding.message
    assert "medium: Memory" in finding.hint
    alone = w.plain(0)
    alone = replace(alone, host=replace(alone.host, slots=1))
    assert not of(decide(changed(alone, shm=64 << 20)), "shm")


def test_a_named_link_is_listed_where_it_is_missing() -> None:
    named = replace(PREFER, data_ifname=("net1",))
    some = only(decide(w.tcp(0), w.tcp(1, "dra0"), w.tcp(2, "dra0"), settings=named), "data-link")
    assert some.hosts == ("w-1", "w-2")
    assert some.level is Level.FAIL
    nowhere = only(decide(w.plain(0), settings=named), "data-link")
    assert nowhere.host == "w-0"
    both = replace(PREFER, data_ifname=("net1", "dra0"))
    either = of(decide(w.tcp(0), w.tcp(1, "dra0"), settings=both), "data-link")
    assert {item.level for item in either} == {Level.WARN}


def test_visible_devices_that_are_not_this_pods_are_the_reason_for_none() -> None:
    foreign = tuple(
        w.device(
            f"mlx5_{n}", w.port(w.table("pf0", "10.0.0.1")), index=n, open_error="no device node"
        )
        for n in range(26)
    )
    worker = w.worker("w-0", w.eth0(), devices=foreign, folder=False)
    found = decide(worker)
    assert not found.findings
    # A pod that wants none of them is not warned, but the reason is there for one that does.
    (shown,) = [item for item in found.decisions if item.name == "data-network"]
    assert "w-0: only devices of the node are seen, and none belongs to the pod" in shown.reason
    assert "devices of the node" not in str(decide(w.plain(0)).decisions)
    finding = only(decide(worker, settings=REQUIRE), "rdma-missing")
    assert "26 RDMA devices of the node are visible" in finding.message
    assert finding.level is Level.FAIL


def late(worker: Worker) -> Worker:
    """The same, but its link that the platform names has no address."""
    assert worker.facts is not None
    links = tuple(
        replace(one, addresses=() if one.name == "net1" else one.addresses)
        for one in worker.facts.links
    )
    message = replace(
        worker.facts.fabric, attachments=(Attachment(AttachmentSource.MULTUS, link="net1"),)
    )
    return replace(worker, facts=replace(worker.facts, links=links, fabric=message))


def broken(check: str) -> tuple[Worker, ...]:
    """Workers with RDMA of which the last one has this problem."""
    good, bad = w.sriov(0), w.sriov(1)
    own = device_of(bad)
    port = own.ports[0]
    user = replace(w.ROOT, uid=1000, capabilities=0)
    links = bad.facts.links if bad.facts else ()
    made = {
        "rdma-missing": changed(bad, devices=()),
        "rdma-node": changed(
            bad, devices=(replace(own, open_error="no device node", uverbs=""),), folder=False
        ),
        "rdma-library": changed(bad, devices=(replace(own, library_error="no driver"),)),
        "rdma-port": changed(
            bad, devices=(replace(own, ports=(replace(port, state=PortState.DOWN),)),)
        ),
        "rdma-gid": changed(
            bad, devices=(replace(own, ports=(replace(port, gids=port.gids[:3]),)),)
        ),
        "rdma-mtu": changed(bad, devices=(replace(own, ports=(replace(port, mtu=4096),)),)),
        "rdma-differs": w.ipoib(1),
        "memlock": changed(bad, memlock=8 << 20, identity=user),
        "shm": changed(bad, shm=64 << 20),
        "data-mtu": changed(bad, links=[replace(one, mtu=9000) for one in links]),
        "data-networks": w.tcp(1, subnet="172.30.1"),
        "control-subnet": w.tcp(1, subnet="10.244.1"),
        "data-carrier": changed(
            w.tcp(1),
            links=[w.eth0(), w.link("net1", "192.168.7.6/24", kind="macvlan", carrier=False)],
        ),
        "data-address": late(w.tcp(1)),
        "data-facts": w.without_facts("w-1"),
    }
    return (w.tcp(0) if check == "data-networks" else good, made[check])


@pytest.mark.parametrize(
    "check",
    [
        "rdma-missing",
        "rdma-node",
        "rdma-library",
        "rdma-port",
        "rdma-gid",
        "rdma-mtu",
        "rdma-differs",
        "memlock",
        "shm",
        "data-mtu",
        "data-networks",
        "control-subnet",
        "data-address",
        "data-carrier",
        "data-facts",
    ],
)
def test_each_problem_warns_with_prefer_and_stops_with_require(check: str) -> None:
    workers = broken(check)
    assert {one.level for one in of(decide(*workers), check)} == {Level.WARN}
    strict = of(decide(*workers, settings=REQUIRE), check)
    assert {one.level for one in strict} == {Level.FAIL}
    assert all(one.message and one.hint for one in strict)
    assert not decide(*workers, settings=replace(PREFER, data_network=DataNetworkUse.OFF)).findings


@pytest.mark.parametrize("check", ["rdma-missing", "rdma-node", "memlock", "shm"])
def test_where_the_pod_is_what_to_change_its_lines_are_the_fix(check: str) -> None:
    (finding,) = of(decide(*broken(check)), check)
    assert any(
        word in finding.hint for word in ("resources: {", "securityContext: {", "volumes: [")
    )


def test_ports_of_workers_whose_mtu_is_not_known_are_not_compared() -> None:
    unknown = replace(
        device_of(w.sriov(1)), ports=(replace(device_of(w.sriov(1)).ports[0], mtu=0),)
    )
    larger = replace(unknown, ports=(replace(unknown.ports[0], mtu=512),))
    assert not of(decide(w.sriov(0), changed(w.sriov(1), devices=(unknown,))), "data-mtu")
    finding = only(decide(w.sriov(0), changed(w.sriov(1), devices=(larger,))), "data-mtu")
    assert "1500 (port 512)" in finding.message


def test_one_problem_on_many_workers_is_one_line() -> None:
    found = decide(*(changed(w.plain(place), shm=64 << 20) for place in range(9)))
    finding = only(found, "shm")
    assert finding.where == "9 hosts (w-0, w-1, w-2, w-3 and 5 more)"
    assert len(finding.hosts) == 9
    assert finding.evidence == ()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("NCCL_SOCKET_IFNAME", "eth7, net1", "fits nothing here"),
        ("NCCL_SOCKET_IFNAME", "^eth,net,lo", "fits nothing here"),
        ("NCCL_SOCKET_IFNAME", "^eth,net", "fits nothing here"),
        ("NCCL_IB_HCA", "=mlx5_77", "fits nothing here"),
        ("NCCL_IB_DISABLE", "true", "write 1"),
    ],
)
def test_the_users_own_values_are_checked_with_nccls_rules(
    name: str, value: str, message: str
) -> None:
    assert message in only(decide(w.sriov(0), values={name: value}), "nccl-value").message


def test_a_value_that_keeps_nccl_from_usable_ports_is_said_and_is_no_rdma() -> None:
    values = {"NCCL_IB_DISABLE": "1"}
    (finding,) = of(decide(w.sriov(0), values=values), "nccl-value")
    assert "keeps NCCL from mlx5_3:1" in finding.message
    assert finding.level is Level.WARN
    (strict,) = of(decide(w.sriov(0), values=values, settings=REQUIRE), "nccl-value")
    assert strict.level is Level.FAIL
    for worker in (w.tcp(0), w.efa(0), w.ipoib(state="INIT")):
        assert not of(decide(worker, values=values), "nccl-value")


def test_users_values_that_fit_are_not_reported() -> None:
    values = {"NCCL_SOCKET_IFNAME": "=eth0", "NCCL_IB_HCA": "mlx5", "NCCL_IB_DISABLE": "0"}
    assert not of(decide(w.sriov(0), values=values), "nccl-value")


def with_own_value(worker: Worker, name: str, value: str) -> Worker:
    assert worker.facts is not None
    fabric = replace(worker.facts.fabric, settings=((name, value),))
    return replace(worker, facts=replace(worker.facts, fabric=fabric, environment=(name,)))


def test_a_value_of_a_workers_own_pod_is_checked_there() -> None:
    odd = with_own_value(w.sriov(1), "NCCL_IB_HCA", "=mlx5_77")
    finding = only(decide(w.sriov(0), odd), "nccl-value")
    assert (finding.host, "=mlx5_77 fits nothing here" in finding.message) == ("w-1", True)
    # What is set for all ranks comes before it.
    assert not of(decide(w.sriov(0), odd, values={"NCCL_IB_HCA": "=mlx5_3"}), "nccl-value")
    networks = [worker_network.choose(odd, PREFER)]
    unknown = decision.decide(networks, PREFER, {"NCCL_IB_HCA": "a list of variables"})
    assert not of(unknown, "nccl-value")


def test_loopback_counts_where_it_is_named() -> None:
    assert not of(decide(w.sriov(0), values={"NCCL_SOCKET_IFNAME": "=lo"}), "nccl-value")


def test_the_rows_are_complete_and_new_or_the_same() -> None:
    references = [row.reference for row in DATA_CHECKS]
    assert len(references) == len(set(references))
    for row in DATA_CHECKS:
        assert row.title
        assert row.hint
        assert BY_REFERENCE.get(row.reference, row) == row
