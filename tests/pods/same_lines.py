"""The lines of `test_same_as_plain`: what users write, for each MPI. Data.

The long ones stand in public repositories; the program is the probe, and `-np` fits the pods.
"""

from __future__ import annotations

from typing import Final

from tests.pods.same import Line

_STATUS: Final = {"status": "exit-status"}
_OB1: Final = "-mca pml ob1 -mca btl ^openib"
_SLOT: Final = "-bind-to none -map-by slot"
_AGENT: Final = "/opt/lines/agent sh -c 'echo by $BY; exec WHERE'"

# Words that a shell, ssh or a template would change.
_ODD: Final = "WHERE '   ' '' '*' '%h' '#' '\t' ' a  b '"

# In a shell, where mpiboot stands before mpirun or is its parent.
_SHELL: Final = [
    Line("sh -c 'cd /usr/lib && FRONT mpirun -n 4 WHERE'"),
    Line("sh -c 'FRONT mpirun -n 2 WHERE > /tmp/out; echo $?; cat /tmp/out'"),
    Line("sh -c 'FRONT mpirun -n 1 WHERE one && FRONT mpirun -n 4 WHERE two'"),
    Line("sh -c 'export NEW=1; umask 077; FRONT mpirun -n 2 WHERE'"),
    Line("sh -c 'mpirun -n 4 WHERE; exit $?'"),
]

# What users of 4.1 and 5.0 write alike.
_OPEN_MPI: Final = [
    Line("mpirun WHERE", quick=True),
    Line("mpirun -np 1 WHERE a 'b c' '$d' \"e'f\" exit=3", quick=True),
    Line("mpirun -np 2 WHERE", quick=True),
    Line("mpirun -np 5 WHERE", quick=True),
    Line("mpirun -npernode 1 WHERE"),
    Line("mpirun --host HOST1:2 -np 2 WHERE"),
    Line("mpirun -hostfile /opt/lines/keys WHERE"),
    Line("mpirun -hostfile /opt/lines/bare WHERE", quick=True),
    Line("mpirun -hostfile /opt/lines/none WHERE"),
    Line(
        "mpirun -hostfile /opt/lines/names WHERE",
        env={"OMPI_MCA_orte_set_default_slots": "cores"},
        quick=True,
    ),
    Line("mpirun --map-by ppr:2:node:PE=1 WHERE", quick=True),
    Line("mpirun --rankfile /opt/lines/rankfile -np 4 WHERE", quick=True),
    Line("mpirun -np 2 -x MY_DATA=/other -x EMPTY= WHERE"),
    Line("mpirun -np 2 /opt/lines/rank.sh a b", quick=True),
    Line("mpirun -np 2 WHERE", env={"OMPI_MCA_btl_tcp_if_exclude": "lo,docker0"}),
    Line("mpirun -np 2 WHERE", env={"OMPI_MCA_mca_base_env_list": "MY_DATA"}),
    Line("mpirun -np 4 -wdir /usr WHERE"),
    Line("mpirun -np 2 -path /opt/programs where"),
    Line("mpirun -np 2 WHERE", stdin="one\ntwo\n"),
    Line("mpirun -np 2 /opt/programs/absent", differs=_STATUS),
    *_SHELL,
    Line(f"mpirun -np 1 {_ODD}"),
    Line("mpirun WHERE -n 2"),
    Line("mpirun -np 2 bash -lc 'exec WHERE login'"),
    # --- hosts and slots that mpirun alone counts
    Line("mpirun -np 4 -H pi-worker-0.pi:2,pi-worker-1.pi:2 WHERE"),
    Line("mpirun -np 4 -host localhost:2,HOST1:2 WHERE"),
    Line("mpirun -np 2 --mca plm_rsh_args -p22 WHERE"),
    Line("mpirun -np 2 --tag-output WHERE"),
    Line("mpirun -np 2 --mca btl_tcp_if_include eth0 WHERE"),
    Line("mpirun -np 2 --tune /opt/lines/tune WHERE"),
    Line(
        f"mpirun -np 4 -H HOST0:2,HOST1:2 {_SLOT} -x NCCL_DEBUG=INFO -x LD_LIBRARY_PATH -x PATH "
        f"{_OB1} WHERE",
        quick=True,
    ),
    Line(
        "mpirun --allow-run-as-root --tag-output -np 4 -N 2 --bind-to none -x PATH "
        "-x LD_LIBRARY_PATH -x FI_PROVIDER=efa -x FI_EFA_FORK_SAFE=1 -x NCCL_DEBUG=INFO "
        "-x NCCL_BUFFSIZE=8388608 --mca pml ^ucx --mca btl tcp,self "
        "--mca btl_tcp_if_exclude lo,docker0,veth_def_agent WHERE -b 8 -e 16G -f 2",
        quick=True,
    ),
    Line("mpirun --bind-to core --map-by core -report-bindings WHERE -in equilib -v press 285"),
]

