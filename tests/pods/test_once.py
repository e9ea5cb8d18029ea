"""A launcher's command that is no mpirun: it runs once, here, and what it calls waits for hosts."""

from __future__ import annotations

import json
import re
import shutil
import signal
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from mpiboot.system.spawn import DEFAULT_PATH
from tests.pods import images, jobs, same
from tests.pods.cluster import Cluster
from tests.pods.images import Image
from tests.pods.jobs import NEW, OLD, RING, ranks
from tests.pods.operator import Job, mpijob
from tests.pods.test_foreign import plain_worker
from tests.pods.test_users import RANDOM, RESTRICTED
from tests.pods.volumes import EmptyDir
from tests.waiting import until

FULL = pytest.mark.full
BOTH_RANKS = [(0, 2, "pi-worker-0"), (1, 2, "pi-worker-1")]
EACH = "for host in pi-worker-0 pi-worker-1; do ssh $host hostname </dev/null || exit 9; done"
RUN = f"mpirun -np 2 {RING}"


def test_a_launch_in_a_script_and_its_end(cluster: Cluster) -> None:
    """The hosts are late for it; ways to call it are lines of `same_lines`."""
    line = ["bash", "-euo", "pipefail", "-c", f"{RUN} | tee /tmp/log"]
    job = mpijob(cluster, images.image(OLD), launcher_args=line).start(publish=False)
    job.launcher.logs("DNS for pi-worker-0, pi-worker-1")
    job.publish()
    assert job.wait() == 0, job.log
    assert ranks(job.output) == BOTH_RANKS
    for words in ("called no mpirun", "its mpirun was not", "kept behind mpiboot's"):
        assert words not in job.log
    assert [worker.wait() for worker in job.workers] == [0, 0]


def recorded(cluster: Cluster, *program: str, **details: Any) -> tuple[Job, dict[str, Any]]:
    """A job of a command that ends well, with its record."""
    folder = EmptyDir("/record")
    launcher = {"env": {"MPIBOOT_JOB_RECORD": "/record/job.json"}, "volumes": (folder,)}
    job = jobs.ended(cluster, images.image(OLD), *program, launcher=launcher, **details)
    assert folder.host
    return job, json.loads((folder.host / "job.json").read_text())


def test_a_program_without_mpirun_runs_once(cluster: Cluster) -> None:
    job, record = recorded(cluster, RING, slots=8)
    assert ranks(job.output) == [(0, 1, "pi-launcher")]
    hint = f"`mpirun {RING}` runs it on the 2 hosts of /etc/mpi/hostfile"
    assert f"{RING} runs once, in this pod; {hint}" in job.log
    assert re.search(f"ended with 0\n.*-> it called no mpirun .*{re.escape(hint)}\n$", job.log)
    assert hint in job.message
    assert hint in record["reason"]


AGAIN = "mpirun -n 1 sh -c '[ -e /tmp/seen ] || { touch /tmp/seen; exit 3; }'"
PIPE = "sh ended with 0, but its mpirun ended with 3 (a pipe without `set -o pipefail`?)"


@pytest.mark.parametrize(
    ("script", "said"), [(f"{AGAIN} | cat", PIPE), (f"{AGAIN}; {AGAIN}", "sh ended with 0")]
)
def test_a_launch_that_failed_unseen(cluster: Cluster, script: str, said: str) -> None:
    """Unless the same line went well later."""
    job, record = recorded(cluster, "sh", "-c", script)
    assert job.log.splitlines()[-1].endswith(said)
    assert (record["exit"], record["reason"], record["ranks"]) == (0, said, 1)
    assert job.message.partition("\n")[0] == (f"launch: {said}" if said == PIPE else "")


def test_a_launch_beside_a_sleep(cluster: Cluster, image: Image) -> None:
    """As where people then enter the launcher's pod; a signal ends it."""
    job = mpijob(cluster, image, launcher_args=["sh", "-c", "sleep 1d"]).start()
    until(job.launcher.stderr)
    done = job.launcher.exec("mpiboot", "mpirun", RING)
    assert (done.returncode, ranks(done.stdout)) == (0, BOTH_RANKS), done.stderr
    assert not [item for worker in job.workers for item in jobs.alive(worker, "sleep")]
    job.launcher.signal(signal.SIGTERM)
    assert job.wait() == 143


# --- its ssh ---

