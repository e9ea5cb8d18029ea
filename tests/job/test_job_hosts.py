from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import pytest

from mpiboot.core.facts import Host
from mpiboot.core.model import MpiFamily
from mpiboot.core.settings import resolve
from mpiboot.job.job_hosts import first_host, of_line
from mpiboot.job.mpirun_line import read
from mpiboot.job.mpis import IMPLEMENTATIONS
from mpiboot.job.plan_input import PlanInput
from tests.fakes.plans import PATHS, observed


def hosts(*slots: int) -> tuple[Host, ...]:
    return tuple(Host(f"w-{at}", count, slots_given=True) for at, count in enumerate(slots))


def first(
    text: str,
    listed: tuple[Host, ...] = hosts(2, 2),
    environ: Mapping[str, str] = MappingProxyType({}),
    *,
    family: str = "openmpi4",
    local: tuple[Host, ...] = (),
) -> tuple[str, str]:
    """The host of rank 0 by a line, or what may choose another one."""
    mpi = MpiFamily(family)
    seen = observed(family, environ, listed=listed, local=local)
    seen = replace(seen, line=read(["mpirun", *text.split(), "./prog"], mpi))
    return first_host(PlanInput(IMPLEMENTATIONS[mpi], seen, resolve({}, {}), PATHS), listed)


@pytest.mark.parametrize("family", ["openmpi4", "openmpi5", "mpich"])
@pytest.mark.parametrize(
    ("text", "slots", "expected"),
    [
        ("", (2, 2), "w-0"),
        ("-n 1", (0, 2), "w-1"),
        ("", (0, 0), ""),
        ("-n 2 ./a : -n 2", (1, 1), "w-0"),
        ("-n 2 -host w-1 ./a : -n 2", (1, 1), ""),
    ],
)
def test_rank_0_is_on_the_first_host_with_a_slot(
    family: str, text: str, slots: tuple[int, ...], expected: str
) -> None:
    assert first(text, hosts(*slots), family=family)[0] == expected


def test_4_puts_its_own_host_first_wherever_the_hostfile_has_it() -> None:
    own = hosts(1, 1)[1:]
    assert first("", hosts(1, 1), local=own) == ("w-1", "")
    assert first("", hosts(1, 1), local=own, family="openmpi5") == ("w-0", "")


@pytest.mark.parametrize(
    ("text", "environ", "left"),
    [
        ("--rankfile x", {}, "--rankfile"),
        ("--nolocal", {}, "--nolocal"),
        ("--map-by seq", {}, "--map-by seq"),
        ("--map-by dist:span", {}, "--map-by dist:span"),
        ("--mca rmaps seq", {}, "rmaps=seq"),
        ("-H +n1", {}, "-H +n1"),
        ("--frobnicate 3", {}, "--frobnicate"),
        ("-n 1 -H w-0 ./a : -n 1 -H w-1", {}, "several programs with hosts of their own"),
        ("", {"OMPI_MCA_orte_default_dash_host": "w-1"}, "OMPI_MCA_orte_default_dash_host=w-1"),
        ("", {"OMPI_MCA_rmaps_base_mapping_policy": "seq"}, "OMPI_MCA_rmaps_base_mapping_policy"),
        # These leave it where it is.
        ("--map-by ppr:4:node:pe=2", {}, ""),
        ("--map-by node --rank-by core --bind-to none", {}, ""),
        ("--cpus-per-proc 2 --npersocket 2", {}, ""),
        ("--mca rmaps_base_oversubscribe 1 --oversubscribe", {}, ""),
        ("-n 8 --map-by ppr:4:node ./a : -n 2", {}, ""),
    ],
)
def test_what_may_choose_another_host_for_rank_0_is_named(
    text: str, environ: dict[str, str], left: str
) -> None:
    name, why = first(text, environ=environ)
    assert (name == "w-0", why.startswith(left)) == (not left, True)


@pytest.mark.parametrize("family", [MpiFamily.OPENMPI4, MpiFamily.OPENMPI5, MpiFamily.MPICH])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("-host w-2:3,W-0.,stranger", "w-2 4, w-0 4, stranger 1"),
        ("-host a:2,a,b", "a 3, b 1"),
        ("-n 1 -host w-1 x : -n 1 -host w-2", "w-1 4, w-2 4"),
        ("-host w-0:8,w-1:*", "w-0 4, w-1 4"),
        # Some hosts are the hostfile's, or mpirun's own choice.
        ("-n 1 -host w-1 x : -n 1", ""),
        ("", ""),
    ],
)
def test_hosts_of_the_line_are_the_hosts_of_the_job(
    family: MpiFamily, text: str, expected: str
) -> None:
    found = of_line(read(["mpirun", *text.split(), "x"], family), hosts(4, 4, 4))
    assert ", ".join(f"{host.name} {host.slots}" for host in found) == expected


@pytest.mark.parametrize("text", ["-H +n1", "-H w-0:8,+n1", "--frobnicate -H w-1", "--novm -H a"])
def test_hosts_that_mpirun_alone_knows_are_left_to_it(text: str) -> None:
    assert of_line(read(["mpirun", *text.split(), "x"], MpiFamily.OPENMPI4), hosts(8, 8)) == ()