OPENMPI4: Final = [
    *_OPEN_MPI,
    Line("mpirun -np 5 --oversubscribe WHERE"),
    Line("mpirun -np 2 WHERE", env={"OMPI_MCA_orte_max_vm_size": "1"}),
    Line("mpirun -np 2 --mca orte_default_dash_host HOST1 WHERE"),
    Line("mpirun -np 2 --mca rmaps seq WHERE"),
    Line("mpirun -H HOST0:1 -np 1 WHERE one : -H HOST1:1 -np 1 WHERE two :"),
    Line("mpirun -np 2 --map-by ppr:1:node WHERE a : -np 1 WHERE b"),
    Line("mpirun -np 1 -x MY_DATA=/other WHERE one : -np 1 WHERE two"),
    Line(
        "mpirun --hostfile /opt/lines/first -np 1 WHERE one : "
        "--hostfile /opt/lines/second -np 2 WHERE two",
        quick=True,
    ),
    Line("mpirun --hostfile /opt/lines/first WHERE : --hostfile /opt/lines/second WHERE two"),
    # It ends over two hostfiles of one program.
    Line("mpirun --hostfile /opt/lines/first --hostfile /opt/lines/second WHERE"),
    Line("mpirun --cpu-set 0 -np 2 WHERE", quick=True),
    # Its daemon crashes, and mpirun returns 205.
    Line("mpirun -np 2 --map-by slot:PE=2 WHERE", differs=_STATUS),
    Line("mpirun --app /opt/lines/app"),
    Line("mpirun -np 2 WHERE", env={"OMPI_MCA_mca_base_param_files": "/opt/lines/params"}),
    Line(f"mpirun -np 4 -mca plm_rsh_agent {_AGENT}", quick=True),
    Line("mpirun -np 4 -mca plm_rsh_agent 'ssh -q : rsh' WHERE"),
    # Without a flat launch 4.1's agents stay, and plain mpirun waits for ever for the next.
    Line("mpirun -np 4 -mca plm_rsh_no_tree_spawn 1 -mca plm_rsh_num_concurrent 1 WHERE"),
    Line("mpirun -np 2 WHERE", env={"OMPI_MCA_hwloc_base_binding_policy": "core"}),
]
OPENMPI5: Final = [
    *_OPEN_MPI,
    Line("mpirun -np 2 --map-by slot:PE=2 WHERE"),
    Line("mpirun -np 6 --oversubscribe WHERE", quick=True),
    # The daemons of 5.0.7 die of several programs, and plain mpirun returns 0.
    Line("mpirun -np 1 WHERE first : -np 2 WHERE second", differs=_STATUS),
    Line("mpirun -np 2 --prefix /usr/ WHERE"),
    Line("mpirun -np 2 --prtemca prte_max_vm_size 1 WHERE"),
    Line("mpirun -np 2 --append-env MY_DATA: /more -x MY_DATA WHERE"),
    Line("mpirun --hostfile /opt/lines/first --add-hostfile /opt/lines/second -np 2 WHERE"),
    Line("mpirun --map-by rankfile:file=/opt/lines/rankfile -np 4 WHERE"),
    Line("mpirun --output tag -np 2 WHERE"),
    Line("mpirun --display map -np 2 WHERE", differs={"output": "binding"}),
    Line(f"mpirun -np 4 --prtemca plm_ssh_agent {_AGENT}"),
    Line("mpirun -np 4 WHERE", env={"OMPI_MCA_oob_tcp_if_include": "ens5"}),
    Line("mpirun -np 4 WHERE", env={"PRTE_MCA_any": "a$b", "PRTE_MCA_prte_if_include": "eth0,lo"}),
    Line("mpirun -np 2 WHERE", env={"PRTE_MCA_hwloc_default_binding_policy": "core"}),
    Line("mpirun --app /opt/lines/app", differs=_STATUS),
]

