"""Lines, variables and settings, each with what the plan has of them: a table."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from mpiboot.core.model import Source
from mpiboot.core.settings import resolve
from mpiboot.job.plan import Plan, make
from mpiboot.job.plan_input import LaunchPaths
from mpiboot.job.program_words import Rendezvous
from tests.fakes.plans import (
    HYDRA_OPERATOR,
    NOBODY,
    PATHS,
    POD,
    failing,
    hosts,
    observed,
    planned,
    warned,
)

FAMILIES = {"4": "openmpi4", "5": "openmpi5", "m": "mpich", "i": "intel"}
FLAG, POD_SET = Source.FLAG, Source.ENVIRONMENT
BOTH_HOSTS = FIRST, _ = ("w-0.job.ns.svc", "w-1.job.ns.svc")
BOTH = ", ".join(BOTH_HOSTS)
OTHER = "./a -launcher x"
CODES = "-print-all-exitcodes"
DATA, RANK_ENV = {"MPIBOOT_MPI_NETWORK": "data"}, {"MPIBOOT_RANK_ENV": "on"}
TABLE = f"output-proctable={PATHS.launch_dir}/placement"
DOTTED = "mpirun --prtemca plm_ssh_agent /etc/mpi/kubexec.sh -n 4 ./a --prtemca plm_ssh_agent x"
SLURM = {"SLURM_JOB_ID": "7", "SLURM_NODELIST": "x", "PBS_JOBID": "8"}
OOB4, OOB5 = "OMPI_MCA_oob_tcp_if_include", "PRTE_MCA_prte_if_include"
BTL, OUT = "OMPI_MCA_btl_tcp_if_include", "OMPI_MCA_btl_tcp_if_exclude"
ENV_LIST = "OMPI_MCA_mca_base_env_list"
ROOT = "OMPI_ALLOW_RUN_AS_ROOT"
AGENTS4, AGENTS5 = "OMPI_MCA_plm_rsh_num_concurrent", "PRTE_MCA_plm_ssh_num_concurrent"
FLAT, ATTACHED = "OMPI_MCA_plm_rsh_no_tree_spawn", "OMPI_MCA_orte_leave_session_attached"
ARGS = "OMPI_MCA_plm_rsh_args"
EMPTY = {"PRTE_MCA_oob_base_verbose": "", "OMPI_MCA_mpi_yield_when_idle": ""}
NOT_AGAIN = "OMPI_MCA_if_base_do_not_resolve"
RANGE = {"MPIBOOT_PORT_RANGE": "6000-6019"}

ROWS: list[tuple[str, str, Mapping[str, str], Mapping[str, object]]] = [
    # The user's value stands, from wherever it comes.
    ("45", "./a", {"OMPI_MCA_pml": "ucx"}, {"shown": ("OMPI_MCA_pml", "ucx", POD_SET)}),
    ("45", "./a", {"OMPI_MCA_pml": "ucx"}, {"OMPI_MCA_pml": None}),
    ("45", "mpirun --mca pml ucx ./a", {}, {"shown": ("OMPI_MCA_pml", "ucx", FLAG)}),
    ("45", "mpirun --bind-to core ./a", {}, {"shown": ("binding", "--bind-to core", FLAG)}),
    ("45", "./a", {}, {"shown": ("ranks", "4", Source.DEFAULT), "ranks": 4, "argv": "-n 4"}),
    ("45", "mpirun -n 2 ./a", {}, {"shown": ("ranks", "2", FLAG), "not argv": "-n 4"}),
    ("45", "/opt/mpi/bin/mpirun ./a", {}, {"argv": "/opt/mpi/bin/mpirun -"}),
    # Which hosts get ranks is for mpirun, and nothing is reported before the start.
    *(
        ("45", f"mpirun {words} ./a", {}, {"remote_hosts": BOTH_HOSTS, "fails": [], "warns": ""})
        for words in ("-n 2", "-n 9", "-n 4 --map-by slot", "-n 2 --map-by seq", "-n 2 -H +n1")
    ),
    ("45", "mpirun -n 4 --map-by ppr:4:node ./a", {}, {"remote_hosts": BOTH_HOSTS, "warns": ""}),
    *(
        ("45", f"mpirun {words} ./a", {}, {"argv": f"{words} ./a", "not argv": "-n 4", "warns": ""})
        for words in ("-np 0", "-H w-0.job.ns.svc:8,w-1.job.ns.svc:*", "--rankfile rf")
    ),
    # An option that is not known ends the reading.
    ("45", "mpirun --zap 3 -n 2 ./a", {}, {"warns": "--zap is not an option that mpiboot knows"}),
    ("45", "mpirun --zap 3 -n 2 ./a", {}, {"not argv": "-n 4", "tolerates_failure": True}),
    ("45", "mpirun --zap ./a", {}, {"obstacle": ("--zap", "an option that mpiboot does not know")}),
    # What starts ranks itself is named where there are several of it on a host.
    *(
        ("45", f"mpirun {words}", {}, {"warns": f"each rank is {name}, which" if name else ""})
        for words, name in (
            ("-n 2 /opt/bin/torchrun ./a", "torchrun"),
            ("-n 2 python3 -m torch.distributed.run ./a", "torch.distributed.run"),
            ("-n 2 python3 -u -m accelerate.commands.launch ./a", "accelerate.commands.launch"),
            ("-n 2 torchrun -m ./a", "torchrun"),
            ("-n 2 python3 -m", ""),
            ("-N 1 torchrun ./a", ""),
            ("--pernode torchrun ./a", ""),
            ("-n 2 ./a torchrun", ""),
        )
    ),
    ("4", "mpirun -n 2 ./a : -n 1 accelerate launch ./a", {}, {"warns": "each rank is accelerate"}),
    ("5", "mpirun -n 2 ./a : -n 2 ./b", {}, {"warns": "of a line with several programs"}),
    ("4", "mpirun -n 2 ./a : -n 2 ./b", {}, {"warns": ""}),
    # Names are looked up once, but where what the line chooses may name this pod otherwise.
    *(
        ("4", f"mpirun {words} ./a", {}, {NOT_AGAIN: "1"})
        for words in ("-n 2", "--rankfile /r", "--app /a")
    ),
    ("4", "./a", {NOT_AGAIN: "0"}, {NOT_AGAIN: None, "shown": (NOT_AGAIN, "0", POD_SET)}),
    (
        *("4", "mpirun --mca if_base_do_not_resolve 0 ./a", {}),
        {NOT_AGAIN: None, "shown": (NOT_AGAIN, "0", FLAG)},
    ),
    # The copy of the hostfile.
    *(
        ("45", f"mpirun {name} /x -n 2 ./a {name} x", {}, {"argv": f"{name} {PATHS.hostfile} -n 2"})
        for name in ("--hostfile", "-hostfile", "--machinefile", "--default-hostfile")
    ),
    *(
        (
            "5",
            f"mpirun {name}=/x ./a {name}=/x",
            {},
            {"argv": f"{name}={PATHS.hostfile} ./a {name}=/x"},
        )
        for name in ("--hostfile", "--machinefile", "--default-hostfile")
    ),
    # Agents, and arguments for ssh.
    ("5", DOTTED, {}, {"user_agent": "/etc/mpi/kubexec.sh", "argv": "-n 4 ./a --prtemca plm_ssh"}),
    ("5", DOTTED, {}, {"PRTE_MCA_plm_ssh_agent": PATHS.agent, "warns": "", "obstacles": ()}),
    ("5", DOTTED, {"MPIBOOT_SUPERVISE": "off"}, {"user_agent": "/etc/mpi/kubexec.sh"}),
    ("5", DOTTED, {}, {"shown": ("launch-agent", "/etc/mpi/kubexec.sh", FLAG)}),
    ("4", "mpirun -mca plm_rsh_agent /x ./a", {}, {"user_agent": "/x", "not argv": "/x"}),
    ("45", "./a", {"OMPI_MCA_plm_rsh_agent": "/x", ARGS: "-p 3 w"}, {"user_agent": "/x"}),
    ("4", "./a", {"OMPI_MCA_plm_rsh_agent": "/x", ARGS: "-p 3 w"}, {ARGS: "-p 3 w"}),
    *(
        ("45", "./a", {"OMPI_MCA_plm_rsh_agent": agent}, {"user_agent": "", "warns": ""})
        for agent in ("ssh", "ssh : rsh", "rsh", "/usr/bin/ssh", "ssh -o Compression=yes : rsh")
    ),
    ("4", f"mpirun --mca {ARGS[9:]} -oUserKnownHostsFile=/x ./a", {}, {"not argv": "UserKnown"}),
    (
        *("4", f"mpirun --mca {ARGS[9:]} -oUserKnownHostsFile=/x ./a", {ARGS: "-C"}),
        {"warns": "--mca plm_rsh_args has UserKnownHostsFile=/x, which has no effect"},
    ),
    # As many agents at once as hosts: with fewer mpirun waits.
    ("4", f"mpirun --mca {AGENTS4[9:]} 1 ./a", {}, {AGENTS4: "2", "warns": "is raised to 2"}),
    ("4", f"mpirun --mca {AGENTS4[9:]} 2 ./a", {}, {AGENTS4: None, "warns": "", "argv": "t 2"}),
    ("4", "./a", {AGENTS4: "1"}, {AGENTS4: "2", "warns": "is raised to 2", "fails": []}),
    ("5", "./a", {AGENTS5: "1"}, {AGENTS5: "2", "warns": "is raised to 2", "fails": []}),
    ("5", f"mpirun --prtemca {AGENTS5[9:]} 1 ./a", {}, {AGENTS5: "2", "not argv": "concurrent"}),
    ("5", "./a", {AGENTS5: "0"}, {AGENTS5: None, "warns": ""}),
    # Under 4.1 the daemons of a flat launch would leave their agents.
    ("4", f"mpirun -mca {FLAT[9:]} 1 ./a", {}, {ATTACHED: "1", FLAT: None}),
    ("4", "./a", {FLAT: "1"}, {ATTACHED: "1", FLAT: None}),
    ("45", "./a", {}, {ATTACHED: None}),
    ("5", "./a", {FLAT: "1"}, {ATTACHED: None}),
    (
        *("45", "mpirun --mca plm slurm ./a", {"OMPI_MCA_plm": "isolated"}),
        {"obstacle": ("--mca plm slurm", "given on the mpirun line")},
    ),
    ("45", "./a", {"OMPI_MCA_plm": "x"}, {"obstacles": (("OMPI_MCA_plm", "OMPI_MCA_plm=x"),)}),
    # Links in a list, and links that the user leaves out, in whichever pod.
    *(
        ("5", line, environ, {OOB5: None, "warns": "", "fails": []})
        for line, environ in (
            ("./a", {OOB5: "eth0,eth1"}),
            ("mpirun --mca oob_tcp_if_include eth0,eth1 ./a", {}),
            ("mpirun --prtemca prte_if_include eth0,eth1 ./a", {}),
        )
    ),
    ("4", "./a", {OOB4: "eth0,eth1"}, {"warns": "", OOB4: None}),
    ("5", "./a", {"PRTE_MCA_oob_tcp_if_include": "eth0"}, {OOB5: None, "warns": ""}),
    ("45", "./a", {OUT: "docker0"}, {BTL: None, "shown": (BTL, "", Source.DETECTED)}),
    ("45", f"mpirun --mca {OUT[9:]} docker0 ./a", {}, {BTL: None}),
    ("4", "./a", {"OMPI_MCA_oob_tcp_if_exclude": "docker0"}, {OOB4: None, BTL: "eth0"}),
    ("5", "./a", {"PRTE_MCA_prte_if_exclude": "docker0"}, {OOB5: None, BTL: "eth0"}),
    ("m", "./a", RANGE, {"MPIEXEC_PORT_RANGE": "6000:6004"}),
    ("m", "./a", RANGE, {"MPIR_CVAR_CH3_PORT_RANGE": "6005:6019"}),
    ("m", "./a", {**RANGE, "MPICH_PORT_RANGE": "7:9"}, {"MPIR_CVAR_CH3_PORT_RANGE": None}),
    ("i", "./a", {**RANGE, "MPIEXEC_PORT_RANGE": "7:9"}, {"I_MPI_PORT_RANGE": None}),
    # The user, and what would mislead or end mpirun.
    ("45", "./a", {}, {ROOT: "1", f"{ROOT}_CONFIRM": "1"}),
    *(("45", "./a", SLURM, {"removed": name}) for name in SLURM),
    ("45", "./a", SLURM, {"shown": ("SLURM_JOB_ID", "(removed)", Source.DETECTED)}),
    ("4", "./a", {"LSB_JOBID": "7", "LSB_HOSTS": "a b"}, {"unset_env": (ARGS,)}),
    ("5", "./a", EMPTY, {"removed": "PRTE_MCA_oob_base_verbose"}),
    ("4", "./a", EMPTY, {"unset_env": (ARGS,)}),
    ("5", "./a", {"PRTE_MCA_plm_ssh_agent": ""}, {"PRTE_MCA_plm_ssh_agent": PATHS.agent}),
    # What ranks get.
    ("4", "mpirun -x NCCL_B=1 ./a", {"NCCL_A": "a", "NCCL_B": "b"}, {"argv": "-x NCCL_A"}),
    ("4", "mpirun -x NCCL_B=1 ./a", {"NCCL_B": "b"}, {"not argv": "-x NCCL_B "}),
    ("4", "./a", {ENV_LIST: "A=1"}, {"not argv": "-x", "warns": "nothing else is forwarded"}),
    ("4", "mpirun --mca mca_base_env_list A=1 ./a", {}, {"not argv": "-x", ENV_LIST: None}),
    ("5", "./a", {ENV_LIST: "A=1"}, {"argv": "-x", "warns": ""}),
    (
        *("5", "mpirun -n 1 ./a : -n 1 ./b", {"NCCL_A": "a=b;c", ENV_LIST: "B=1;NCCL_DEBUG=WARN"}),
        {"argv": "-x NCCL_A -x", "not argv": "NCCL_DEBUG", ENV_LIST: None},
    ),
    (
        "4",
        "./a",
        {"MPIBOOT_FORWARD": "X"},
        {"warns": "MPIBOOT_FORWARD has X: not set here"},
    ),
    # The table of which rank is where is wanted where nobody else wants one.
    ("5", "mpirun -n 2 ./a", {}, {"argv": TABLE}),
    ("5", "mpirun --runtime-options error-nonzero-status ./a", {}, {"not argv": TABLE}),
    ("5", "mpirun --output-proctable -n 2 ./a", {}, {"not argv": TABLE}),
    ("5", "mpirun --no-such-option -n 2 ./a", {}, {"not argv": TABLE}),
    ("5", "./a", {"PRTE_MCA_schizo_base_runtime_options": "x"}, {"not argv": TABLE}),
    ("5", "./a", {"MPIBOOT_SUPERVISE": "off"}, {"not argv": TABLE}),
    (
        *("5", "mpirun -n 2 -bind-to none -rank-by slot ./a", {}),
        {"warns": "gets -bind-to as --bind-to, -rank-by as --rank-by:"},
    ),
    ("5", "mpirun -n 2 -bind-to none ./a", {}, {"argv": "-n 2 --bind-to none ./a"}),
    ("4", "mpirun -bind-to none ./a", {}, {"warns": "", "argv": " -bind-to none ./a"}),
    # Hydra's kind of launch agent, which must be one that calls mpiboot's.
    *(
        (family, "./a", {"HYDRA_BOOTSTRAP": kind}, expected)
        for kind in ("fork", "slurm")
        for family, expected in (
            ("m", {"HYDRA_LAUNCHER": "ssh", "removed": "HYDRA_BOOTSTRAP"}),
            ("i", {"I_MPI_HYDRA_BOOTSTRAP": "ssh", "removed": "HYDRA_BOOTSTRAP"}),
            ("mi", {"warns": f"HYDRA_BOOTSTRAP={kind} is dropped: another kind would start"}),
        )
    ),
    ("mi", f"mpirun -bootstrap fork -n 4 {OTHER}", {}, {"argv": f"-n 4 {OTHER}", "fails": []}),
    ("mi", f"mpirun -bootstrap fork -n 4 {OTHER}", {}, {"not argv": "-bootstrap"}),
    ("mi", f"mpirun -launcher fork {OTHER}", {}, {"warns": "-launcher fork is dropped"}),
    ("mi", "mpirun -launcher ssh ./a", {}, {"warns": "", "argv": "-launcher ssh ./a"}),
    *(
        ("mi", f"mpirun {name} /x.sh ./a", {"HYDRA_LAUNCHER_EXEC": "/y"}, {"user_agent": "/x.sh"})
        for name in ("-launcher-exec", "-bootstrap-exec")
    ),
    ("mi", "mpirun -bootstrap-exec /x.sh -n 2 ./a", {}, {"not argv": "-exec", "fails": []}),
    ("m", "mpirun -launcher-exec /x ./a", {}, {"HYDRA_LAUNCHER_EXEC": PATHS.agent}),
    ("i", "mpirun -launcher-exec /x ./a", {}, {"I_MPI_HYDRA_BOOTSTRAP_EXEC": PATHS.agent}),
    ("mi", "mpirun -launcher-exec /usr/bin/ssh ./a", {}, {"user_agent": ""}),
    ("m", "./a", HYDRA_OPERATOR["mpich"], {"fails": [], "warns": ""}),
    ("i", "./a", HYDRA_OPERATOR["intel"], {"fails": [], "warns": ""}),
    # Exit codes are wanted once; those of mpiboot's own wish leave the output.
    ("mi", "./a", {}, {"exit_codes": True, "argv": CODES}),
    ("mi", f"mpirun {CODES} ./a", {}, {"exit_codes": False, "argv": CODES}),
    ("mi", "./a", {"MPIBOOT_SUPERVISE": "off"}, {"exit_codes": False, "not argv": CODES}),
    ("mi", "./a", {}, {"tolerates_failure": False}),
    ("mi", "mpirun -disable-auto-cleanup ./a", {}, {"tolerates_failure": True}),
    ("mi", "mpirun -configfile x", {}, {"tolerates_failure": True}),
    # Intel MPI's messages stay on the control link.
    ("i", "./a", {}, {"I_MPI_OFI_PROVIDER": "tcp", "FI_TCP_IFACE": "eth0", "FI_PROVIDER": None}),
    ("i", "./a", {}, {"I_MPI_HYDRA_BRANCH_COUNT": "0", "I_MPI_PIN": "0"}),
    ("i", "./a", DATA, {"I_MPI_OFI_PROVIDER": None, "FI_TCP_IFACE": None}),
    ("i", "./a", {"I_MPI_OFI_PROVIDER": "psm3"}, {"I_MPI_OFI_PROVIDER": None}),
    ("i", "./a", {"FI_TCP_IFACE": "ib7"}, {"warns": f"FI_TCP_IFACE=ib7: {BOTH} has no such link"}),
    ("i", "mpirun -genv FI_TCP_IFACE ib7 ./a", {}, {"warns": "FI_TCP_IFACE=ib7: w-0"}),
    ("i", "./a", {"FI_TCP_IFACE": "eth0"}, {"warns": ""}),
    # Where ranks of torchrun meet, with the setting or `mpiboot rank` on the line.
    *(
        ("45mi", line, {}, {"MASTER_ADDR": None, "MASTER_PORT": None, "not argv": "MASTER_ADDR"})
        for line in ("./a", "mpirun ./a rank", "mpirun ./mpiboot ./rank")
    ),
    ("4", "mpirun --map-by ppr:4:node:pe=2 ./a", RANK_ENV, {"MASTER_ADDR": "10.244.0.10"}),
    ("4", "mpirun --zap 3 ./a", RANK_ENV, {"fails": ["settings-conflict"]}),
    ("4", "mpirun -x MASTER_ADDR=head ./a", RANK_ENV, {"shown": ("MASTER_ADDR", "head", FLAG)}),
    ("4", "mpirun -x MASTER_ADDR=head ./a", RANK_ENV, {"MASTER_ADDR": None, "argv": "MASTER_PORT"}),
    ("4", "mpirun -x MASTER_ADDR ./a", RANK_ENV, {"MASTER_ADDR": "10.244.0.10"}),
    ("i", "mpiexec -machinefile /x -n 4 ./a x", RANK_ENV, {"argv": "-n 4 mpiboot rank -- ./a x"}),
    (
        *("5", "mpirun -n 1 -x A ./a -n 5 : -n 1 ./b", RANK_ENV),
        {"argv": "-n 1 -x A mpiboot rank -- ./a -n 5 : -n 1 mpiboot rank -- ./b"},
    ),
    ("45mi", "./a", RANK_ENV, {"meeting": Rendezvous(FIRST, "MASTER_PORT", 29500)}),
    (
        *("45mi", "./a", {**RANK_ENV, "MASTER_PORT": "7", "MASTER_ADDR": "elsewhere"}),
        {"meeting": Rendezvous(FIRST, "MASTER_PORT", 7)},
    ),
    ("45mi", "./a", {}, {"meeting": None}),
    # What is no number is the program's own matter.
    ("45mi", "./a", {**RANK_ENV, "MASTER_PORT": "many"}, {"meeting": None}),
    ("45mi", "./a", {**RANK_ENV, "MASTER_PORT": "²"}, {"meeting": None}),
    (
        *("4", "mpirun -n 4 -x MASTER_PORT=99 mpiboot rank -- ./a", {"MASTER_PORT": "7"}),
        {"meeting": Rendezvous(FIRST, "MASTER_PORT", 99)},
    ),
    # Whether a job may go on without a rank.
    *(
        ("4", line, environ, {"tolerates_failure": tolerates})
        for line, environ, tolerates in (
            ("./a", {}, False),
            ("mpirun -n 4 ./a", {"RECOVERY": "1"}, False),
            ("mpirun --enable-recovery ./a", {}, True),
            ("mpirun --mca mpi_ft_enable 1 ./a", {}, True),
            ("./a", {"OMPI_MCA_orte_abort_on_non_zero_status": "0"}, True),
            ("mpirun --max-restarts 2 ./a", {}, True),
            ("mpirun --tune file ./a", {}, True),
            ("./a", {"PRTE_MCA_state_base_error_non_zero_exit": "0"}, True),
            ("./a", {"OMPI_MCA_odls_base_sigkill_timeout": "60"}, True),
        )
    ),
]


def check(plan: Plan, name: str, value: object) -> None:
    """Compare one value of a plan with what it is to be; a variable that is not set is None."""
    line, warnings = " ".join(plan.argv), " | ".join(warned(plan))
    match name, value:
        case "argv", str():
            assert value in line
        case "not argv", str():
            assert value not in line
        case "warns", str():
            assert value in warnings if value else warnings == ""
        case "fails", _:
            assert failing(plan) == value
        case "shown", (shown, text, source):
            found = [(item.value, item.source) for item in plan.decisions if item.name == shown]
            assert found == [(text, source)]
        case "removed", _:
            assert value in plan.unset_env
        case "obstacle", _:
            assert value in plan.obstacles
        case _ if name.isupper() or "_MCA_" in name:
            assert plan.set_env.get(name) == value
        case _:
            assert getattr(plan, name) == value


@pytest.mark.parametrize(("families", "line", "environ", "expected"), ROWS)
def test_what_a_plan_has(
    families: str, line: str, environ: Mapping[str, str], expected: Mapping[str, object]
) -> None:
    for family in map(FAMILIES.__getitem__, families):
        plan = planned(line, observed(family, {**POD, **environ}))
        for name, value in expected.items():
            check(plan, name, value)


@pytest.mark.parametrize(("line", "value"), [("-n 2", "1"), ("--rankfile /r", None)])
def test_a_line_that_may_name_this_pod_otherwise_has_names_looked_up(
    line: str, value: str | None
) -> None:
    listed = hosts(1, 2, 2)
    plan = planned(f"mpirun {line} ./a", observed(listed=listed, local=listed[:1]))
    assert plan.set_env.get(NOT_AGAIN) == value


def test_a_comma_would_end_the_path_of_the_table_of_ranks() -> None:
    plan = make(observed("openmpi5"), resolve({}, {}), LaunchPaths("/run/a,b", PATHS.agent))
    assert "rank-table" not in {item.name for item in plan.decisions}


@pytest.mark.parametrize("family", ["openmpi4", "openmpi5"])
def test_a_user_that_is_not_root(family: str) -> None:
    plan = planned("./train", observed(family, {"PATH": "/bin"}, identity=NOBODY))
    found = {name: plan.set_env.get(name) for name in (ROOT, "HOME", "USER", "LOGNAME")}
    assert found == {ROOT: None, "HOME": "/", "USER": "uid1000", "LOGNAME": "uid1000"}


@pytest.mark.parametrize(("family", "name"), [("openmpi4", AGENTS4), ("openmpi5", AGENTS5)])
@pytest.mark.parametrize(("count", "value"), [(128, None), (129, "129")])
def test_more_hosts_than_agents_at_once_would_wait_forever(
    family: str, name: str, count: int, value: str | None
) -> None:
    plan = planned("./train", observed(family, listed=hosts(*[1] * count)))
    assert plan.set_env.get(name) == value
