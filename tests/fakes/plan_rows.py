"""The cases of ``plan_cases``, by what they show; ``files`` are the texts for review."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from mpiboot.core.facts import Cpus, Gpus
from mpiboot.core.model import Decision, Mpi, MpiFamily, Source
from tests.fakes.plan_cases import (
    FAMILIES,
    Case,
    Change,
    data_links,
    facts,
    file,
    here,
    kinds,
    known,
    mpis,
    observe,
    own_mpi,
    pods,
    second_lacks_ipv4,
    slots,
    two_hostfiles,
    without_workdir,
    workers,
)
from tests.fakes.plans import HYDRA_OPERATOR, NOBODY, observed


def case(
    families: str, line: str = "./a", environ: Mapping[str, str] | None = None, *changes: Change
) -> Case:
    return Case(families, line, environ or {}, changes)


def each(families: str, lines: str, *environs: Mapping[str, str], more: str = "./a") -> list[Case]:
    """A case for each of the lines (by ``|``), with each of the environments."""
    options = [f"mpirun {text.strip()} {more}" for text in lines.split("|")]
    return [case(families, line, environ) for line in options for environ in environs or ({},)]


def pod(families: str, *names: str, value: str = "1") -> list[Case]:
    """A case for each variable of the launcher's pod."""
    words = (name for text in names for name in text.split())
    return [case(families, "./a", {name: value}) for name in words]


TWO, MACVLAN, FIRST = ("net1", "net1"), ("macvlan", "macvlan"), "w-0.job.ns.svc"
ETH0 = [one.facts.links[1] for one in observed().workers if one.facts]
OFF, DATA = {"MPIBOOT_SUPERVISE": "off"}, {"MPIBOOT_MPI_NETWORK": "data"}
RANKS, RANGE = {"MPIBOOT_RANK_ENV": "on"}, {"MPIBOOT_PORT_RANGE": "6000-6019"}
NCCL, ENV_LIST = "NCCL_SOCKET_IFNAME", "OMPI_MCA_mca_base_env_list"
BTL, OOB = "OMPI_MCA_btl_tcp_if_include", "OMPI_MCA_oob_tcp_if_include"
OOB5, ARGS = "PRTE_MCA_prte_if_include", "OMPI_MCA_plm_rsh_args"
KUBEXEC = "mpirun --prtemca plm_ssh_agent /etc/mpi/kubexec.sh -n 4 ./a --prtemca plm_ssh_agent x"
SHARED, EXCLUSIVE = Cpus(64, 32, 64), Cpus(4, 2, 64)
LONG = "a-long-name-for-a-job-of-one-team-with-more-words-than-fi"  # 57 characters
OMPI4, OMPI414, OMPI5 = (f"mpirun (Open MPI) {number}" for number in ("4.1.5", "4.1.4", "5.0.7"))
GONE = mpis("is not there", "is not there", path="/o/bin/mpirun")
SPECTRUM = Mpi(MpiFamily.SPECTRUM, "10.3.1", "/opt/ibm/mpirun", "mpirun (IBM Spectrum MPI) 10.3.1")
NO_FACTS, REFUSED = workers(facts=(None, None)), facts(memory_refused=("", "refused"))
NO_IPV6, IPV6 = {"mpi_ipv6": False}, {"mpi_ipv6": True}
SIX = {"MPIBOOT_CONTROL_IFNAME": "fd00:10:244::/64"}
OTHER = "/opt/conda/bin:/usr/bin:/bin"
RDMA = kinds("sriov", "sriov")
GPUS = kinds("sriov", "sriov", gpus=Gpus(8))
OPTIONS = "-n 2 -bind-to none -rank-by slot"

