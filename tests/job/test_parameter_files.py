"""What Open MPI's own files settle stands as a variable of the user's does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mpiboot.core.facts import MpiParameter
from mpiboot.core.model import Level, MpiFamily, Source
from mpiboot.job import parameter_files
from mpiboot.job.mpirun_line import read
from mpiboot.job.plan_input import Observed
from tests.fakes.plans import POD, both, observed, planned, reason
from tests.job.test_data import with_links

ETC = "/etc/openmpi/openmpi-mca-params.conf"
INCLUDE, EXCLUDE = "OMPI_MCA_btl_tcp_if_include", "OMPI_MCA_btl_tcp_if_exclude"


def of_file(seen: Observed, *, worker: bool = False, **parameters: str) -> Observed:
    """The same, with a file of these parameters in the launcher's pod, or in the first worker's."""
    found = tuple(MpiParameter(f"OMPI_MCA_{name}", text, ETC) for name, text in parameters.items())
    first, *others = seen.workers
    assert first.facts is not None
    facts = replace(first.facts, parameters=found)
    there = replace(seen, workers=(replace(first, facts=facts), *others))
    return there if worker else replace(seen, parameters=found)


@both
@pytest.mark.parametrize(("worker", "where"), [(False, ETC), (True, f"{ETC} of w-0.job.ns.svc")])
def test_links_that_a_file_leaves_out_end_no_job(family: str, where: str, *, worker: bool) -> None:
    # As Horovod's and TensorFlow's images have it: both end each rank, "mutually exclusive".
    seen = of_file(observed(family), worker=worker, btl_tcp_if_exclude="lo,docker0")
    plan = planned("./train", seen)
    assert INCLUDE not in plan.set_env
    message = f"not set: {EXCLUDE} is set in {where}"
    assert reason(plan, INCLUDE) == ("", Source.DETECTED, message)


@both
def test_a_parameter_of_a_file_is_kept_behind_variables_and_the_line(family: str) -> None:
    plan = planned("./train", of_file(observed(family), pml="ucx", btl="^openib"))
    assert not {"OMPI_MCA_pml", "OMPI_MCA_btl"} & plan.set_env.keys()
    assert reason(plan, "OMPI_MCA_pml") == ("ucx", Source.FILE, f"set in {ETC}, and kept")
    shown = reason(plan, "mpi-parameters")
    assert shown == ("OMPI_MCA_btl OMPI_MCA_pml", Source.FILE, ETC)
    # As Debian's and Ubuntu's files have it: nothing for a user to mend.
    assert "openib" not in " ".join(finding.message for finding in plan.findings)
    seen = of_file(observed(family, {**POD, "OMPI_MCA_pml": "cm"}), pml="ucx", btl="tcp,self")
    plan = planned("mpirun --mca btl self,vader ./train", seen)
    assert reason(plan, "OMPI_MCA_pml")[:2] == ("cm", Source.ENVIRONMENT)
    assert reason(plan, "OMPI_MCA_btl")[:2] == ("self,vader", Source.FLAG)


def test_mapping_binding_and_an_agent_of_a_file_stand_as_mpirun_has_it_in_its_own_pod() -> None:
    name, policy = "OMPI_MCA_hwloc_base_binding_policy", "rmaps_base_mapping_policy"
    plan = planned("./train", of_file(observed(), **{policy: "node"}))
    assert name not in plan.set_env
    assert reason(plan, "binding")[:2] == (f"OMPI_MCA_{policy}=node", Source.FILE)
    there = planned("./train", of_file(observed(), worker=True, **{policy: "node"}))
    assert there.set_env[name] == "none"
    given = {"rmaps_base_oversubscribe": "1", "plm_rsh_agent": "/opt/agent", "plm_rsh_args": "-p 2"}
    plan = planned("mpirun -n 9 ./train", of_file(observed(), **given))
    assert [item for item in plan.findings if item.level is not Level.OK] == []


@both
def test_what_mpirun_alone_reads_of_a_worker_s_file_is_nobody_s(family: str) -> None:
    # Another image's launch agent is not in the launcher's, and its list of names is not read.
    theirs = {"plm_rsh_agent": "/opt/agent", "plm_ssh_agent": "/opt/agent"}
    seen = of_file(observed(family), worker=True, **theirs, mca_base_env_list="A")
    plan = planned("./train", seen)
    assert plan.user_agent == ""
    assert plan == replace(planned("./train", observed(family)), findings=plan.findings)


@both
def test_a_setting_of_the_users_comes_before_a_file(family: str) -> None:
    # As a variable does; but for links that are left out, beside which none can be taken.
    seen = of_file(observed(family), btl_tcp_if_include="eth0", btl="^openib", pml="^ucx")
    without = of_file(observed(family), btl_tcp_if_exclude="lo")
    for setting, link in (({"mpi_network": "data"}, "net1"), ({"control_ifname": "eth0"}, "eth0")):
        plan = planned("./train", with_links(seen, "net1", "net1"), setting)
        assert plan.set_env[INCLUDE] == link
        plan = planned("./train", with_links(without, "net1", "net1"), setting)
        assert INCLUDE not in plan.set_env


# Each form as mpirun 4.1.4 took it.
FORMS = {
    "pml = ucx\n": {"pml": "ucx"},
    "  pml=ucx  \n#btl = tcp\n # mtl = x\n\nbtl\t=\t^openib , tcp\n": {
        "pml": "ucx",
        "btl": "^openib , tcp",
    },
    "pml = ucx\npml = ob1\n": {"pml": "ob1"},
    "-mca pml ucx\n--mca btl tcp,self\n-x FOO=bar\n--omca a b\n": {
        "pml": "ucx",
        "btl": "tcp,self",
        "a": "b",
    },
    "pml ucx\npml =\n= ucx\n\0\n": {},
}
OPENMPI4, OPENMPI5 = MpiFamily.OPENMPI4, MpiFamily.OPENMPI5
PRTE = "/h/.prte/mca-params.conf /e/prte-mca-params.conf"
PMIX = "/h/.pmix/mca-params.conf /e/pmix-mca-params.conf"
USUAL = "/e/openmpi-mca-params-override.conf /h/.openmpi/mca-params.conf /e/openmpi-mca-params.conf"
NAMED = "mpirun -am one,two --mca mca_base_param_files /a:/b"
OTHERS = {"OMPI_MCA_mca_param_files": "/a,/b", "OMPI_MCA_mca_base_envar_file_prefix": "/t"}


def test_how_a_file_is_read() -> None:
    assert {text: parameter_files.read(text) for text in FORMS} == FORMS


@pytest.mark.parametrize(
    ("family", "line", "environ", "found"),
    [
        (OPENMPI4, "mpirun", {}, USUAL),
        (OPENMPI5, "mpirun", {}, f"{USUAL} {PRTE} {PMIX}"),
        (MpiFamily.MPICH, "mpirun", {}, ""),
        (OPENMPI4, NAMED, {}, "one two /a /b"),
        (OPENMPI4, "mpirun", OTHERS, "/t /a /b"),
        (OPENMPI5, "mpirun", OTHERS, f"/t {PRTE} {PMIX} /a /b"),
    ],
)
def test_which_files_are_read_the_strongest_first(
    family: MpiFamily, line: str, environ: dict[str, str], found: str
) -> None:
    words = read([*line.split(), "./train"], family)
    paths = parameter_files.paths(family, words, environ, etc="/e", home="/h")
    assert [path for path, _ in paths] == found.split()


@pytest.mark.parametrize(
    ("path", "moved", "found"),
    [
        ("/usr/bin/mpirun", "", "/usr/etc /etc/openmpi"),
        ("/bin/mpirun", "", "/etc /etc/openmpi"),
        ("/opt/ompi/bin/mpirun", "", "/opt/ompi/etc"),
        ("/opt/ompi/bin/mpirun", "/moved", "/moved/etc"),
        (
            "/usr/lib64/openmpi/bin/mpirun",
            "",
            "/usr/lib64/openmpi/etc /etc/openmpi-x86_64 /etc/openmpi-aarch64",
        ),
    ],
)
def test_where_an_installation_has_its_files(path: str, moved: str, found: str) -> None:
    environ = {"OPAL_PREFIX": moved} if moved else {}
    assert parameter_files.folders(path, environ) == tuple(found.split())
