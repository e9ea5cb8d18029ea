from __future__ import annotations

from dataclasses import replace

import pytest

from mpiboot.core.model import Decision, MpiFamily, Source
from mpiboot.job.agent_variables import given_by_user
from mpiboot.job.mpirun_line import read
from mpiboot.job.mpis import IMPLEMENTATIONS
from tests.fakes.plans import (
    POD,
    both,
    failing,
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
@pytest.mark.parametrize("name", ["OMPI_MCA_plm_rsh_args", "OMPI_MCA_plm_ssh_args"])
def test_ssh_arguments_have_no_effect_on_kubectl(family: str, name: str) -> None:
    seen = observed(family, {**POD, name: "-J gate -v"})
    assert warned(planned("./train", seen)) == []
    kubectl = Decision("launch-agent", "kubectl", Source.DETECTED, "there is no key")
    message = warned(planned("./train", replace(seen, client=kubectl)))[0]
    assert message.startswith(f"{name} has ProxyJump gate, -v, which has no effect")
