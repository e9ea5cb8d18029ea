from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from mpiboot.core.model import Decision, MpiFamily, Source
from mpiboot.job.agent_variables import given_by_user
from mpiboot.job.mpirun_line import read
from mpiboot.job.mpis import IMPLEMENTATIONS
from tests.fakes.plans import (
    NOBODY,
    PATHS,
    POD,
    both,
    failing,
    hosts,
    observed,
    planned,
    reason,
    warned,
)


@both
def test_a_network_is_pinned_where_links_have_different_names(family: str) -> None:
    plan = planned("./train", observed(family, worker_link="ens4"))
    name = "OMPI_MCA_oob_tcp_if_include" if family == "openmpi4" else "PRTE_MCA_prte_if_include"
    assert plan.set_env[name] == plan.set_env["OMPI_MCA_btl_tcp_if_include"] == "10.244.0.8/30"


@both
@pytest.mark.parametrize(
    ("named", "lacking"),
    [
        ("eth0", ""),
        ("ens4,eth0", ""),
        ("10.244.0.0/16", ""),
        ("10.244.0.0/16,10.245.0.0/16", ""),
        ("net9", "the launcher's pod, w-0.job.ns.svc, w-1.job.ns.svc"),
        ("ens4", "the launcher's pod"),
    ],
)
def test_a_link_of_the_users_that_a_pod_lacks_is_refused(
    family: str, named: str, lacking: str
) -> None:
    seen = observed(family, worker_link="ens4" if named == "ens4" else "eth0")
    plan = planned("./train", seen, {"control_ifname": named})
    told = [item.message for item in plan.findings if item.check == "interface-missing"]
    message = f"--control-ifname={named}: no such link in {lacking}"
    assert told == ([message] if lacking else [])
    unseen = replace(seen, links=(), workers=())
    assert failing(planned("./train", unseen, {"control_ifname": "net9"})) == []


@pytest.mark.parametrize(
    ("program", "environ"),
    [
        ("./train", {"PRTE_MCA_prte_if_include": "eth0,eth1"}),
        ("mpirun --mca oob_tcp_if_include eth0,eth1 ./train", {}),
        ("mpirun --prtemca prte_if_include eth0,eth1 ./train", {}),
    ],
)
def test_a_list_of_links_that_version_five_may_crash_over_is_named(
    program: str, environ: dict[str, str]
) -> None:
    """5.0.7 takes it, and plain mpirun runs; 4.1 has no trouble with it."""
    four = {**POD, "OMPI_MCA_oob_tcp_if_include": "eth0,eth1"}
    assert warned(planned("./train", observed("openmpi4", four))) == []
    plan = planned(program, observed("openmpi5", {**POD, **environ}))
    assert failing(plan) == []
    assert "eth0,eth1 is a list" in plan.findings[0].message
    assert "one link or one CIDR" in plan.findings[0].hint


@pytest.mark.parametrize(
    ("family", "exclude", "include"),
    [
        ("openmpi4", "OMPI_MCA_oob_tcp_if_exclude", "OMPI_MCA_oob_tcp_if_include"),
        ("openmpi5", "PRTE_MCA_prte_if_exclude", "PRTE_MCA_prte_if_include"),
        ("openmpi4", "OMPI_MCA_btl_tcp_if_exclude", "OMPI_MCA_btl_tcp_if_include"),
        ("openmpi5", "OMPI_MCA_btl_tcp_if_exclude", "OMPI_MCA_btl_tcp_if_include"),
    ],
)
def test_links_that_the_user_excludes_are_not_included_as_well(
    family: str, exclude: str, include: str
) -> None:
    plan = planned("./train", observed(family, {**POD, exclude: "docker0"}))
    assert include not in plan.set_env
    assert exclude in reason(plan, include)[2]
    parameter = exclude.removeprefix("OMPI_MCA_").removeprefix("PRTE_MCA_")
    by_flag = planned(f"mpirun --mca {parameter} docker0 ./train", observed(family))
    assert include not in by_flag.set_env
    message = f"not set: {exclude} is given on the mpirun line"
    assert reason(by_flag, include) == ("", Source.DETECTED, message)


