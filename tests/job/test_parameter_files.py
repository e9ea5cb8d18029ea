"""What Open MPI's own files settle stands as a variable of the user's does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mpiboot.core.facts import MpiParameter
from mpiboot.core.model import Level, MpiFamily, Source
from mpiboot.job import parameter_files
from mpiboot.job.mpirun_line import read as read_line
from mpiboot.job.plan_input import Observed
from tests.fakes.plans import POD, both, failing, observed, planned, reason
from tests.job.test_data import with_links

ETC = "/etc/openmpi/openmpi-mca-params.conf"


def of_file(seen: Observed, **parameters: str) -> Observed:
    """The same, with a file of these parameters in the launcher's pod."""
    found = tuple(MpiParameter(f"OMPI_MCA_{name}", text, ETC) for name, text in parameters.items())
    return replace(seen, parameters=found)


def of_a_worker(seen: Observed, **parameters: str) -> Observed:
    """The same, with such a file in the first worker's pod alone."""
    first, *others = seen.workers
    assert first.facts is not None
    found = of_file(seen, **parameters).parameters
    facts = replace(first.facts, parameters=found)
    return replace(seen, workers=(replace(first, facts=facts), *others))


@both
def test_links_that_a_file_leaves_out_end_no_job(family: str) -> None:
    """As Horovod's and TensorFlow's images have it: both ends each rank, "mutually exclusive"."""
    plan = planned("./train", of_file(observed(family), btl_tcp_if_exclude="lo,docker0"))
    assert "OMPI_MCA_btl_tcp_if_include" not in plan.set_env
    message = f"not set: OMPI_MCA_btl_tcp_if_exclude is set in {ETC}"
    assert reason(plan, "OMPI_MCA_btl_tcp_if_include") == ("", Source.DETECTED, message)
    there = planned("./train", of_a_worker(observed(family), btl_tcp_if_exclude="lo,docker0"))
    assert "OMPI_MCA_btl_tcp_if_include" not in there.set_env
    message = reason(there, "OMPI_MCA_btl_tcp_if_include")[2]
    assert f"set in {ETC} of w-0.job.ns.svc" in message


@both
def test_a_parameter_of_a_file_is_kept_and_shown(family: str) -> None:
    plan = planned("./train", of_file(observed(family), pml="ucx", btl="^openib"))
    assert not {"OMPI_MCA_pml", "OMPI_MCA_btl"} & plan.set_env.keys()
    assert reason(plan, "OMPI_MCA_pml") == ("ucx", Source.FILE, f"set in {ETC}, and kept")
    shown = reason(plan, "mpi-parameters")
    assert shown == ("OMPI_MCA_btl OMPI_MCA_pml", Source.FILE, ETC)
    # As Debian's and Ubuntu's files have it: nothing for a user to mend.
    assert "openib" not in " ".join(finding.message for finding in plan.findings)


@both
def test_variables_and_the_line_come_before_files(family: str) -> None:
    seen = of_file(observed(family, {**POD, "OMPI_MCA_pml": "cm"}), pml="ucx", btl="tcp,self")
    plan = planned("mpirun --mca btl self,vader ./train", seen)
    assert reason(plan, "OMPI_MCA_pml")[:2] == ("cm", Source.ENVIRONMENT)
    assert reason(plan, "OMPI_MCA_btl")[:2] == ("self,vader", Source.FLAG)


def test_mapping_and_binding_of_a_file_stand_as_mpirun_has_it_in_its_own_pod() -> None:
    name = "hwloc_base_binding_policy"
    plan = planned("./train", of_file(observed(), rmaps_base_mapping_policy="node"))
    assert f"OMPI_MCA_{name}" not in plan.set_env
    shown = ("OMPI_MCA_rmaps_base_mapping_policy=node", Source.FILE)
    assert reason(plan, "binding")[:2] == shown
    there = planned("./train", of_a_worker(observed(), rmaps_base_mapping_policy="node"))
    assert there.set_env[f"OMPI_MCA_{name}"] == "none"


def test_more_ranks_than_slots_and_an_agent_may_be_asked_for_by_a_file() -> None:
    seen = of_file(
        observed(), rmaps_base_oversubscribe="1", plm_rsh_agent="/opt/agent", plm_rsh_args="-p 22"
    )
    plan = planned("mpirun -n 9 ./train", seen)
    assert failing(plan) == []
    assert [item for item in plan.findings if item.level is not Level.OK] == []


