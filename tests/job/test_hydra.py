"""What a plan says for an MPI whose mpirun is Hydra."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mpiboot.core.facts import Host
from mpiboot.core.model import MpiFamily, Source
from mpiboot.job import forward
from mpiboot.job.mpis import IMPLEMENTATIONS
from tests.fakes.plans import (
    HYDRAS,
    PATHS,
    POD,
    failing,
    hosts,
    link,
    observed,
    planned,
    reason,
    warned,
    with_facts,
)

EXIT_CODES = "-print-all-exitcodes"
each = pytest.mark.parametrize("family", list(HYDRAS))


@each
def test_mpirun_has_nothing_that_would_overwrite_what_a_worker_has_of_its_own(family: str) -> None:
    mine = {
        **dict.fromkeys(("K_MPI_JOB_ROLE", "POD_IP", "HOME", "KUBERNETES_PORT"), "here"),
        **dict.fromkeys(("OWN", "WANTED", "DATA", "NCCL_X", "BASH_FUNC_x%%"), "here"),
    }
    names = ("OWN", "WANTED", "NCCL_X")
    seen = with_facts(observed(family, {**POD, **mine}), environment=(names, names))
    plan = planned("./train", seen, {"forward": "WANTED"})
    left = plan.environment(seen.environ)
    assert left.keys() & mine.keys() == {"WANTED", "DATA", "NCCL_X"}
    # The launch agents are of this pod, and kubectl, as one of them, would not work without.
    assert plan.agent_env.keys() >= mine.keys() - left.keys()
    assert plan.agent_env["HOME"] == "here"
    assert "HOME" not in plan.set_env


@each
@pytest.mark.parametrize(
    ("option", "names"), [("-genvnone", ""), ("-envlist A,B", "A B"), ("-genvlist A", "A")]
)
def test_a_line_that_names_what_ranks_get_lets_nothing_else_through(
    family: str, option: str, names: str
) -> None:
    """As seen with MPICH 4.0.2; what ranks need is set by the agents then."""
    seen = observed(family, {**POD, "DATA": "x", "A": "1"})
    rank_env = {"rank_env": "true"}
    whole, plan = (planned(f"mpirun {words} ./train", seen, rank_env) for words in ("", option))
    assert reason(plan, "forwarded") == (
        names or "none",
        Source.FLAG,
        f"{option} on the mpirun line: ranks get nothing else of mpirun's environment",
    )
    assert not warned(plan)
    assert "GLOO_SOCKET_IFNAME" in whole.set_env
    assert "GLOO_SOCKET_IFNAME" not in plan.set_env
    set_there = {"GLOO_SOCKET_IFNAME": "eth0", "MASTER_ADDR": "10.244.0.10"}
    assert all(set_there.items() <= mine.items() for mine in plan.per_host.values())
    assert reason(whole, "forwarded")[0] == "all"
    assert whole.environment(seen.environ).keys() >= {"DATA", "A", "MASTER_ADDR"}


@each
def test_a_name_that_the_user_holds_back_is_taken_out(family: str) -> None:
    seen = observed(family, {**POD, "DATA": "x", "NCCL_DEBUG": "INFO", "A": "1"})
    plan = planned("mpirun -genvlist A ./train", seen, {"no_forward": "NCCL_*,A"})
    assert {"DATA", "A"} <= plan.environment(seen.environ).keys()
    assert "NCCL_DEBUG" in plan.unset_env


def test_what_mpirun_reads_itself_is_no_variable_of_the_ranks() -> None:
    environ = {"HYDRA_DEBUG": "1", "MPIBOOT_NP": "4", "PATH": "/bin", "PMI_RANK": "0"}
    assert forward.withheld_from_ranks(environ) == ("PMI_RANK",)


@each
def test_daemons_connect_to_the_launchers_own_link_whatever_workers_call_theirs(
    family: str,
) -> None:
    seen = observed(family)
    links = [
        (link(name, f"{one.address}/24"),)
        for name, one in zip(("ens3", "ens4"), seen.workers, strict=True)
    ]
    seen = with_facts(seen, links=links)
    plan = planned("./train", seen)
    name = IMPLEMENTATIONS[MpiFamily(family)].daemon_link_vars[0]
    assert plan.set_env[name] == "eth0"
    assert reason(plan, name)[1:] == (
        Source.DETECTED,
        "the launcher's link to all workers: daemons connect to its address",
    )
    names = [mine["FI_TCP_IFACE"] for mine in plan.per_host.values()]
    assert names == ["ens3", "ens4"]
    named = planned("./train", seen, {"control_ifname": "eth0"})
    assert failing(named) == []
    assert [mine["FI_TCP_IFACE"] for mine in named.per_host.values()] == names
    network = planned("./train", observed(family), {"control_ifname": "10.244.0.0/16"})
    assert network.set_env[name] == "eth0"
    lacking = planned("./train", seen, {"control_ifname": "ens3"})
    assert [item.message for item in lacking.findings if item.check == "interface-missing"] == [
        "--control-ifname=ens3: no such link in the launcher's pod"
    ]


FILE = PATHS.hostfile
MPIEXEC = "/opt/mpi/bin/mpiexec.hydra"
BARE = (Host("a", line=1), Host("b", line=2))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("mpirun -f /x/hosts -n 4 ./train -f y", f"-f {FILE} -n 4"),
        ("mpirun -n 4 -machinefile /x/hosts ./train -f y", f"-n 4 -machinefile {FILE}"),
        ("mpiexec -hostfile=/x/hosts -n 4 ./train -f y", f"-hostfile={FILE} -n 4"),
        ("/opt/mpi/bin/mpirun -grr 2 -n 4 ./train -f y", "-grr 2 -n 4"),
    ],
)
def test_intels_own_program_gets_the_line_with_the_copy_of_the_hostfile(
    line: str, words: str
) -> None:
    seen = observed("intel", {**POD, "I_MPI_PERHOST": "2"})
    plan = planned(line, seen)
    rest = (EXIT_CODES, *words.split(), "./train", "-f", "y")
    assert plan.argv == (MPIEXEC, *rest)
    assert (failing(plan), plan.set_env["I_MPI_HYDRA_HOST_FILE"]) == ([], FILE)
    # Where its path is not known.
    seen = replace(seen, mpi=replace(seen.mpi, path="/usr/local/bin/mpirun"))
    assert planned(line, seen).argv == ("mpiexec.hydra", *rest)


@pytest.mark.parametrize(
    ("words", "listed", "perhost", "ranks", "added"),
    [
        # As seen with 2021.18.1: a hostfile's numbers count behind -machinefile alone, where they
        # undo all else that says how many ranks a host gets; a host without one has one slot there.
        ("", hosts(2, 2), "", 4, True),
        ("-f /x", hosts(1, 3), "", 4, True),
        ("", hosts(2, 2), "1", 2, False),
        ("", hosts(2, 2), "all", None, False),
        ("", hosts(1, 3), "2", 4, False),
        ("", hosts(0, 3), "2", 2, False),
        ("", hosts(0, 0), "", None, False),
        ("-f /x", hosts(0, 0), "", None, False),
        ("", BARE, "", None, False),
        ("", BARE, "3", 6, False),
        ("-machinefile /x", hosts(1, 3), "2", 4, False),
        ("-machinefile /x", BARE, "3", 2, False),
        ("-ppn 1", hosts(2, 2), "", None, False),
        ("-rr", hosts(2, 2), "", None, False),
        ("-hosts w-0", hosts(2, 2), "", None, False),
        ("-frobnicate", hosts(2, 2), "", None, False),
    ],
)
def test_which_numbers_of_slots_count_for_intel(
    words: str, listed: tuple[Host, ...], perhost: str, ranks: int | None, *, added: bool
) -> None:
    environ = {**POD, **({"I_MPI_PERHOST": perhost} if perhost else {})}
    plan = planned(f"mpirun {words} ./train", observed("intel", environ, listed=listed))
    assert (plan.ranks or None, failing(plan)) == (ranks, [])
    before = plan.argv[: plan.argv.index(EXIT_CODES)]
    assert (before[-2:] == ("-machinefile", FILE)) == added


def test_the_setting_for_slots_is_intels_number_where_the_hostfile_has_none() -> None:
    plan = planned("./train", observed("intel", listed=BARE), {"slots": "3"})
    assert (plan.hostfile, plan.ranks) == ("a:3\nb:3\n", 6)
    assert plan.argv[-4:-2] == ("-machinefile", FILE)