@both
def test_arguments_for_the_users_own_agent_stay_its_own(family: str) -> None:
    environ = {
        **POD,
        "OMPI_MCA_plm_rsh_agent": "/etc/mpi/kubexec.sh",
        "OMPI_MCA_plm_rsh_args": "-p 3 word",
    }
    plan = planned("./train", observed(family, environ))
    name = "OMPI_MCA_plm_rsh_args" if family == "openmpi4" else "PRTE_MCA_plm_ssh_args"
    assert plan.set_env[name] == "-p 3 word"
    assert plan.user_args.lines == ()


@pytest.mark.parametrize(
    ("line", "environ", "port", "user"),
    [
        ("", {}, 0, ""),
        ("", {"OMPI_MCA_plm_rsh_args": "-p 9 -l me"}, 9, "me"),
        ("", {"HYDRA_LAUNCHER_EXTRA_ARGS": "-p 9"}, 0, ""),
        (
            "",
            {"OMPI_MCA_plm_rsh_agent": "/usr/bin/ssh -p 8", "HYDRA_LAUNCH_EXTRA_ARGS": "-p 9"},
            8,
            "",
        ),
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


@both
@pytest.mark.parametrize(
    "agent", ["ssh", "ssh : rsh", "rsh", "/usr/bin/ssh", "ssh -o Compression=yes : rsh", "ssh -p 9"]
)
def test_an_agent_that_is_ssh_is_not_the_users_own_and_cannot_step_down(
    family: str, agent: str
) -> None:
    plan = planned("./train", observed(family, {**POD, "OMPI_MCA_plm_rsh_agent": agent}))
    assert plan.user_agent == ""
    assert plan.user_args.lines == (("Compression yes",) if "Compression" in agent else ())
    assert warned(plan) == []


@both
def test_the_users_ssh_arguments_are_merged_behind_ours_and_reported(family: str) -> None:
    name = "OMPI_MCA_plm_rsh_args"
    environ = {**POD, name: "-o StrictHostKeyChecking=no -o ConnectTimeout=7 -v"}
    plan = planned("./train", observed(family, environ))
    assert (plan.user_args.lines, plan.user_args.words) == (("ConnectTimeout 7",), ("-v",))
    assert f"{name} has StrictHostKeyChecking=no, which has no effect" in warned(plan)[-1]
    assert reason(plan, "ssh-arguments")[1] is Source.ENVIRONMENT
    # What is left is all that mpirun passes on.
    row = IMPLEMENTATIONS[MpiFamily(family)]
    assert plan.environment(environ)[row.agent_args_vars[0]] == "-v"
    nothing = {**POD, row.agent_args_vars[0]: "-p 9"}
    plan = planned("./train", observed(family, nothing))
    assert row.agent_args_vars[0] not in plan.environment(nothing)


@both
def test_ssh_arguments_on_the_line_are_read_into_the_configuration_too(family: str) -> None:
    name = "plm_rsh_args" if family == "openmpi4" else "plm_ssh_args"
    line = f"mpirun --mca {name} -oUserKnownHostsFile=/x ./train"
    plan = planned(line, observed(family, {**POD, f"OMPI_MCA_{name}": "-C"}))
    assert name not in plan.argv
    assert plan.user_args.lines == ()
    assert f"--mca {name} has UserKnownHostsFile=/x, which has no effect" in warned(plan)[0]
    assert reason(plan, "ssh-arguments")[1] is Source.FLAG


@both
@pytest.mark.parametrize("name", ["OMPI_MCA_plm_rsh_args", "OMPI_MCA_plm_ssh_args"])
def test_ssh_arguments_have_no_effect_on_kubectl(family: str, name: str) -> None:
    seen = observed(family, {**POD, name: "-J gate -v"})
    assert warned(planned("./train", seen)) == []
    kubectl = Decision("launch-agent", "kubectl", Source.DETECTED, "there is no key")
    message = warned(planned("./train", replace(seen, client=kubectl)))[0]
    assert message.startswith(f"{name} has ProxyJump gate, -v, which has no effect")


@both
def test_more_hosts_than_agents_at_once_would_wait_for_ever(family: str) -> None:
    name = f"{'OMPI_MCA_plm_rsh' if family == 'openmpi4' else 'PRTE_MCA_plm_ssh'}_num_concurrent"
    assert name not in planned("./train", observed(family, listed=hosts(*[1] * 128))).set_env
    many = planned("./train", observed(family, listed=hosts(*[1] * 129)))
    assert many.set_env[name] == "129"


@both
@pytest.mark.parametrize(("given", "raised"), [("1", True), ("2", False), ("0", False)])
def test_fewer_agents_at_once_than_hosts_are_raised_with_a_word(
    family: str, given: str, *, raised: bool
) -> None:
    """Where daemons leave their agents mpirun starts them in turn; mpiboot's agents stay."""
    name = f"plm_{'rsh' if family == 'openmpi4' else 'ssh'}_num_concurrent"
    prefix = "OMPI" if family == "openmpi4" else "PRTE"
    flag = "--mca" if family == "openmpi4" else "--prtemca"
    for line, environ in (
        (f"mpirun {flag} {name} {given} ./train", POD),
        ("./train", {**POD, f"{prefix}_MCA_{name}": given}),
    ):
        plan = planned(line, observed(family, environ, listed=hosts(1, 1)))
        assert failing(plan) == []
        assert (plan.set_env.get(f"{prefix}_MCA_{name}") == "2") == raised, line
        assert [message for message in warned(plan) if "is raised to 2" in message] == (
            warned(plan) if raised else []
        )
        assert (name in plan.argv) == (flag in line and not raised)


@pytest.mark.parametrize(
    ("line", "environ"),
    [
        ("mpirun -mca plm_rsh_no_tree_spawn 1 ./train", {}),
        ("./train", {"OMPI_MCA_plm_rsh_no_tree_spawn": "1"}),
    ],
)
def test_a_flat_launch_that_the_user_asks_for_stays_attached(
    line: str, environ: dict[str, str]
) -> None:
    """Under 4.1 the daemons would leave their agents, and mpiboot take them for lost."""
    name = "OMPI_MCA_orte_leave_session_attached"
    plan = planned(line, observed("openmpi4", {**POD, **environ}))
    assert plan.set_env[name] == "1"
    assert "OMPI_MCA_plm_rsh_no_tree_spawn" not in plan.set_env
    assert name not in planned("./train", observed("openmpi4")).set_env
    assert name not in planned(line, observed("openmpi5", {**POD, **environ})).set_env


@both
def test_what_could_hide_the_agent_from_mpirun_is_remembered(family: str) -> None:
    environ = {**POD, "OMPI_MCA_plm": "isolated"}
    plan = planned("mpirun --mca plm slurm ./train", observed(family, environ))
    assert plan.obstacles == (
        ("--mca plm slurm", "given on the mpirun line"),
        ("OMPI_MCA_plm", "OMPI_MCA_plm=isolated"),
    )


@both
def test_root_is_allowed_only_where_the_pod_is_root(family: str) -> None:
    names = {"OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"}
    assert names <= planned("./train", observed(family)).set_env.keys()
    plan = planned("./train", observed(family, {"PATH": "/bin"}, identity=NOBODY))
    assert not names & plan.set_env.keys()
    assert {name: plan.set_env[name] for name in ("HOME", "USER", "LOGNAME")} == {
        "HOME": "/",
        "USER": "uid1000",
        "LOGNAME": "uid1000",
    }


@both
def test_another_resource_managers_variables_are_taken_out(family: str) -> None:
    environ = {**POD, "SLURM_JOB_ID": "7", "SLURM_NODELIST": "x", "PBS_JOBID": "8"}
    plan = planned("./train", observed(family, environ))
    assert {"SLURM_JOB_ID", "SLURM_NODELIST", "PBS_JOBID"} <= set(plan.unset_env)
    assert not {"SLURM_JOB_ID", "PBS_JOBID"} & plan.environment(environ).keys()
    assert reason(plan, "SLURM_JOB_ID")[0] == "(removed)"
    lsf = planned("./train", observed(family, {**POD, "LSB_JOBID": "7", "LSB_HOSTS": "a b"}))
    assert "LSB_JOBID" not in lsf.unset_env  # of the platform itself


@both
def test_an_empty_variable_that_would_crash_version_five_is_taken_out(family: str) -> None:
    names = ("PRTE_MCA_oob_base_verbose", "OMPI_MCA_mpi_yield_when_idle")
    environ = {**POD, **dict.fromkeys(names, "")}
    plan = planned("./train", observed(family, environ))
    assert set(names) & set(plan.unset_env) == ({names[0]} if family == "openmpi5" else set())
    agent = "PRTE_MCA_plm_ssh_agent"
    plan = planned("./train", observed("openmpi5", {**POD, agent: ""}))
    assert plan.environment({**POD, agent: ""})[agent] == PATHS.agent


def test_version_four_forwards_by_flags_and_the_lines_own_come_first() -> None:
    environ = {**POD, "NCCL_DEBUG": "INFO", "NCCL_IB_HCA": "a"}
    plan = planned("mpirun -x NCCL_DEBUG=WARN ./train", observed("openmpi4", environ))
    pairs = [f"-x {b}" for a, b in zip(plan.argv, plan.argv[1:], strict=False) if a == "-x"]
    assert "-x NCCL_IB_HCA" in pairs
    assert [item for item in pairs if "NCCL_DEBUG" in item] == ["-x NCCL_DEBUG=WARN"]


def test_version_five_takes_flags_beside_the_users_list_once_for_all_programs() -> None:
    environ = {
        **POD,
        "NCCL_DEBUG": "INFO",
        "NCCL_IB_HCA": "=a",
        "NCCL_X": "a=b;c",
        "OMPI_MCA_mca_base_env_list": "MINE=1;NCCL_DEBUG=WARN",
    }
    plan = planned("mpirun -n 1 ./a : -n 1 ./b", observed("openmpi5", environ))
    flagged = [name for word, name in pairwise(plan.argv) if word == "-x"]
    assert {"NCCL_IB_HCA", "NCCL_X"} <= {*flagged}
    assert "NCCL_DEBUG" not in flagged
    assert len({*flagged}) == len(flagged)
    assert "OMPI_MCA_mca_base_env_list" not in plan.set_env


@pytest.mark.parametrize(
    ("words", "environ"),
    [("--mca mca_base_env_list A=1", {}), ("", {"OMPI_MCA_mca_base_env_list": "A=1"})],
)
def test_a_users_list_leaves_version_four_no_way_to_forward(
    words: str, environ: dict[str, str]
) -> None:
    """4.1 ends with -x beside its list (rc 1)."""
    line, environ = f"mpirun {words} ./train", {**POD, "NCCL_DEBUG": "INFO", **environ}
    plan = planned(line, observed("openmpi4", environ))
    assert "-x" not in plan.argv
    assert "OMPI_MCA_mca_base_env_list" not in plan.set_env
    assert "nothing else is forwarded" in warned(plan)[0]
    assert [mine["GLOO_SOCKET_IFNAME"] for mine in plan.per_host.values()] == ["eth0"] * 2
    assert warned(planned(line, observed("openmpi5", environ))) == []


def test_a_variable_that_was_asked_for_and_is_not_forwarded_is_said() -> None:
    plan = planned("./train", observed(), {"forward": "NOT_THERE"})
    assert "MPIBOOT_FORWARD has NOT_THERE: not set here, or one pod's own" in warned(plan)


def test_hydra_gets_its_parts_of_the_port_range_as_it_reads_them() -> None:
    def settled(**environ: str) -> dict[str, str]:
        seen = observed("mpich", {**POD, **environ})
        made = planned("./train", seen, {"port_range": "6000-6019"})
        return {name: value for name, value in made.set_env.items() if "PORT_RANGE" in name}

    daemons = {"MPIEXEC_PORT_RANGE": "6000:6004"}
    assert settled() == {**daemons, "MPIR_CVAR_CH3_PORT_RANGE": "6005:6019"}
    assert settled(MPICH_PORT_RANGE="7000:7010") == daemons