# The commonest line: the job's host key is checked all the same. Then as in Horovod's elastic mode:
# the operator's script lists the hosts, and is left as it is.
LOGS_IN = """
import subprocess
print("begun")
for host in ("pi-worker-0", "pi-worker-1.pi.default.svc"):
    words = ("-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null")
    subprocess.run(["ssh", *words, host, "hostname; cat"], input=b"said\\n", check=True)
hosts = subprocess.run(["/etc/mpi/discover_hosts.sh"], capture_output=True, text=True, check=True)
for host in hosts.stdout.split():
    subprocess.run(["ssh", host, "echo found $(hostname)"], stdin=subprocess.DEVNULL, check=True)
"""
SAID = ["pi-worker-0", "said", "pi-worker-1", "said"]


def test_its_ssh_waits_for_the_host_that_it_names(cluster: Cluster) -> None:
    """Short names, which no nameserver knows, and no configuration of ssh's in the image."""
    job = mpijob(cluster, images.image(NEW), launcher_args=["python3", "-uc", LOGS_IN])
    job.start(publish=False)
    job.workers[0].publish()
    # The first one is logged in to while the second one has no name yet.
    until(lambda: job.output.split() == ["begun", *SAID[:2]])
    job.workers[1].publish()
    assert job.wait() == 0, job.log
    found = ["found pi-worker-0", "found pi-worker-1"]
    assert job.output.splitlines() == ["begun", *SAID, *found]
    assert "called no mpirun" not in job.log
    assert [worker.wait() for worker in job.workers] == [0, 0]


@jobs.crossed("server", ["openssh", "embedded"])
def test_its_scp_and_sftp_reach_a_host_by_its_ssh(
    cluster: Cluster, image: Image, server: str
) -> None:
    script = "echo said >/tmp/f; scp -q /tmp/f pi-worker-0:g || exit 9; "
    script += "echo get g /tmp/h | sftp -qb - pi-worker-0 && cat /tmp/h"
    worker = {"env": {"MPIBOOT_SSHD": server}}
    job = mpijob(cluster, image, launcher_args=["sh", "-c", script], worker=worker)
    job.start(publish=False)
    job.launcher.logs("runs once")
    job.publish()
    assert job.wait() == 0, job.log
    assert job.output.splitlines()[-1] == "said"


def test_why_a_host_is_not_ready_is_what_its_ssh_says(cluster: Cluster) -> None:
    """The host that is there is reached before and after; another host than the job's at once."""
    script = "ssh nobody.invalid; for n in 0 1 0; do ssh pi-worker-$n hostname; echo $?; done"
    line, launcher = ["sh", "-c", script], {"env": {"MPIBOOT_TIMEOUT": "5"}}
    job = mpijob(cluster, images.image(NEW), launcher_args=line, launcher=launcher)
    job.start(publish=False)
    job.workers[0].publish()
    assert job.wait() == 0
    assert job.output.split() == ["pi-worker-0", "0", "255", "pi-worker-0", "0"]
    assert "nobody.invalid: " in job.log
    assert "\nnames-unresolved: 1 of 2 hosts do not resolve after " in job.log


def test_a_host_that_joins_later_is_reached_as_the_others_are(cluster: Cluster) -> None:
    """As in Horovod's elastic mode; the hostfile that was mounted has one host."""
    key = "/etc/job/.ssh"
    job = mpijob(
        cluster,
        images.image(NEW),
        user=1000,
        ssh_mount=key,
        env={"MPIBOOT_SSH_KEY": key},
        hostfile="pi-worker-0.pi.default.svc slots=1\n",
        launcher_args=["sh", "-c", EACH.replace("; do", " pi-worker-1.pi.default.svc; do")],
    ).start(publish=False)
    for worker in reversed(job.workers):
        worker.publish(when_port=2222)
    assert job.wait() == 0, job.log
    assert job.output.split() == ["pi-worker-0", "pi-worker-1", "pi-worker-1"]


@FULL
@pytest.mark.parametrize(
    ("user", "mount", "details"),
    [(1000, "/home/mpiuser/.ssh", {}), (RANDOM, "/etc/job/.ssh", {**RESTRICTED, "group": 0})],
)
def test_as_another_user_than_root(
    cluster: Cluster, user: int, mount: str, details: dict[str, Any]
) -> None:
    """OpenSSH refuses a user without a passwd entry: the gate's connections are the command's."""
    more: dict[str, Any] = {"env": {"MPIBOOT_SSH_KEY": mount}, "launcher": details}
    image = images.image(NEW)
    job = jobs.ended(
        *(cluster, image, "sh", "-c", EACH), user=user, ssh_mount=mount, worker=details, **more
    )
    assert job.output.splitlines() == ["pi-worker-0", "pi-worker-1"]
    assert ("ssh uses mpiboot's connections" in job.log) == (user == RANDOM)