# What users of MPICH and Intel MPI write alike.
_HYDRA: Final = [
    Line("mpirun WHERE", quick=True),
    Line("mpirun -n 1 WHERE a 'b c' '$d' \"e'f\" exit=3", quick=True),
    Line("mpirun -np 2 WHERE", quick=True),
    Line("mpiexec.hydra -n 4 WHERE"),
    Line("mpirun -n 5 WHERE", quick=True),
    Line("mpirun -n 2 -ppn 1 WHERE", quick=True),
    Line("mpirun -hosts HOST0,HOST1 -n 2 WHERE", quick=True),
    Line("mpirun -hosts HOST0:2,HOST1:1 -n 3 WHERE"),
    Line("mpirun -f /opt/lines/hydra-second -n 2 WHERE"),
    Line("mpirun -n 1 WHERE first : -n 2 WHERE second"),
    Line("mpirun -configfile /opt/lines/configfile"),
    Line("mpirun -n 4 -bind-to core -map-by core WHERE"),
    Line("mpirun -n 2 -genv MY_DATA /other WHERE", quick=True),
    Line("mpirun -n 2 -genvlist MY_DATA,PATH WHERE"),
    Line("mpirun -n 2 -genvnone WHERE"),
    Line("mpirun -n 4 -wdir /usr WHERE"),
    Line("mpirun -n 2 WHERE", stdin="one\ntwo\n"),
    Line("mpirun -n 2 /opt/programs/absent", differs=_STATUS),
    *_SHELL,
    Line(f"mpirun -n 1 {_ODD}"),
    Line("mpirun WHERE -n 2"),
    Line("mpirun -n 2 bash -lc 'exec WHERE login'"),
    Line("mpirun -hosts pi-worker-0.pi,pi-worker-1.pi -n 4 WHERE"),
    Line("mpirun -n 2 -l WHERE"),
    Line("mpirun -n 2 -iface eth0 WHERE"),
    Line(f"mpirun -n 4 -launcher-exec {_AGENT}", quick=True),
    Line(f"mpirun -n 4 -launcher rsh -launcher-exec {_AGENT}"),
    Line("mpirun -n 2 /opt/lines/rank.sh a b"),
]
MPICH: Final = [
    *_HYDRA,
    Line("mpirun -f /opt/lines/binding WHERE", quick=True),
    Line("mpirun -n 4 WHERE exit=7"),
]
INTEL: Final = [
    *_HYDRA,
    Line("mpirun -f /opt/lines/hydra-none -n 3 WHERE"),
    Line("mpirun -f /opt/lines/names -n 4 WHERE"),
    Line("mpirun -rr -n 4 WHERE", quick=True),
    Line("mpirun -n 4 WHERE", env={"I_MPI_PERHOST": "1"}),
    Line("mpirun -n 2 -gtool 'env : 0-1' -silent-abort -ordered-output -gwdir /usr WHERE"),
    Line("mpirun -f /opt/lines/hydra-zero -n 2 WHERE"),
    # Of several hostfiles the last one counts, also for all programs.
    Line("mpirun -f /opt/lines/hydra-first -f /opt/lines/hydra-second -n 2 WHERE"),
    Line(
        "mpirun -f /opt/lines/hydra-first -n 1 WHERE one : "
        "-f /opt/lines/hydra-second -n 2 WHERE two",
        quick=True,
    ),
    # Its own mpirun returns 255.
    Line("mpirun -n 4 WHERE exit=7", differs=_STATUS),
    # Beside a provider of mpiboot's it would abort in MPI_Init.
    Line("mpirun -n 2 WHERE", env={"FI_PROVIDER": "tcp;ofi_rxm"}, quick=True),
    Line("mpirun -genv FI_PROVIDER ^verbs -n 2 WHERE"),
    Line(
        "mpirun -ppn 2 -genv MASTER_ADDR HOST0 -genv MASTER_PORT 29500 -genv WORLD_SIZE 4 "
        "-genv LOCAL_SIZE 2 -genv I_MPI_PIN 0 -hosts HOST0,HOST1 -n 1 -env RANK 0 "
        "-env LOCAL_RANK 0 WHERE : -n 1 -env RANK 1 -env LOCAL_RANK 1 WHERE"
    ),
    Line("mpirun -np 4 -machinefile /etc/mpi/hostfile -env I_MPI_FABRICS=ofi WHERE pingpong"),
    Line("mpirun -genv I_MPI_PIN_PROCESSOR_LIST=0-1 -np 4 WHERE"),
]

# Where the launcher's pod is in the hostfile, too.
AS_WORKER: Final = [
    Line("mpirun WHERE"),
    Line("mpirun -np 2 WHERE"),
    Line("mpirun -np 5 WHERE"),
    Line("mpirun -host HOST1 -n 1 WHERE"),
    Line("mpirun -np 6 sh -c '/opt/programs/where'"),
]

# What is no mpirun: scripts, wrappers, logins, programs that start mpirun. For every MPI.
COMMANDS: Final = [
    Line("WHERE alone exit=5", quick=True, differs={"PATH": "command"}),
    Line("cat", stdin="one\ntwo\n"),
    Line("sh -c 'echo once; echo twice >&2; kill -TERM $$'", quick=True),
    Line("bash -c 'trap \"echo trapped\" EXIT; mpirun -np 2 WHERE; false'"),
    Line("timeout 60 mpirun -np 2 WHERE", quick=True),
    Line("xargs -n 1 mpirun -np 1 WHERE", stdin="first\nsecond\n"),
    Line('python3 -c \'import os; os.execvp("mpirun", "mpirun -np 2 WHERE".split())\''),
    Line("python3 /opt/lines/starts.py", quick=True),
    Line("bash -euo pipefail -c 'mpirun -np 2 WHERE exit=3 | cat'", quick=True),
    Line("ssh HOST0 hostname \\; exit 7", quick=True),
    Line("sh -c 'echo HOST0 HOST1 | xargs -n 1 -I{} ssh -n {} hostname'"),
    Line("sh -c 'tar c -C /opt/lines . | ssh HOST1 \"tar t | sort\"'"),
]

# By image.
LINES: Final = {
    "openmpi-4.1": OPENMPI4,
    "openmpi-5.0": OPENMPI5,
    "mpich-5.0": MPICH,
    "intel-mpi": INTEL,
}