CASES: Final[Mapping[str, list[Case]]] = {
    "the-users-own-line": [
        *each(
            "45",
            "--mca pml ucx | --bind-to core | -n 2 | -n 9 | -n 2 -H +n1 | -np 0 | --rankfile rf | "
            "-n 4 --map-by ppr:4:node | -H w-0.job.ns.svc:8,w-1.job.ns.svc:* | --zap 3 -n 2",
        ),
        *pod("45", "OMPI_MCA_pml", value="ucx"),
        case("45", "/opt/mpi/bin/mpirun ./a"),
        case("5", "mpirun -n 2 ./a : -n 2 ./b"),
        case("4", "mpirun -n 1 ./a x : -n 1 ./b :", {"NCCL_DEBUG": "WARN"}),
        # Names are looked up once, but where what the line chooses may name this pod otherwise.
        *each("4", "--rankfile /r | --app /a | --mca if_base_do_not_resolve 0"),
        *pod("4", "OMPI_MCA_if_base_do_not_resolve", value="0"),
        *(case("4", f"mpirun {words} ./a", {}, here()) for words in ("-n 2", "--rankfile /r")),
        case("45", f"mpirun {OPTIONS} ./a"),
        case("5", "mpirun --novm -n 4 ./a"),
        case("4", "mpirun --display map -n 4 ./a"),
    ],
    "hostfiles": [
        *each("45", "--hostfile /x | -hostfile /x | --machinefile /x | --default-hostfile /x"),
        case("5", "mpirun --hostfile=/x ./a --hostfile=/x"),
        case("45", "./a", {"MPI_HOSTFILE": "y", "HYDRA_HOST_FILE": "z"}),
        case("45", "mpirun --hostfile a -n 2 ./a : --hostfile b -n 2 ./b", {}, two_hostfiles()),
        case("m", "./a", HYDRA_OPERATOR["mpich"]),
        case("i", "./a", HYDRA_OPERATOR["intel"]),
    ],
    "slots": [
        *(
            case("45", f"mpirun {line} ./a", environ, slots(*listed))
            for line, environ, listed in (
                ("", {}, (None, None)),
                ("-n 4", {}, (None, None)),
                ("", {"OMPI_MCA_orte_set_default_slots": "2"}, (None, None)),
                ("", {"PRTE_MCA_prte_set_default_slots": "2"}, (1, 0, None)),
                ("", {"OMPI_MCA_orte_set_default_slots": "9", "MPIBOOT_SLOTS": "8"}, (None, None)),
                ("", {"OMPI_MCA_orte_set_default_slots": "hwthreads"}, (None, None)),
                ("--mca orte_set_default_slots 2", {"MPIBOOT_SLOTS": "8"}, (None, None)),
            )
        ),
        case("m", "./a", {}, slots(None, None)),
        # As seen with 2021.18.1: a hostfile's numbers count behind -machinefile alone, where they
        # undo all else that says how many ranks a host gets; a host without one has one slot there.
        *(
            case("i", f"mpirun {words} ./a", {"I_MPI_PERHOST": perhost} if perhost else {}, change_)
            for words, perhost, change_ in (
                ("", "", slots(2, 2)),
                # Ranks start where the variable's hostfile has slots.
                ("", "", slots(0, 0)),
                ("-f /x", "", slots(0, 0)),
                ("-f /x", "", slots(1, 3)),
                ("", "1", slots(2, 2)),
                ("", "2", slots(1, 3)),
                ("", "2", slots(0, 3)),
                ("", "", slots(None, None)),
                ("", "3", slots(None, None)),
                ("-machinefile /x", "2", slots(1, 3)),
                *((words, "", slots(2, 2)) for words in ("-ppn 1", "-rr", "-hosts w-0", "-zap")),
            )
        ),
        case("i", "./a", {"MPIBOOT_SLOTS": "3"}, slots(None, None)),
    ],
    "launch-agents": [
        case("5", KUBEXEC),
        case("5", KUBEXEC, OFF),
        case("4", "mpirun -mca plm_rsh_agent /x ./a"),
        case("45", "./a", {"OMPI_MCA_plm_rsh_agent": "/x", ARGS: "-p 3 w"}),
        *pod("45", "OMPI_MCA_plm_rsh_agent", value="/usr/bin/ssh -o Compression=yes : rsh"),
        *pod("45", "OMPI_MCA_plm_rsh_agent", value="rsh"),
        *pod("45", "OMPI_MCA_plm_rsh_agent", value="/opt/agent -x : ssh"),
        case("4", f"mpirun --mca {ARGS[9:]} -oUserKnownHostsFile=/x ./a", {ARGS: "-C"}),
        *pod("45", ARGS, value="-o StrictHostKeyChecking=no -o ConnectTimeout=7 -v"),
        *pod("4", ARGS, value="-p 9"),
        case(
            "45",
            "./a",
            {"OMPI_MCA_plm_ssh_args": "-J gate -v"},
            observe(client=Decision("launch-agent", "kubectl", Source.DETECTED, "no key")),
        ),
        *pod("45", "OMPI_MCA_plm_ssh_args", value="-J gate -v"),
        # As many at once as hosts: with fewer mpirun waits.
        *each("4", "--mca plm_rsh_num_concurrent 1 | --mca plm_rsh_num_concurrent 2"),
        *each("5", "--prtemca plm_ssh_num_concurrent 1"),
        *pod("4", "OMPI_MCA_plm_rsh_num_concurrent"),
        *pod("5", "PRTE_MCA_plm_ssh_num_concurrent"),
        *pod("5", "PRTE_MCA_plm_ssh_num_concurrent", value="0"),
        # Under 4.1 the daemons of a flat launch would leave their agents.
        *each("4", "-mca plm_rsh_no_tree_spawn 1"),
        *pod("45", "OMPI_MCA_plm_rsh_no_tree_spawn"),
        *pod("45", "OMPI_MCA_plm", value="isolated"),
        case("45", "mpirun --mca plm slurm ./a", {"OMPI_MCA_plm": "isolated"}),
        # Hydra's kind of agent, which must be one that calls mpiboot's.
        *pod("mi", "HYDRA_BOOTSTRAP", value="fork"),
        *each("mi", "-bootstrap fork -n 4 | -launcher fork | -launcher ssh", more="./a -x"),
        case("mi", "mpirun -launcher-exec /x.sh ./a", {"HYDRA_LAUNCHER_EXEC": "/y"}),
        *each("mi", "-bootstrap-exec /x.sh -n 2 | -launcher-exec /usr/bin/ssh"),
    ],
    "links": [
        *pod("45", BTL, OOB, OOB5, value="net9"),
        *pod("45", BTL, "GLOO_SOCKET_IFNAME TP_SOCKET_IFNAME UCX_NET_DEVICES", value="ens5"),
        *pod("4", BTL, value="ens5,ens6"),
        *pod("4", BTL, value="10.99.0.0/16"),
        *(case("4", "./a", {BTL: v}) for v in ("eth0", "ens5,eth0", "10.244.0.0/16", "^lo", "all")),
        *each("4", f"--mca {BTL[9:]} ens5 | -x GLOO_SOCKET_IFNAME=ens5"),
        case("4", "./a", {}, file(btl_tcp_if_include="ens5")),
        case("4", "./a", {}, file(worker=True, oob_tcp_if_include="ens5")),
        *(
            case(family, "./a", {name: "ens5"}, known(*more))
            for family, name in (
                ("4", OOB),
                ("5", OOB5),
                ("m", "HYDRA_IFACE"),
                ("i", "I_MPI_HYDRA_IFACE"),
            )
            for more in ((), ("ens5",))
        ),
        case("4", "./a", {"HYDRA_IFACE": "ens5", "I_MPI_HYDRA_IFACE": "ens5"}, known()),
        case("m", "mpirun -iface eth0 ./a", {"HYDRA_IFACE": "ens5"}, known()),
        case("4", "./a", {"GLOO_SOCKET_IFNAME": "net1"}, data_links(*TWO)),
        case("4", "./a", {"GLOO_SOCKET_IFNAME": "net1"}, data_links("net1", "net2")),
        # A list, which 5.0 does not take, and links that are left out.
        *pod("45", OOB, OOB5, value="eth0,eth1"),
        *pod("5", "PRTE_MCA_oob_tcp_if_include", value="eth0"),
        *pod(
            "45",
            "OMPI_MCA_btl_tcp_if_exclude OMPI_MCA_oob_tcp_if_exclude PRTE_MCA_prte_if_exclude",
            value="docker0",
        ),
        *each("45", "--mca btl_tcp_if_exclude docker0"),
        # mpiboot's own setting.
        *(
            case("45mi", "./a", {"MPIBOOT_CONTROL_IFNAME": value}, known())
            for value in ("eth0", "ens4,eth0", "10.244.0.0/16", "10.244.0.0/16,10.245.0.0/16", "x")
        ),
        case("4", "./a", {"MPIBOOT_CONTROL_IFNAME": "x"}, observe(links=(), workers=())),
        *pod("i", "FI_TCP_IFACE", value="ib7"),
        *each("i", "-genv FI_TCP_IFACE ib7"),
    ],
    "ports": [
        case("45mi", "./a", RANGE),
        case("m", "./a", {**RANGE, "MPICH_PORT_RANGE": "7:9"}),
        case("i", "./a", {**RANGE, "MPIEXEC_PORT_RANGE": "7:9"}),
        case("45", "./a", {"MPIBOOT_PORT_RANGE": "7000-7001", "MPIBOOT_CONTROL_IFNAME": "ens9"}),
        # Ways by which nobody has dialled.
        *pod("45", "OMPI_MCA_btl_tcp_port_min_v4", value="5000"),
        case("45", "mpirun --mca oob_tcp_dynamic_ipv4_ports 5000-5009 ./a", RANGE),
    ],
    "ip-versions": [
        *(case("45", "./a", {}, pods(own, "4")) for own in ("4", "4l", "46l")),
        *(case("45mi", "./a", {}, pods("46l", "6")), case("45mi", "./a", {}, pods("6", **IPV6))),
        case("45", "./a", {}, pods("46", **NO_IPV6)),
        case("45", "./a", {}, pods("46", **NO_IPV6), second_lacks_ipv4()),
        case("m", "./a", {}, pods("46l", "6"), NO_FACTS),
        case("5", "./a", {"OMPI_MCA_btl_tcp_disable_family": "4"}, pods("46", "4")),
        *(
            case("5", "./a", {}, own_mpi(version=version), pods("6", **IPV6))
            for version in ("5.0.9", "6.0", "")
        ),
        case("45", "./a", SIX, pods("46")),
        case("45", "./a", SIX, pods("6", **IPV6), known("ens3")),
        # With both, the sockets of IPv4 take the ports, and those of IPv6 get none: a hang.
        *(
            case("45", "./a", RANGE, pods(own, control))
            for own, control in (("46", "4"), ("6", "6"))
        ),
        # Links of other names.
        *(
            case("45mi", "./a", environ, facts(links=links))
            for environ in ({}, {"MPIBOOT_CONTROL_IFNAME": "ens3"})
            for links in [[(replace(own, name=f"ens{at}"),) for at, own in enumerate(ETH0)]]
        ),
    ],
    "a-second-address-of-libfabrics-link": [
        case("mi", "./a", {}, facts(links=links))
        for more in ("192.168.77.1/32", "fd00::7/64", "fe80::1/64")
        for links in [[(replace(own, addresses=(*own.addresses, more)),) for own in ETH0]]
    ],
    "binding": [
        *(
            case("45i", "./a", {}, facts(cpus=cpus))
            for cpus in (
                # A pool of a node whose kubelet gives other pods CPUs of their own: all but those.
                (Cpus(60, 30, 64, quota=4.0), EXCLUSIVE),
                (EXCLUSIVE, None),
                (EXCLUSIVE, Cpus(2, 1, 64)),
                (EXCLUSIVE, EXCLUSIVE),
                (EXCLUSIVE, replace(EXCLUSIVE, quota=4.0)),
            )
        ),
        *each(
            "45",
            "--rankfile rf | --cpu-set 0 | --cpus-per-proc 1 | --map-by ppr:2:node:PE=1 | -N 2 | "
            "--map-by slot:PE=1 | --map-by :PE=2 | --map-by node | --npersocket 1 | --bycore | "
            "--rank-by node | --bind-to core | --use-hwthread-cpus | --mca rmaps ppr | "
            "--zap 3 --rankfile rf | --map-by :nooversubscribe | --tag-output",
        ),
        *each("i", "-genv I_MPI_PIN_DOMAIN omp | -env I_MPI_PIN_CELL=core"),
        *pod(
            "4",
            "OMPI_MCA_rmaps_base_mapping_policy OMPI_MCA_rmaps_base_cpus_per_proc "
            "OMPI_MCA_rmaps_ppr_n_pernode OMPI_MCA_orte_rankfile OMPI_MCA_hwloc_base_cpu_list",
        ),
        *pod(
            "5",
            "PRTE_MCA_rmaps_default_ranking_policy OMPI_MCA_rmaps_default_mapping_policy "
            "PRTE_MCA_hwloc_default_cpu_list",
        ),
        *pod("i", "I_MPI_PIN_DOMAIN I_MPI_PIN_PROCESSOR_LIST"),
        *pod("45", "OMPI_MCA_rmaps_base_oversubscribe OMPI_MCA_rmaps_base_display_map"),
    ],
    "what-carries-mpis-messages": [
        *each(
            "45",
            "--mca btl ^openib | --mca pml ^ucx --mca btl ^uct | -x UCX_TLS=^rc | --mca mtl ofi | "
            "--mca pml ob1 --mca btl tcp,self | -x NCCL_IB_DISABLE=0 -x NCCL_NET_PLUGIN=none | "
            "--mca pml cm --mca mtl ofi | --mca btl openib,self | -x UCX_NET_DEVICES=mlx5_0:1 | "
            "-x UCX_TLS=rc -x UCX_NET_DEVICES=mlx5_0:1 | -x FI_PROVIDER=efa | -x UCX_TLS=tcp,self",
        ),
        case("45", "mpirun -x UCX_TLS ./a", {"UCX_TLS": "all"}),
        *(
            case("4", "./a", {}, facts(environment=((name,), (name,))))
            for name in ("OMPI_MCA_pml", "UCX_TLS", "UCX_NET_DEVICES", "FI_PROVIDER")
        ),
        *each("i", "-genv FI_PROVIDER tcp;ofi_rxm | -genv I_MPI_OFI_PROVIDER verbs"),
        *pod("i", "FI_PROVIDER I_MPI_FABRICS I_MPI_OFI_PROVIDER", value="x"),
        *(case("45mi", "./a", DATA, *more) for more in ((), (RDMA,), (data_links(*TWO),))),
        case("45", "mpirun --zap ./a", DATA),
        case("45m", "./a", {}, GPUS),
        case("4", "./a", {"UCX_TLS": "rc"}, GPUS),
        case("m", "./a", {"OMPI_MCA_pml": "ucx"}, GPUS),
        case("m", "./a", {}, RDMA),
    ],
    "the-data-network": [
        case("45m", "./a", {}, data_links(*TWO)),
        case("45", "./a", {}, data_links("net1", "dra0"), observe(renamed={FIRST: "w-0.long"})),
        *(
            case("45", "./a", {"MPIBOOT_DATA_NETWORK": use, **own}, data_links("net1", "dra0"))
            for use in ("off", "report")
            for own in ({}, {"UCX_TLS": "tcp,self"})
        ),
        case("45", f"mpirun -x {NCCL}=eth0 ./a", {}, data_links("net1", "dra0")),
        case("45", f"mpirun -x {NCCL} ./a", {NCCL: "ib7"}, data_links(*TWO)),
        *(
            case("45", "./a", {name: value}, data_links("net1", "dra0"))
            for name, value in ((NCCL, "eth0"), (NCCL, ""), (ENV_LIST, f"{NCCL}=eth0"))
        ),
        case("45", "./a", {"MPIBOOT_NO_FORWARD": "NCCL_*,UCX_*"}, data_links(*TWO)),
        case("45", "./a", {"MPIBOOT_NO_FORWARD": "NCCL_*", NCCL: "lo"}, data_links(*TWO)),
        case("45mi", "./a", {}, data_links(*TWO), here(own="dranet0")),
        *(case("5", "./a", {}, kinds(*two)) for two in (MACVLAN, ("macvlan", "plain"))),
        case("5", "./a", {"MPIBOOT_DATA_NETWORK": "off"}, kinds(*MACVLAN)),
        *(
            case("5", "./a", environ, RDMA)
            for environ in (
                {},
                {"NCCL_IB_DISABLE": "0"},
                {"NCCL_IB_DISABLE": "1"},
                {"NCCL_NET": "Socket"},
                {"UCX_TLS": "tcp"},
                {"MPIBOOT_PROVE_TRANSPORT": "off"},
                {"MPIBOOT_DATA_NETWORK": "off"},
            )
        ),
    ],
    "parameter-files": [
        *(
            case("45", "./a", {}, file(worker=worker, **{name: value}))
            for worker in (False, True)
            for name, value in (
                # As Horovod's and TensorFlow's images have it: both end each rank.
                ("btl_tcp_if_exclude", "lo,docker0"),
                ("pml", "ucx"),
                ("rmaps_base_mapping_policy", "node"),
                ("plm_rsh_agent", "/opt/agent"),
                ("mca_base_env_list", "A"),
            )
        ),
        case("45", "mpirun --mca btl self ./a", {"OMPI_MCA_pml": "cm"}, file(pml="ucx", btl="tcp")),
        # A setting comes before a file; but beside links that are left out none can be taken.
        *(
            case("45", "./a", setting, data_links(*TWO), file(**parameters))
            for setting in (DATA, {"MPIBOOT_CONTROL_IFNAME": "eth0"})
            for parameters in (
                {"btl_tcp_if_include": "eth0", "pml": "^ucx"},
                {"btl_tcp_if_exclude": "lo"},
            )
        ),
    ],
    "the-user-and-what-would-mislead-mpirun": [
        case("45", "./a", {}, observe(identity=NOBODY, environ={"PATH": "/bin"})),
        case("45", "./a", {"SLURM_JOB_ID": "7", "SLURM_NODELIST": "x", "PBS_JOBID": "8"}),
        case("4", "./a", {"LSB_JOBID": "7", "LSB_HOSTS": "a b"}),
        case("45", "./a", {"PRTE_MCA_oob_base_verbose": "", "OMPI_MCA_mpi_yield_when_idle": ""}),
        *pod("5", "PRTE_MCA_plm_ssh_agent", value=""),
        case("45m", "./a", {}, NO_FACTS),
        case("45m", "./a", {}, REFUSED, known()),
        case("4", "./a", {"OMPI_MCA_btl_vader_single_copy_mechanism": "x"}, REFUSED),
        *(
            case("45mi", line, {}, observe(workdir="/x"), without_workdir())
            for line in ("./a", "mpirun -wdir /x ./a")
        ),
        *(
            case("5", "./a", {}, facts(hostname=names))
            for names in (("pi.v2-w-0", "pi.v2-w-1"), ("a.ec2.internal", "b.ec2.internal"))
        ),
    ],
    "what-ranks-get": [
        # The launcher's search paths, where workers have others.
        *(
            case("45", f"mpirun {line} ./a", environ, facts(search_paths=(((name, there),),) * 2))
            for name, own, there, line, more in (
                ("PATH", "/usr/bin", OTHER, "", ""),
                ("LD_LIBRARY_PATH", "/usr/bin", OTHER, "", ""),
                ("PYTHONPATH", "/usr/bin", OTHER, "", ""),
                ("PATH", "/usr/bin", OTHER, "-x PATH", ""),
                ("PATH", "/usr/bin", OTHER, "", "PATH"),
                ("PATH", f"/opt/job/bin:{OTHER}", OTHER, "", ""),
                ("LD_LIBRARY_PATH", "/opt/lib", "", "", ""),
            )
            for environ in ({name: own, "MPIBOOT_FORWARD": more},)
        ),
        case("45", "./a", {"PATH": "/opt/bin"}, NO_FACTS),
        case("4", "mpirun -x NCCL_B=1 ./a", {"NCCL_A": "a", "NCCL_B": "b"}),
        *pod("45", ENV_LIST, value="A=1"),
        *each("4", "--mca mca_base_env_list A=1"),
        case("5", "mpirun -n 1 ./a : -n 1 ./b", {"NCCL_A": "a=b;c", ENV_LIST: "B=1;NCCL_DEBUG=W"}),
        case("4", "./a", {"MPIBOOT_FORWARD": "X", "LANG": "C", "HF": "1"}),
        *(
            case("mi", f"mpirun {option} ./a", {"DATA": "x", "A": "1", **RANKS})
            for option in ("", "-genvnone", "-envlist A,B", "-genvlist A")
        ),
        case("mi", "mpirun -genvlist A ./a", {"NCCL_D": "1", "MPIBOOT_NO_FORWARD": "NCCL_*"}),
        case(
            "mi",
            "./a",
            dict.fromkeys(("K_MPI_JOB_ROLE", "POD_IP", "OWN", "WANTED", "DATA", "B_x%%"), "here")
            | {"MPIBOOT_FORWARD": "WANTED"},
            facts(environment=(("OWN", "WANTED"), ("OWN", "WANTED"))),
        ),
    ],
    "mpiruns-own-options": [
        *each("5", "--runtime-options x | --output-proctable | --zap -n 2"),
        *pod("5", "PRTE_MCA_schizo_base_runtime_options"),
        case("45mi", "./a", OFF),
        *each("mi", "-print-all-exitcodes"),
        *(
            case("4", line, environ, here())
            for line, environ in (
                ("./a", {}),
                ("./a", {ENV_LIST: "A"}),
                ("./a", {"OPAL_OUTPUT_STDERR_FD": "9"}),
                ("mpirun -n 1 ./a : -n 1 ./b", {}),
                ("mpirun --zap ./a", {}),
            )
        ),
        case("5", "./a", {}, here()),
        case("i", "/opt/mpi/bin/mpirun -grr 2 -n 4 ./a -f y", {"I_MPI_PERHOST": "2"}),
        *each("i", "-f /x -n 4 | -n 4 -machinefile /x | -hostfile=/x", more="./a -f y"),
        case("i", "./a", {}, own_mpi(path="/usr/local/bin/mpirun")),
    ],
    "whether-a-job-may-go-on-without-a-rank": [
        *each("4", "--enable-recovery | --mca mpi_ft_enable 1 | --max-restarts 2 | --tune file"),
        *pod("4", "OMPI_MCA_orte_abort_on_non_zero_status OMPI_MCA_odls_base_sigkill_timeout"),
        *pod("4", "PRTE_MCA_state_base_error_non_zero_exit RECOVERY"),
        *each("mi", "-disable-auto-cleanup | -configfile x"),
    ],
    "where-ranks-of-torchrun-meet": [
        case("45mi", "./a --epochs 3", RANKS),
        case("45mi", "mpirun -n 4 /usr/bin/mpiboot rank -- ./a"),
        case("45mi", "mpirun ./mpiboot ./rank"),
        case("45mi", "mpirun -n 4 mpiboot rank -- ./a", RANKS),
        case("45mi", "./a", {**RANKS, "MASTER_PORT": "7", "MASTER_ADDR": "elsewhere"}),
        *(case("4", "./a", {**RANKS, "MASTER_PORT": port}) for port in ("many", "²")),
        case("4", "mpirun -n 4 -x MASTER_PORT=99 mpiboot rank -- ./a", {"MASTER_PORT": "7"}),
        *each(
            "4", "--map-by ppr:4:node:pe=2 | --zap 3 | -x MASTER_ADDR=head | -x MASTER_ADDR", RANKS
        ),
        case("5", "mpirun -n 1 -x A ./a -n 5 : -n 1 ./b", RANKS),
        case("45", "mpirun -n 4 -rankfile f ./a", RANKS),
        case("mi", "mpirun -n 4 -rankmap f ./a", RANKS),
        case("4", "mpirun -rankfile f ./a", {**RANKS, "MASTER_ADDR": "head"}),
        case("4", "./a", RANKS, facts(environment=(("MASTER_ADDR",), ("MASTER_ADDR",)))),
        case("4", "./a", RANKS, facts(environment=(("OTHER",), ("MASTER_ADDR",)))),
        *(
            case("4", "./a", RANKS, facts(program=programs))
            for programs in (("/m/mpiboot", "/m/mpiboot"), ("/m/mpiboot", ""), ("/m/a", "/n/a"))
        ),
        case("45mi", "./a", RANKS, here()),
        case("4", "./a", {}, here(workers=False)),
        case("mi", "mpirun -n 1 ./a -n 5 : -n 1 ./b", RANKS, here()),
        case("mi", "mpirun -zap 1 ./a", {}, here()),
        # Rank 0 is on the first host with a slot; 4.1 puts its own host first.
        *(case("45m", "./a", RANKS, slots(*two)) for two in ((0, 2), (0, 0))),
        case("45", "./a", RANKS, here(at=1)),
        case("45m", "mpirun -n 2 ./a : -n 2 ./b", RANKS),
        case("4", "mpirun -n 1 -H w-0.job.ns.svc ./a : -n 1 -H w-1.job.ns.svc ./b", RANKS),
        case("4", "./a", {**RANKS, "OMPI_MCA_orte_default_dash_host": "w-1.job.ns.svc"}),
        case("4", "./a", {**RANKS, "OMPI_MCA_rmaps_base_mapping_policy": "seq"}),
        *each(
            "4",
            "--nolocal | --map-by seq | --map-by dist:span | --mca rmaps seq | -H +n1 | "
            "--map-by node --rank-by core --bind-to none | --oversubscribe | "
            "--cpus-per-proc 2 --npersocket 2 --cpu-set 0-3",
            RANKS,
        ),
        case("mi", "./a", {}, here(workers=False)),
    ],
    "hosts-that-are-no-pod-of-their-own": [
        case("4", "./a", {}, workers(address=("10.244.0.10",) * 2)),
        case("4", "./a", {}, workers(address=("10.244.0.10",) * 2, port=(22, 2222))),
    ],
    "mpis": [
        *(case("4", "./a", {}, mpis(one, two)) for one, two in ((OMPI4, OMPI5), (OMPI414, ""))),
        *(
            case("4", "./a", {}, mpis(text, text))
            for text in ("HYDRA build details:", "it gave no answer within 60 s")
        ),
        *(
            case("4", line, {}, mpis(text, text, path="/opt/o/bin/mpirun"), *more)
            for line in ("/opt/o/bin/mpirun ./a", "./a", "mpirun -noprefix ./a", "mpirun -1 ./a")
            for text in (OMPI414, OMPI5, "is not there", "a wrapper of ours")
            for more in ((), (NO_FACTS,))
        ),
        case("4", "./a", {}, mpis(OMPI414, OMPI4, path="/o/bin/mpirun"), NO_FACTS),
        # Measured with 5.0.7: mpirun calls the daemons beside its prterun.
        *(case("5", f"/o/bin/mpirun {line} ./a", {}, GONE) for line in ("", "--prefix /opt/o")),
        *(case("45m", "./a", {}, known(hostname=name)) for name in (LONG, f"a1{LONG}", LONG[1:])),
        case("4", "./a", {}, observe(renamed={FIRST: f"{LONG}.pi.svc"})),
        case("4", "./a", {}, observe(mpi=SPECTRUM, renamed={FIRST: f"{LONG}.pi.svc"})),
        case("4", "./a", DATA, observe(mpi=SPECTRUM)),
        case(
            "4",
            "mpirun --hosts /etc/mpi/hostfile -n 4 ./a",
            {"NCCL_DEBUG": "INFO"},
            observe(mpi=Mpi(MpiFamily.UNKNOWN, "", "/usr/bin/mpirun", "mpirun 1.0 by someone")),
        ),
    ],
}


def files() -> dict[str, str]:
    """The text of every group, by its path below ``tests/data/plans``."""
    return {
        f"cases/{name}.txt": "\n".join(
            one.text(FAMILIES[family]) for one in cases for family in one.families
        )
        for name, cases in CASES.items()
    }
