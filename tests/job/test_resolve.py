"""What the user has chosen, and what mpiboot then leaves alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mpiboot.core.facts import Variable
from mpiboot.core.model import Source
from mpiboot.job import resolve
from mpiboot.job.plan import Plan
from mpiboot.network.records import Owned
from tests.fakes.plans import POD, link, observed, planned, reason, with_facts

PML, BTL = "OMPI_MCA_pml", "OMPI_MCA_btl"
HCOLL, UCC = "OMPI_MCA_coll_hcoll_enable", "OMPI_MCA_coll_ucc_enable"
ALL = frozenset({PML, BTL, HCOLL, UCC})
UCX = "UCX_NET_DEVICES"


def transports(plan: Plan) -> set[str]:
    everywhere = plan.set_env.keys() | set.intersection(*map(set, plan.per_host.values() or ({},)))
    return {*ALL, UCX} & everywhere


CHOICES: list[tuple[str, dict[str, str], frozenset[str]]] = [
    ("", {}, ALL),
    # Only what it must not be.
    ("--mca btl ^openib", {}, ALL - {BTL}),
    ("--mca pml ^ucx --mca btl ^uct", {}, ALL - {PML, BTL}),
    ("-x UCX_TLS=^rc", {}, ALL),
    # The recipe's own.
    ("--mca pml ob1 --mca btl tcp,self", {}, ALL - {PML, BTL}),
    ("--mca btl self,vader,tcp", {}, ALL - {BTL}),
    ("-x NCCL_IB_DISABLE=0 -x NCCL_NET_PLUGIN=none -x NCCL_IB_HCA", {}, ALL),
    # What opens RDMA devices, or libfabric.
    ("--mca pml ucx", {}, frozenset()),
    ("--mca pml cm --mca mtl ofi", {}, frozenset()),
    ("--mca mtl ofi", {}, frozenset()),
    ("--mca btl openib,self", {}, frozenset()),
    ("-x UCX_TLS=rc -x UCX_NET_DEVICES=mlx5_0:1", {}, frozenset()),
    ("-x UCX_NET_DEVICES=mlx5_0:1", {}, frozenset()),
    ("-x FI_PROVIDER=efa", {}, frozenset()),
    ("", {PML: "ucx"}, frozenset()),
    ("", {"UCX_TLS": "rc,sm,self"}, frozenset()),
    ("-x UCX_TLS", {"UCX_TLS": "all"}, frozenset()),
    # UCX without RDMA is the user's choice for pml alone.
    ("-x UCX_TLS=tcp,self,sm", {}, ALL - {PML}),
    ("-x UCX_TLS=tcp -x UCX_NET_DEVICES=eth0", {}, ALL - {PML}),
]


@pytest.mark.parametrize("family", ["openmpi4", "openmpi5"])
@pytest.mark.parametrize(("words", "environ", "expected"), CHOICES)
def test_what_carries_open_mpis_messages_is_one_choice(
    family: str, words: str, environ: dict[str, str], expected: frozenset[str]
) -> None:
    seen = observed(family, {**POD, **environ})
    plan = planned(f"mpirun -n 2 {words} ./train", seen)
    assert transports(plan) == expected
    for name in ALL - expected:
        assert reason(plan, name)


@pytest.mark.parametrize("name", [PML, BTL, "UCX_TLS", UCX, "FI_PROVIDER"])
def test_a_choice_in_a_workers_pod_whose_value_nobody_knows_leaves_all_alone(name: str) -> None:
    plan = planned("./train", with_facts(observed(), environment=[(name,)] * 2))
    assert transports(plan) == set()
    assert "w-0.job.ns.svc's pod" in reason(plan, HCOLL)[2]


@pytest.mark.parametrize(
    ("words", "environ", "is_set"),
    [
        ("", {}, True),
        ("", {"FI_PROVIDER": "efa"}, False),
        ("-genv FI_PROVIDER tcp;ofi_rxm", {}, False),
        ("-genv I_MPI_OFI_PROVIDER verbs", {}, False),
        ("", {"I_MPI_FABRICS": "shm"}, False),
        ("", {"I_MPI_OFI_PROVIDER": "psm3"}, False),
    ],
)
def test_libfabrics_provider_is_one_choice_for_intel_mpi(
    words: str, environ: dict[str, str], *, is_set: bool
) -> None:
    plan = planned(f"mpirun {words} -n 2 ./train", observed("intel", {**POD, **environ}))
    assert (plan.set_env.get("I_MPI_OFI_PROVIDER") == "tcp") is is_set
    assert "FI_PROVIDER" not in plan.set_env


@pytest.mark.parametrize("family", ["intel", "mpich"])
@pytest.mark.parametrize(
    ("address", "is_set"),
    [("192.168.77.1/32", False), ("fd00::7/64", True), ("fe80::1/64", True)],
)
def test_libfabric_gets_no_link_with_a_second_address(
    family: str, address: str, *, is_set: bool
) -> None:
    """It may take the one that no other pod reaches, and the job would hang."""
    seen = observed(family)
    links = [
        (replace(own, addresses=(*own.addresses, address)), link("lo", "127.0.0.1/8"))
        for own in (one.facts.links[1] for one in seen.workers if one.facts)
    ]
    plan = planned("./train", with_facts(seen, links=links))
    assert ("FI_TCP_IFACE" in plan.set_env) is is_set
    assert plan.set_env.get("UCX_NET_DEVICES") == ("eth0" if family == "mpich" else None)
    assert not plan.per_host


@pytest.mark.parametrize("family", ["mpich", "intel"])
def test_open_mpis_own_variables_are_for_open_mpi(family: str) -> None:
    plan = planned("./train", observed(family), {"mpi_network": "data"})
    assert not [name for name in plan.set_env if name.startswith("OMPI_")]


def test_each_program_of_4_1_gets_the_names_as_the_first() -> None:
    # mpirun takes a colon at the end, and refuses options behind it.
    line = "mpirun -n 1 ./a x : -n 1 ./b :"
    plan = planned(line, observed(environ={**POD, "NCCL_DEBUG": "WARN"}))
    at = plan.argv.index(":")
    first, second, last = plan.argv[:at], plan.argv[at + 1 : -1], plan.argv[-1]
    assert last == ":"
    names = first[first.index("-x") : first.index("./a") - 2]
    assert "NCCL_DEBUG" in names
    assert second == (*names, "-n", "1", "./b")
    # To 5.0 they are those of all programs, wherever they stand.
    five = planned("mpirun -n 1 ./a : -n 1 ./b", observed("openmpi5")).argv
    assert "-x" in five[: five.index(":")]
    assert "-x" not in five[five.index(":") :]


SOCKETS, HCA, NET = "NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "NCCL_NET"
INDEX, RANGE = "NCCL_IB_GID_INDEX", "NCCL_IB_ADDR_RANGE"
UCX_INDEX, TLS = "UCX_IB_GID_INDEX", "UCX_TLS"
INCLUDE, EXCLUDE = "OMPI_MCA_btl_tcp_if_include", "OMPI_MCA_btl_tcp_if_exclude"
PROPOSED: tuple[str, ...] = (
    *(SOCKETS, HCA, "NCCL_IB_PKEY", NET, INDEX, RANGE),
    *(UCX, UCX_INDEX, "UCX_IB_PKEY", PML, "OMPI_MCA_mtl", INCLUDE),
)


@pytest.mark.parametrize(
    ("name", "value", "left"),
    [
        (SOCKETS, "eth0", {SOCKETS}),
        (HCA, "mlx5", {HCA, "NCCL_IB_PKEY", NET, INDEX, RANGE}),
        (INDEX, "3", {INDEX, RANGE}),
        ("NCCL_IB_ROCE_VERSION_NUM", "1", {INDEX, RANGE}),
        (NET, "ib", {NET}),
        ("NCCL_NET_PLUGIN", "mine", {NET}),
        ("NCCL_NET_PLUGIN", "None", set()),
        ("NCCL_IB_DISABLE", "1", {NET}),
        ("NCCL_IB_DISABLE", "0", set()),
        ("NCCL_IB_DISABLE", None, {NET}),
        (UCX, "eth0", {UCX, UCX_INDEX, "UCX_IB_PKEY"}),
        (TLS, "tcp", {UCX, UCX_INDEX, "UCX_IB_PKEY", PML}),
        (UCX_INDEX, "3", {UCX_INDEX}),
        (PML, "ob1", {PML, "OMPI_MCA_mtl"}),
        (EXCLUDE, "eth0", {INCLUDE}),
        ("NCCL_IB_TC", "106", set()),
        ("GLOO_SOCKET_IFNAME", "eth0", set()),
    ],
)
def test_who_has_chosen_a_part_of_the_data_network_gets_nothing_beside_it(
    name: str, value: str | None, left: set[str]
) -> None:
    """On that host alone, where it stands in its pod."""

    def owned(host: str, other: str) -> Owned | None:
        found = Owned(value, Source.ENVIRONMENT, "its pod")
        return found if (host, other) == ("w-1", name) else None

    proposals = [Variable(item, "new", "why") for item in PROPOSED]
    common, per_host, decisions = resolve.for_ranks(proposals, ("w-0", "w-1"), owned)
    assert common == dict.fromkeys(set(PROPOSED) - left, "new")
    assert per_host == {"w-0": dict.fromkeys(left, "new"), "w-1": {}}
    shown = {item.name: item.value for item in decisions if "its pod; on w-1" in item.reason}
    assert shown == dict.fromkeys(left, "") | (
        {name: "(the user's own)" if value is None else value} if name in left else {}
    )