# A daemon as `ray start` leaves one, an MPI job, and a rank as DeepSpeed starts one.
DAEMON = f"""
ssh pi-worker-0 '[ -e /tmp/on ] || {{ touch /tmp/on; setsid nohup sleep 1000 >/dev/null 2>&1 & }}'
{RUN} && ssh pi-worker-0 'sleep 1001 & wait'
"""


@jobs.crossed("server", ["openssh", "embedded"])
def test_a_daemon_outlives_the_launch(cluster: Cluster, image: Image, server: str) -> None:
    worker = {"env": {"MPIBOOT_SSHD": server}}
    job = mpijob(cluster, image, launcher_args=["sh", "-c", DAEMON], worker=worker).start()

    def sleeping(seconds: str) -> list[int]:
        sleeps = jobs.alive(job.workers[0], "sleep")
        return [item.pid for item in sleeps if item.args[1] == seconds]

    until(lambda: sleeping("1001"))
    daemon = sleeping("1000")
    assert len(daemon) == 1
    job.launcher.kill()
    assert job.wait() == 137
    until(lambda: not sleeping("1001"), jobs.PROMISED)
    job.launcher.start()
    until(lambda: sleeping("1001"))
    assert len(ranks(job.output)) == 4
    assert sleeping("1000") == daemon


# --- scripts that undo what an entrypoint prepared, beside the same ones without mpiboot ---

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


@pytest.mark.parametrize("quick", [True, pytest.param(False, marks=FULL)])
@pytest.mark.parametrize("name", MPIS)
def test_a_script_ends_as_without_mpiboot(cluster: Cluster, name: str, *, quick: bool) -> None:
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
    image = image.with_files(files).with_files({"/usr/bin/busybox": busybox}, 0o755)
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


# --- names that lead to mpiboot, for manifests and scripts that were written for plain images ---

INSTALL = "mpiboot shims install --folder /tmp/shims >&2; PATH=/tmp/shims:$PATH; "


@jobs.ONE_IMAGE
def test_a_batch_script_that_calls_mpirun_twice(cluster: Cluster, image: Image) -> None:
    script = ["sh", "-c", f"set -e; {INSTALL} mpirun -n 2 {RING}; mpirun -n 1 {RING}"]
    worker = ["sh", "-c", f"{INSTALL} exec sshd -De"]
    commands: dict[str, Any] = {"launcher_command": script, "worker_command": worker}
    job = jobs.ended(cluster, image, worker_args=(), **commands)
    assert ranks(job.output) == [(0, 1, "pi-worker-0"), *BOTH_RANKS]
    assert "sshd (openssh) listens" in job.workers[0].stderr()


# Both begin together; the second ends while the first still runs, and then the first is ended.
AT_ONCE = f"""
mpirun -n 2 {RING} --sleep 1000 > /tmp/first & first=$!
mpirun -n 2 {RING} > /tmp/second & second=$!
wait $second
echo "second $?"
while kill -0 $first && [ "$(grep -c rank /tmp/first)" != 2 ]; do sleep 0.2; done
kill -TERM $first
wait $first
echo "first $?"
cat /tmp/second
"""


@jobs.OLD_IMAGE
def test_two_mpiruns_at_once_in_one_script(cluster: Cluster, image: Image) -> None:
    job = jobs.ended(cluster, image, launcher_command=["sh", "-c", INSTALL + AT_ONCE])
    assert job.output.splitlines()[:2] == ["second 0", "first 143"]
    assert ranks(job.output) == BOTH_RANKS
    assert "lost" not in job.log


# An Open MPI that no login finds by PATH: plain mpirun, called by its path, calls daemons so. A
# shim is in its place.
APART = """
to=/opt/mpi/bin; mkdir -p $to; cd /usr/bin; mv orted orterun $to
ln -s orterun $to/mpirun; rm mpirun mpiexec
"""
IN_PLACE = """
real=/usr/local/lib/mpiboot/real; mkdir -p $real
ln -s /opt/mpi/bin/orterun $real/mpirun; ln -sf $(command -v mpiboot) /opt/mpi/bin/mpirun
"""


@FULL
@pytest.mark.parametrize("front", ["", "/opt/mpi/bin:"])
def test_a_shim_that_is_called_by_its_path_calls_daemons_by_theirs(
    cluster: Cluster, front: str
) -> None:
    job = jobs.spanned(
        cluster,
        images.image(OLD).after("sh", "-ec", APART + IN_PLACE),
        *("-n", "2", RING),
        launcher_command=["/opt/mpi/bin/mpirun"],
        launcher={"env": {"PATH": f"{front}{DEFAULT_PATH}"}},
        worker_args=(),
        worker={"image": plain_worker(OLD).after("sh", "-ec", APART)},
    )
    assert "plan prefix=/opt/mpi (detected: no login" in job.log
