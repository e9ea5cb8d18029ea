"""Scripts that undo what an entrypoint prepared, beside the same ones without mpiboot."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pytest

from tests.pods import images, same
from tests.pods.cluster import Cluster
from tests.pods.jobs import RING, ranks

BOTH = {"pi-worker-0", "pi-worker-1"}
# Whole lines, as a shell without the pod's environment needs them.
_OPENMPI = f"--allow-run-as-root --hostfile /etc/mpi/hostfile -np 4 {RING}"
_HYDRA = f"-f /etc/mpi/hostfile -n 4 {RING}"
# With the script that the quick gate runs.
MPIS = {
    "openmpi-4.1": ("/usr", f"--mca orte_keep_fqdn_hostnames true {_OPENMPI}", "login shell"),
    "openmpi-5.0": ("/usr", f"--prtemca prte_keep_fqdn_hostnames 1 {_OPENMPI}", "init file"),
    "mpich-5.0": ("/opt/mpi", _HYDRA, "env -i"),
    "intel-mpi": ("/opt/mpi", _HYDRA, "mpirun"),
}
SHELLS = (("sh",), ("bash",), ("dash",), ("busybox", "sh"))
PASSED_BY = "its mpirun was not mpiboot's"
UNSEEN = "it called no mpirun"


@dataclass(frozen=True)
class Script:
    """A script in which `MPIRUN` is the name and `LINE` its words, `ROOT` the MPI's folder.

    `hint` is what the log has at its end; where it does not `wait`, it ends as without mpiboot.
    """

    text: str
    hint: str = ""
    options: tuple[str, ...] = ("-c",)
    waits: bool = True


SCRIPTS = {
    "env -i": Script("env -i HOME=$HOME PATH=$PATH mpirun LINE"),
    "mpirun": Script("mpirun LINE"),
    "init file": Script(". /opt/hpcx-init.sh; hpcx_load; mpirun LINE", PASSED_BY),
    "login shell": Script("mpirun LINE", PASSED_BY, ("-l", "-c")),
    "ssh": Script(
        "for host in pi-worker-0 pi-worker-1; do ssh -o StrictHostKeyChecking=no -o "
        "UserKnownHostsFile=/dev/null $host.pi.default.svc 'echo rank 0 of 1 on $(hostname)' "
        "</dev/null || exit 9; done"
    ),
    "prefix": Script(
        "set -e; prefix=$(dirname $(which mpirun))/..; ls $prefix/lib >/dev/null; "
        "LD_LIBRARY_PATH=$prefix/lib $prefix/bin/mpirun LINE"
    ),
}
# For oneAPI's setvars.sh, which no wheel of Intel MPI on PyPI has (2019.4 to 2021.19): what its
# MPI's part sets.
STAND_IN = """export I_MPI_ROOT=/opt/mpi SETVARS_COMPLETED=1 FI_PROVIDER_PATH=/opt/mpi/lib
export PATH=/opt/mpi/bin:$PATH LD_LIBRARY_PATH=/opt/mpi/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
"""
INTEL = {
    "stand-in for setvars.sh": Script(". /opt/setvars.sh; mpirun LINE", PASSED_BY),
    # What the wheel does have; conda itself sets PATH.
    "conda's activation": Script(
        "export CONDA_PREFIX=ROOT; . ROOT/etc/conda/activate.d/mpivars.activate.sh; "
        "PATH=ROOT/bin:$PATH; mpirun LINE",
        PASSED_BY,
    ),
}
UNDONE = {
    "su": Script("su - -c 'mpirun LINE'", UNSEEN, waits=False),
    "sudo": Script("sudo mpirun LINE", UNSEEN, waits=False),
    "env -i by path": Script("env -i PATH=/usr/bin ROOT/bin/mpirun LINE", UNSEEN, waits=False),
}
# Each script by each shell once over the MPIs.
ROWS = [
    (name, kind, script, SHELLS[(turn + at) % len(SHELLS)])
    for turn, name in enumerate(MPIS)
    for at, (kind, script) in enumerate(SCRIPTS.items())
]
ROWS += [("intel-mpi", kind, script, ("bash",)) for kind, script in INTEL.items()]
ROWS += [("openmpi-4.1", kind, script, ("sh",)) for kind, script in UNDONE.items()]


@pytest.mark.parametrize("quick", [True, pytest.param(False, marks=pytest.mark.full)])
@pytest.mark.parametrize("name", MPIS)
def test_a_script_ends_as_without_mpiboot(
    cluster: Cluster, rig: None, name: str, *, quick: bool
) -> None:
    """With no name late it is the same; with one that is 4 s late it is so with mpiboot alone."""
    prefix, line, first = MPIS[name]
    rows = [row for row in ROWS if row[0] == name and (row[1] == first) == quick]
    image = images.image(name)
    if not quick:
        image = image.with_debian("sudo")
    busybox = Path(shutil.which("busybox") or "").read_bytes()
    anew = f"export PATH={prefix}/bin:$PATH\n"
    files = {"/opt/hpcx-init.sh": f"hpcx_load() {{\n{anew}}}\n", "/etc/profile.d/mpi.sh": anew}
    files["/opt/setvars.sh"] = STAND_IN
    image = image.with_files(files).with_program("/usr/bin/busybox", busybox)
    job = same.pods(cluster, image).job
    wrong = []
    for _, kind, script, shell in rows:
        text = script.text.replace("LINE", line).replace("ROOT", prefix)
        found, log = [], ""
        for seconds, front in product((0, 4), ((), ("mpiboot",))):
            if seconds:
                job.workers[1].unpublish()
            if front and script.waits:  # the others are over before that
                job.workers[1].publish(after=seconds)
            words = (*front, *shell, *script.options, text)
            done = job.launcher.exec(*words, env={"MPIBOOT_LOG_LEVEL": "info"})
            found.append((done.returncode, ranks(done.stdout)))
            log += done.stderr
            job.workers[1].publish()
        good, late = found[0], found[2]
        expected = [good, good, late, good if script.waits else late]
        hints = {hint for hint in (PASSED_BY, UNSEEN) if hint in log}
        runs = good[0] == 0 != late[0] and {host for _, _, host in good[1]} == BOTH
        if not runs or found != expected or hints != {script.hint} - {""}:
            wrong.append(f"{kind} by {shell}: {found} {hints}\n{log}")
    assert not wrong, "\n\n".join(wrong)
