"""The plans are those that were reviewed, ``tests/data/plans``; and what of a plan is not there."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from mpiboot.core.checks import BY_REFERENCE, MpibootError
from mpiboot.core.facts import Fabric, RdmaDevice, RdmaPort, Variable
from mpiboot.core.model import Level, Mpi, MpiFamily, Source
from mpiboot.core.settings import Settings, resolve
from mpiboot.job import control_links, mpis, render
from mpiboot.job.control_links import given_by_user
from mpiboot.job.mpirun_line import read
from mpiboot.job.mpis import IMPLEMENTATIONS, implementation_of
from mpiboot.job.plan import _READ_FILE, LOCAL_RANKS, make, pair_findings, stop_on_failure
from mpiboot.job.plan_input import LaunchPaths, for_ranks
from mpiboot.network import nccl, worker_network
from mpiboot.network.records import Owned, Transport
from mpiboot.network.worker_pairs import LAUNCHER, Dial, Reached
from tests.fakes import plan_rows, platform_plans
from tests.fakes.plan_cases import data_links
from tests.fakes.plans import HYDRAS, MPIS, PATHS, POD, both, failing, hosts, observed, planned
from tests.fakes.platform_plans import HYDRA, KNOWN, SAMPLES, seen

REVIEWED = Path(__file__).parents[1] / "data" / "plans"
MADE = {**platform_plans.files(), **plan_rows.files()}


@pytest.mark.parametrize("name", MADE)
def test_the_plan_is_the_one_that_was_reviewed(name: str) -> None:
    """``python -m tests.data.build_plans`` writes the files anew."""
    assert MADE[name] == (REVIEWED / name).read_text()


def test_no_plan_is_left_of_what_is_gone() -> None:
    assert {str(path.relative_to(REVIEWED)) for path in REVIEWED.rglob("*.txt")} == MADE.keys()


@pytest.mark.parametrize("mpi", KNOWN)
@pytest.mark.parametrize("platform", SAMPLES)
def test_what_holds_for_every_plan(platform: str, mpi: str) -> None:
    sample = SAMPLES[platform]
    for line in sample.lines(mpi):
        plan = planned(line, seen(platform, mpi), sample.flags)
        assert not [item for item in plan.findings if item.level is Level.FAIL]
        assert all(item.reason and item.source for item in plan.decisions)
        # Ranks go to other hosts by launch agents alone, which mpirun finds by its own names.
        copy = "/run/mpiboot/launcher/launch/hostfile"
        assert {"/opt/agent", copy} <= {*plan.set_env.values()}
        assert len(plan.hostfile.splitlines()) == len(plan.remote_hosts) + bool(sample.own)
        # What says who this pod is must not reach ranks on others.
        own = {"HOSTNAME", "HOME", "K_MPI_JOB_ROLE", "JOB_COMPLETION_INDEX"}
        assert mpi not in HYDRA or not own & {*plan.environment(seen(platform, mpi).environ)}


SECRET = "hunter2hunter2"


@both
def test_no_secret_is_shown_by_a_plan(family: str) -> None:
    names = ("NCCL_AUTH_TOKEN", "OMPI_MCA_some_password", "WANDB_API_KEY")
    line = f"mpirun -x MY_TOKEN={SECRET} ./train --api-key={SECRET}"
    seen = observed(family, {**POD, **dict.fromkeys(names, SECRET)})
    plan = planned(line, seen, {"forward": "WANDB_API_KEY"})
    text = render.plan_json(plan, plan.findings)
    assert SECRET not in render.plan(plan, plan.findings) + text + render.command(plan.argv)
    assert f"MY_TOKEN={SECRET}" in plan.argv
    assert json.loads(text)["argv"][0] == "mpirun"


def test_the_first_failure_ends_the_launcher_and_the_others_come_along() -> None:
    flags = {"port_range": "7000-7001", "control_ifname": "ens9"}
    plan = planned("./train", observed("openmpi5", {**POD, "PRTE_MCA_x": "$"}), flags)
    assert failing(plan) == ["interface-missing", "settings-conflict"]
    with pytest.raises(MpibootError) as stopped:
        stop_on_failure(plan.findings)
    assert stopped.value.finding.check == "interface-missing"
    assert [item.check for item in stopped.value.others] == ["settings-conflict"]
    assert all(item.check in BY_REFERENCE for item in plan.findings)


@both
@pytest.mark.parametrize(
    ("environ", "optional", "elsewhere"),
    [
        ({}, False, False),
        ({"OMPI_MCA_btl_tcp_if_include": "net1"}, True, False),
        ({"MPIBOOT_MPI_NETWORK": "data"}, True, False),
    ],
)
def test_workers_that_do_not_reach_each_other_end_a_job_that_needs_it(
    family: str, environ: dict[str, str], *, optional: bool, elsewhere: bool
) -> None:
    seen = observed(family, {**POD, **environ})
    plan = planned("./train", seen)
    first, second = (host.name for host in seen.hostfile.hosts)
    for target, warns in ((second, optional), (LAUNCHER, elsewhere)):
        dropped = Dial(first, target, "10.244.0.11", 4000, 2.0, Reached.SILENT)
        (wrong,) = pair_findings(plan, seen, [dropped])
        assert wrong.level is (Level.WARN if warns else Level.FAIL)


@pytest.mark.parametrize("family", ["openmpi4", "openmpi5", "mpich"])
def test_nat_ends_a_job_of_open_mpi_alone(family: str) -> None:
    seen = observed(family)
    first, second = (host.name for host in seen.hostfile.hosts)
    dial = Dial(first, second, "10.0.0.2", 4000, 2.0, Reached.ANSWERED, "10.0.0.1", "10.1.0.1")
    (found,) = pair_findings(planned("./train", seen), seen, [dial])
    assert found.level is (Level.WARN if family == "mpich" else Level.FAIL)


@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("openmpi4", "OMPI_MCA_plm_rsh_num_concurrent"),
        ("openmpi5", "PRTE_MCA_plm_ssh_num_concurrent"),
    ],
)
def test_more_hosts_than_agents_at_once_would_wait_forever(family: str, name: str) -> None:
    for count, value in ((128, None), (129, "129")):
        plan = planned("./train", observed(family, listed=hosts(*[1] * count)))
        assert plan.set_env.get(name) == value


def test_a_comma_would_end_the_path_of_the_table_of_ranks() -> None:
    plan = make(observed("openmpi5"), resolve({}, {}), LaunchPaths("/run/a,b", PATHS.agent))
    assert "rank-table" not in {item.name for item in plan.decisions}


def test_what_was_decided_while_waiting_is_not_decided_again() -> None:
    seen = data_links("net1", "net1").apply(observed())
    # A record that the facts don't give: only the one that is handed over can show it.
    decided = [worker_network.choose(one, Settings()) for one in seen.workers]
    networks = {one.host: replace(one, data=(), transport=Transport.NONE) for one in decided}
    plan = planned("./train", replace(seen, networks=networks))
    assert [row[2] for row in plan.rows] == ["none", "none"]


def test_devices_of_ucx_are_no_links() -> None:
    facts = observed().workers[0].facts
    assert facts is not None
    device = RdmaDevice("mlx5_0", ports=(RdmaPort(1),))
    here = replace(facts, fabric=Fabric(devices=(device,)))
    # UCX takes a device by its port alone.
    for value, gone in (("mlx5_0:1,eth0", []), ("mlx5_0", ["mlx5_0"]), ("mlx5_0:2", ["mlx5_0:2"])):
        assert control_links.links_gone(here, value) == gone
    assert control_links.links_gone(here, "mlx5_[1-2]:1") == []
    for unseen in (Fabric(refused="x"), Fabric(devices=(RdmaDevice("mlx5_0"),))):
        assert control_links.links_gone(replace(here, fabric=unseen), "mlx5_1:1") == []


@pytest.mark.parametrize(
    ("line", "environ", "port", "user"),
    [
        ("", {}, 0, ""),
        ("", {"OMPI_MCA_plm_rsh_args": "-p 9 -l me"}, 9, "me"),
        ("", {"HYDRA_LAUNCHER_EXTRA_ARGS": "-p 9"}, 0, ""),
        ("", {"OMPI_MCA_plm_rsh_agent": "ssh -p 8", "HYDRA_LAUNCH_EXTRA_ARGS": "-p 9"}, 8, ""),
        ("--mca plm_rsh_args -oPort=7", {"OMPI_MCA_plm_rsh_args": "-p 9"}, 7, ""),
        ("--mca plm_rsh_agent /my/agent", {"OMPI_MCA_plm_rsh_args": "-p 9"}, 0, ""),
    ],
)
def test_the_gate_has_the_port_and_user_of_the_users_arguments_for_ssh(
    line: str, environ: dict[str, str], port: int, user: str
) -> None:
    words = read(["mpirun", *line.split(), "./train"], MpiFamily.OPENMPI4)
    found = given_by_user(environ, words, IMPLEMENTATIONS[MpiFamily.OPENMPI4])
    assert (found.port, found.user) == (port, user)


HOST = socket.gethostname()


@pytest.mark.parametrize(
    ("host", "owner", "value"),
    [(HOST, "mine", "here"), ("another", "mine", ""), (HOST, "another's", "")],
)
def test_the_file_for_ranks_here_of_another_host_or_owner_is_not_read(
    tmp_path: Path, host: str, owner: str, value: str
) -> None:
    file = tmp_path / LOCAL_RANKS
    file.write_text("export OWN='here';\n")
    if owner == "another's":
        if os.getuid():
            pytest.skip("only root can give a file to another user")
        os.chown(file, 1, 1)
    words = ["/bin/sh", "-c", _READ_FILE, str(file), host, "sh", "-c", 'echo "$# $OWN"', "_"]
    done = subprocess.run([*words, "a b"], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == (f"1 {value}\n", "")


SOCKETS, HCA, NET, PML = "NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "NCCL_NET", "OMPI_MCA_pml"
INDEX, RANGE = "NCCL_IB_GID_INDEX", "NCCL_IB_ADDR_RANGE"
UCX, UCX_INDEX, UCX_KEY, KEY = nccl.UCX_GID[0], nccl.UCX_GID[2], "UCX_IB_PKEY", "NCCL_IB_PKEY"
INCLUDE, EXCLUDE, MTL = "OMPI_MCA_btl_tcp_if_include", "OMPI_MCA_btl_tcp_if_exclude", "OMPI_MCA_mtl"
PROPOSED = (SOCKETS, HCA, KEY, NET, INDEX, RANGE, UCX, UCX_INDEX, UCX_KEY, PML, MTL, INCLUDE)


@pytest.mark.parametrize(
    ("name", "value", "left"),
    [
        (SOCKETS, "eth0", {SOCKETS}),
        (HCA, "mlx5", {HCA, KEY, NET, INDEX, RANGE}),
        (INDEX, "3", {INDEX, RANGE}),
        ("NCCL_IB_ROCE_VERSION_NUM", "1", {INDEX, RANGE}),
        (NET, "ib", {NET}),
        ("NCCL_NET_PLUGIN", "mine", {NET}),
        ("NCCL_NET_PLUGIN", "None", set()),
        ("NCCL_IB_DISABLE", "1", {NET}),
        ("NCCL_IB_DISABLE", "0", set()),
        ("NCCL_IB_DISABLE", None, {NET}),
        (UCX, "eth0", {UCX, UCX_INDEX, UCX_KEY}),
        ("UCX_TLS", "tcp", {UCX, UCX_INDEX, UCX_KEY, PML}),
        (UCX_INDEX, "3", {UCX_INDEX}),
        (PML, "ob1", {PML, MTL}),
        (EXCLUDE, "eth0", {INCLUDE}),
        ("NCCL_IB_TC", "106", set()),
        ("GLOO_SOCKET_IFNAME", "eth0", set()),
    ],
)
def test_who_has_chosen_a_part_of_the_data_network_gets_nothing_beside_it(
    name: str, value: str | None, left: set[str]
) -> None:
    def owned(host: str, other: str) -> Owned | None:
        found = Owned(value, Source.ENVIRONMENT, "its pod")
        return found if (host, other) == ("w-1", name) else None

    proposals = [Variable(item, "new", "why") for item in PROPOSED]
    common, per_host, decisions = for_ranks(proposals, ("w-0", "w-1"), owned)
    assert common == dict.fromkeys(set(PROPOSED) - left, "new")
    assert per_host == {"w-0": dict.fromkeys(left, "new"), "w-1": {}}
    shown = {item.name: item.value for item in decisions if "its pod; on w-1" in item.reason}
    own = {name: "(the user's own)" if value is None else value} if name in left else {}
    assert shown == dict.fromkeys(left, "") | own


def test_no_constant_holds_what_a_remote_shell_would_read() -> None:
    for mpi in IMPLEMENTATIONS.values():
        for item in (*mpi.constants, *mpi.transports, *mpis.OpenMpi.root):
            assert not set(item.value) & set("\"'$\\`;&|<>() \n"), item


@pytest.mark.parametrize(
    ("version", "title"),
    [
        *((version, "Open MPI after 5.0") for version in ("5.1.0a1", "6.0.0", "10.0")),
        *((version, "Open MPI 5.0 (PRRTE)") for version in ("5.0.7", "5.0.11", "")),
    ],
)
def test_a_series_that_was_not_tried_is_known(version: str, title: str) -> None:
    found = implementation_of(Mpi(MpiFamily.OPENMPI5, version, "/usr/bin/mpirun", ""))
    assert found is not None
    assert found.title == title


@pytest.mark.parametrize("family", [*MPIS, *HYDRAS])
def test_an_unknown_version_is_planned_as_the_series_that_was_tried(family: str) -> None:
    seen = observed(family)
    unknown = replace(seen, mpi=replace(seen.mpi, version=""))
    assert planned("./train", unknown).argv == planned("./train", seen).argv
