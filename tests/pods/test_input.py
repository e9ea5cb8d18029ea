"""Common mistakes and questions, in pods: one clear line each, the right exit code, no hang."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.pods.cluster import Cluster
from tests.pods.images import Image
from tests.pods.jobs import ended
from tests.pods.marks import ONE_IMAGE
from tests.pods.operator import Job, KeyPair, mpijob
from tests.pods.volumes import Files
from tests.waiting import until

RING = "/opt/programs/ring"
PROGRAM = ["mpirun", "sh", "-c", 'echo "$HOSTNAME"']
# A guard against a hang only, many times what a job takes.
PATIENCE = 120


def fails(job: Job, code: int, reference: str, *said: str) -> None:
    """The launcher ends with one line for people, which is also the termination message's."""
    assert job.wait(PATIENCE) == code
    errors = [line for line in job.launcher.stderr().splitlines() if "error: [" in line]
    assert len(errors) == 1, errors
    assert errors[0].startswith(f"mpiboot: error: [{reference}] ")
    assert job.launcher.termination_log().startswith(f"{reference}: ")
    for text in said:
        assert text in errors[0]
    assert "Traceback" not in job.launcher.stderr()
    assert job.launcher.stdout() == ""


def names(job: Job) -> list[str]:
    return sorted(job.launcher.stdout().split())


def test_a_hostfile_that_is_written_late_is_waited_for(cluster: Cluster, one: Image) -> None:
    job = mpijob(cluster, one, workers=1, launcher_args=PROGRAM)
    whole = job.config.files
    job.config.update({})
    job.start()
    until(lambda: "waiting for the hostfile: /etc/mpi/hostfile" in job.launcher.stderr())
    job.config.update(whole)
    assert job.wait(PATIENCE) == 0
    assert names(job) == ["pi-worker-0"]


def test_of_two_hostfiles_the_users_is_used(cluster: Cluster, one: Image) -> None:
    mine = Files("/etc/mine", {"hosts": "pi-worker-1.pi.default.svc slots=1\n"})
    details = {"env": {"MPI_HOSTFILE": "/etc/mine/hosts"}, "volumes": [mine]}
    job = ended(cluster, one, *PROGRAM, launcher=details)
    assert names(job) == ["pi-worker-1"]
    (line,) = [x for x in job.launcher.stderr().splitlines() if " differs (" in x]
    assert "OMPI_MCA_orte_default_hostfile=/etc/mpi/hostfile differs (2 hosts, 2 slots)" in line
    assert "mpiboot uses /etc/mine/hosts (named by MPI_HOSTFILE)" in line


def test_a_key_that_this_user_may_not_read_is_named(cluster: Cluster, one: Image) -> None:
    private = Files("/home/mpiuser/.ssh", KeyPair.make().files(), 0o600)
    details = {"volumes": [private]}
    job = mpijob(
        cluster,
        one,
        workers=1,
        launcher_args=PROGRAM,
        user=1000,
        launcher=details,
    ).start()
    fails(job, 77, "ssh-key", "/home/mpiuser/.ssh/id_rsa has mode 0600 of uid 0")


@pytest.mark.full
def test_a_user_who_can_write_nowhere_is_told_what_to_mount(cluster: Cluster, one: Image) -> None:
    """No emptyDir, and in the place of /dev/shm a volume that is nobody's to write."""
    pod: dict[str, Any] = {"read_only_root": True, "volumes": [Files("/dev/shm", {"a": ""})]}
    job = mpijob(cluster, one, workers=1, launcher=pod, worker=pod, user=1000).start()
    for wrong in job.pods:
        assert wrong.wait(PATIENCE) == 73
        (line,) = [line for line in wrong.stderr().splitlines() if "error: [" in line]
        assert line.startswith("mpiboot: error: [runtime-folder] ")
        assert "emptyDir" in wrong.stderr()


def test_workers_without_args_run_the_operators_sshd(cluster: Cluster, one: Image) -> None:
    """Without shims and settings the image's own sshd ends: it has no host key."""
    job = mpijob(
        cluster,
        one,
        workers=1,
        launcher_args=PROGRAM,
        launcher={"env": {"MPIBOOT_TIMEOUT": "6"}},
        worker_args=(),
        worker={"image": one.without("/etc/ssh/sshd_config.d/mpi.conf")},
    )
    # The time is over when its name is known, and not before.
    job.workers[0].start().publish()
    job.launcher.start()
    fails(job, 69, "workers-unreachable", "pi-worker-0")
    assert "no hostkeys available" in job.workers[0].stderr()
    assert "args: [worker]" in job.launcher.stderr()


