"""Lines of mpirun, and all that is read of each: ``tests/data/lines``."""

from __future__ import annotations

from dataclasses import fields
from typing import Final

from mpiboot.core.model import MpiFamily
from mpiboot.job.job_hosts import of_line
from mpiboot.job.mpirun_line import read
from tests.fakes.plans import hosts

OPEN_MPI, HYDRA = "openmpi4 openmpi5", "mpich intel"
DERIVED: Final = (
    *("program", "daemons_mpirun", "per_node", "np", "hosts", "policy", "hostfiles"),
    "decides_ranks",
)
# By what they show; a line whose first word has a slash names mpirun itself.
LINES: Final = (
    (
        OPEN_MPI,
        """
--allow-run-as-root -np 16 -N 8 --map-by node --bind-to none -x NCCL_DEBUG=INFO -x PATH ./a -n 3
--mca btl self,tcp -mca pml ob1 --tag-output --timeout 60 ./a --unknown
-c 3 ./a
-n 1 -n 3 -N 2 -N 1 --map-by slot --map-by node ./a
--np=2 ./a
-n 2 --frobnicate 7 --map-by node ./a : -n 3 ./b
-x --z --hostfile h --z ./a
-n x ./a
-n
-n -1 ./a
--mca btl
-x
-N two ./a
-H
--frobnicate --hostfile x ./a
-n 0 ./a
./a
-n 2 ./a : ./b
-n 2 -H a ./a x : -n 3 -x FOO ./b
--pernode ./a
-H b -H +n1 ./a
-H +e ./a
-H a:2,+n1 ./a
-H a, ./a
-H fd00::1 ./a
-H a:8,b:* ./a
-H a:0,b:2 ./a
-host w-2:3,W-0.,stranger ./a
-host a:2,a,b ./a
-n 1 -host w-1 ./a : -n 1 -host w-2 ./b
-host w-0:8,w-1:* ./a
-n 1 -host w-1 ./a : -n 1 ./b
--novm -H a ./a
-host w-1 --frobnicate 7 ./a
-H w-0 --frobnicate -H w-1 ./a
-n 2 --hostfile /x ./a
-n 2 -machinefile /x ./a
--default-hostfile a --hostfile b ./a
--hostfile b --default-hostfile a ./a
--mca orte_default_hostfile /x ./a
--prtemca prte_default_hostfile /x ./a
--hostfile a -n 1 ./a : --hostfile b -n 1 ./b : --hostfile a -n 1 ./c
--map-by node:oversubscribe ./a
--map-by :OVERSUBSCRIBE ./a
--map-by NODE:pe=1 ./a
--map-by ppr:2:node ./a
--oversubscribe ./a
--bynode ./a
--ppr 2:node ./a
--rankfile x ./a
--mca rmaps_x node ./a
--novm ./a
-N 0 ./a
--nolocal ./a
-n 2 -- -prog
--wdir /x ./a
--preload-binary ./a
-n 2
--o
--prefix /opt/o/ ./a
--display map ./a
-n 2 --report-events x ./a
-q ./a
-bind-to none ./a : -n 1 -map-by node ./b -bind-to x
-map-by=ppr:1:node -bind-to socket ./a -bind-to x
-n 2 -bind-to
--help
-version
-n 2 -V ./a
-n 2 -info ./a
-n 2 --bind-to core -h mapping
--help=all
--not-known 2 --version
-n 2 ./a --version
-n 2 ./a : --version ./b
/usr/bin/mpirun -prefix /opt/o ./a
/opt/o/bin/prterun ./a
""",
    ),
    (
        HYDRA,
        """
-NP 4 -HOSTS a:2,b ./a
-np 4 -ppn 2 -hosts a:2,b -genv A 1 -genv B=2 -genvlist C,D -iface eth0 -l ./a
-n=2 ./a
-n=x ./a
-hosts w-1,stranger ./a
-perhost 1 ./a
-grr 1 ./a
-rr ./a
-f a -n 1 ./a : -f b -n 1 ./b : -f a -n 1 ./c
-f a -f b ./a
-configfile x
-skip-launch-node ./a
-- ./a
-bootstrap fork -launcher-exec /opt/ssh ./a
-V -n 2 ./a
-n 2 -info ./a
--help
-n 2 ./a -h
-trace=libVT.so ./a
""",
    ),
    ("", "-n 2 ./a\n--version\n-n 2 --version"),
    ("spectrum", "-tcp -n 4 -x A ./a\n-PAMI -n 4 ./a"),
)


def text(family: str, line: str) -> str:
    """What is read of a line, without what is empty."""
    words = line.split()
    found = read(words if "/bin/" in words[0] else ["mpirun", *words], MpiFamily(family))
    names = [item.name for item in fields(found)]
    values = {name: getattr(found, name) for name in (*names, *DERIVED)}
    job = of_line(found, hosts(4, 4, 4, domain=""))
    values["hosts of the job"] = ", ".join(f"{host.name} {host.slots}" for host in job)
    values["argv"] = "" if found.argv[1:] == tuple(words) else " ".join(found.argv)
    shown = [f"    {name}: {value}\n" for name, value in values.items() if value]
    return f"# {family or 'unknown'}: {line}\n{''.join(shown)}"


def files() -> dict[str, str]:
    """The text of every MPI, by its path below ``tests/data/lines``."""
    return {
        f"{family or 'unknown'}.txt": "\n".join(
            text(family, line) for line in lines.strip().split("\n")
        )
        for families, lines in LINES
        for family in families.split() or [""]
    }