@both
def test_what_mpirun_alone_reads_of_a_worker_s_file_is_nobody_s(family: str) -> None:
    """Another image's launch agent is not in the launcher's, and its list of names is not read."""
    theirs = {"plm_rsh_agent": "/opt/agent", "plm_ssh_agent": "/opt/agent"}
    seen = of_a_worker(observed(family), **theirs, mca_base_env_list="A")
    plan = planned("./train", seen)
    assert plan.user_agent == ""
    assert plan == replace(planned("./train", observed(family)), findings=plan.findings)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("pml = ucx\n", {"pml": "ucx"}),
        ("  pml=ucx  \n#btl = tcp\n # mtl = x\n\nbtl\t=\t^openib , tcp\n",
         {"pml": "ucx", "btl": "^openib , tcp"}),
        ("pml = ucx\npml = ob1\n", {"pml": "ob1"}),
        ("-mca pml ucx\n--mca btl tcp,self\n-x FOO=bar\n--omca a b\n",
         {"pml": "ucx", "btl": "tcp,self", "a": "b"}),
        ("pml ucx\npml =\n= ucx\n\0\n", {}),
    ],
)  # fmt: skip
def test_how_a_file_is_read(text: str, found: dict[str, str]) -> None:
    """Each form as mpirun 4.1.4 took it."""
    assert parameter_files.read(text) == found


def files(family: MpiFamily, words: str = "./train", **environ: str) -> list[str]:
    line = read_line(words.split(), family)
    found = parameter_files.paths(family, line, environ, etc="/e", home="/h")
    return [path for path, _ in found]


def test_which_files_are_read_the_strongest_first() -> None:
    usual = [
        "/e/openmpi-mca-params-override.conf",
        "/h/.openmpi/mca-params.conf",
        "/e/openmpi-mca-params.conf",
    ]
    prte = ["/h/.prte/mca-params.conf", "/e/prte-mca-params.conf"]
    pmix = ["/h/.pmix/mca-params.conf", "/e/pmix-mca-params.conf"]
    assert files(MpiFamily.OPENMPI4) == usual
    assert files(MpiFamily.OPENMPI5) == [*usual, *prte, *pmix]
    assert files(MpiFamily.MPICH) == []
    line = "mpirun -am one,two --mca mca_base_param_files /a:/b ./train"
    assert files(MpiFamily.OPENMPI4, line) == ["one", "two", "/a", "/b"]
    environ = {
        "OMPI_MCA_mca_param_files": "/a,/b",
        "OMPI_MCA_mca_base_envar_file_prefix": "/t",
    }
    assert files(MpiFamily.OPENMPI4, **environ) == ["/t", "/a", "/b"]
    assert files(MpiFamily.OPENMPI5, **environ) == ["/t", *prte, *pmix, "/a", "/b"]


@pytest.mark.parametrize(
    ("path", "environ", "found"),
    [
        ("/usr/bin/mpirun", {}, ("/usr/etc", "/etc/openmpi")),
        ("/bin/mpirun", {}, ("/etc", "/etc/openmpi")),
        ("/opt/ompi/bin/mpirun", {}, ("/opt/ompi/etc",)),
        ("/opt/ompi/bin/mpirun", {"OPAL_PREFIX": "/moved"}, ("/moved/etc",)),
        (
            "/usr/lib64/openmpi/bin/mpirun",
            {},
            (
                "/usr/lib64/openmpi/etc",
                "/etc/openmpi-x86_64",
                "/etc/openmpi-aarch64",
            ),
        ),
    ],
)
def test_where_an_installation_has_its_files(
    path: str, environ: dict[str, str], found: tuple[str, ...]
) -> None:
    assert parameter_files.folders(path, environ) == found


@both
def test_a_setting_of_the_users_comes_before_a_file(family: str) -> None:
    """As a variable does; but for links that are left out, beside which none can be taken."""
    seen = of_file(observed(family), btl_tcp_if_include="eth0", btl="^openib", pml="^ucx")
    plan = planned("./train", with_links(seen, "net1", "net1"), {"mpi_network": "data"})
    assert plan.set_env["OMPI_MCA_btl_tcp_if_include"] == "net1"
    named = planned("./train", seen, {"control_ifname": "eth0"})
    assert named.set_env["OMPI_MCA_btl_tcp_if_include"] == "eth0"
    without = of_file(observed(family), btl_tcp_if_exclude="lo")
    for setting in ({"control_ifname": "eth0"}, {"mpi_network": "data"}):
        plan = planned("./train", with_links(without, "net1", "net1"), setting)
        assert "OMPI_MCA_btl_tcp_if_include" not in plan.set_env