def test_wait_is_an_init_container(cluster: Cluster, one: Image) -> None:
    job = mpijob(cluster, one, launcher_args=["wait"]).start(publish=False)
    until(lambda: "NXDOMAIN" in job.launcher.stderr())
    job.publish()
    assert job.wait(PATIENCE) == 0
    assert "2 hosts ready in" in job.launcher.stderr()
    assert job.launcher.stdout() == ""


def mpiboot(job: Job, *words: str) -> tuple[int, str]:
    """What somebody with `kubectl exec` in the launcher sees on stdout."""
    done = job.launcher.exec("mpiboot", *words)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout


def ready(cluster: Cluster, image: Image, env: dict[str, str] | None = None) -> Job:
    """A launcher that only stays, and workers that serve."""
    stay = ["sleep", "1000"]
    job = mpijob(cluster, image, launcher_command=stay, env=env).start()
    for worker in job.workers:
        worker.shell("until [ -e /run/mpiboot/*/worker/facts.json ]; do sleep 0.1; done")
    return job


@ONE_IMAGE
def test_plan_and_doctor_tell_a_healthy_job(cluster: Cluster, image: Image) -> None:
    job = ready(cluster, image)
    code, text = mpiboot(job, "plan", "--", "mpirun", RING)
    assert code == 0
    assert text.splitlines()[-1].startswith("mpirun -n 2")
    assert "pi-worker-1.pi.default.svc" in text
    # Where nobody sits at a terminal, each decision is a line.
    output = text.splitlines()
    assert [line for line in output if line.startswith("  ") and line[2] == " "] == []
    code, text = mpiboot(job, "plan", "--json", "--", "mpirun", RING)
    assert (code, json.loads(text)["argv"][:3]) == (0, ["mpirun", "-n", "2"])
    code, text = mpiboot(job, "doctor")
    assert (code, "FAIL" in text) == (0, False)
    assert " 0 failed" in text.splitlines()[-1]
    code, text = mpiboot(job, "doctor", "--json")
    found = {
        (item["host"].partition(".")[0], item["level"]) for item in json.loads(text)["findings"]
    }
    assert {("pi-worker-0", "ok"), ("pi-worker-1", "ok")} <= found
    own = job.workers[0].exec("mpiboot", "doctor")
    assert own.returncode == 0
    assert "no RDMA device of this pod" in own.stdout
    assert own.stdout.splitlines()[-1].endswith(" checks: 0 failed, 0 warnings"), own.stdout
    built = job.workers[0].exec("mpiboot", "doctor", "--image")
    assert built.returncode == 0
    assert built.stdout.splitlines()[-1].endswith(" checks: 0 failed, 0 warnings"), built.stdout
    seen = job.workers[0].exec("mpiboot", "facts").stdout.splitlines()
    assert [line.split() for line in seen if line.startswith("sshd ")] == [["sshd", "openssh"]]
    code, text = mpiboot(job, "wait", "--json")
    ports = {item["host"].partition(".")[0]: item["port"] for item in json.loads(text)["hosts"]}
    assert (code, ports) == (0, {"pi-worker-0": 22, "pi-worker-1": 22})


@pytest.mark.full
def test_missing_hosts_fill_one_screen_with_one_hint(cluster: Cluster, one: Image) -> None:
    # At debug, which the rig's pods have, each host has its line.
    launcher = {"env": {"MPIBOOT_LOG_LEVEL": "info"}}
    waits = ["sleep", "1000"]
    job = mpijob(cluster, one, workers=1, launcher=launcher, launcher_command=waits).start()
    job.launcher.shell('for n in $(seq 64); do echo "w-$n.gone.pi.svc"; done > /tmp/hosts')
    own = ["--hostfile", "/tmp/hosts"]
    for words in (
        ["plan", *own, "--", "mpirun", RING],
        ["doctor", *own],
        ["wait", *own, "--timeout", "3"],
    ):
        done = job.launcher.exec("mpiboot", *words)
        output = (done.stdout + done.stderr).splitlines()
        code = 1 if words[0] == "doctor" else 68
        assert done.returncode == code, output
        assert sum("-> " in line for line in output) == 1, output
        # Below it a plan has what can be decided; above it `wait` has what it waited for.
        missing = [line for line in output if ".gone.pi.svc" in line]
        assert len(missing) <= 24 + 2, output
        terminal = job.launcher.exec_in_terminal("env", "TERM=xterm", "mpiboot", *words)
        assert terminal.wait(PATIENCE) == code
        assert terminal.screen().count("-> ") == 1, terminal.screen()
        assert "more" in terminal.screen()
