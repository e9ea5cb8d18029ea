from __future__ import annotations

import pytest

from mpiboot.core.checks import MpibootError
from mpiboot.core.model import Decision, Role, Source
from mpiboot.core.settings import resolve
from mpiboot.job import platforms

OPERATOR = {"K_MPI_JOB_ROLE": "launcher"}
# kubeflow/trainer v2.3.0 pkg/runtime/framework/plugins/mpi/mpi.go, and what an indexed Job adds.
TRAINER = {
    "OMPI_MCA_orte_default_hostfile": "/etc/mpi/hostfile",
    "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
    "OMPI_MCA_orte_set_default_slots": "2",
    "OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10",
    "JOB_COMPLETION_INDEX": "0",
}


NONE, LIST = "no known platform found", "/etc/volcano/worker.host"
SOME = {name: TRAINER[name] for name in (*list(TRAINER)[:1], *list(TRAINER)[2::2])}
OTHER = {**TRAINER, "OMPI_MCA_orte_default_hostfile": "/opt/mpi/etc/hostfile"}
HOSTS = {"VC_MPIWORKER_HOSTS": "j-mpiworker-0.j", "VC_MPIWORKER_NUM": "1"}


@pytest.mark.parametrize(
    ("environ", "hostfile", "name", "mark"),
    [
        ({"K_MPI_JOB_ROLE": "worker"}, "", "mpi-operator", "K_MPI_JOB_ROLE"),
        (TRAINER, "", "trainer", "OMPI_MCA_orte_default_hostfile in a pod of an indexed Job"),
        ({**TRAINER, **OPERATOR}, "", "mpi-operator", "K_MPI_JOB_ROLE"),
        # An MPI Operator before 0.5, whose launcher is no indexed Job.
        ({**TRAINER, "JOB_COMPLETION_INDEX": ""}, "", "plain", NONE),
        # A launcher of one's own, in an indexed Job: some of these variables, or other values.
        *((own, "", "indexed-job", "JOB_COMPLETION_INDEX") for own in (SOME, OTHER)),
        # A node of a TrainJob, or a JobSet's pod.
        ({"JOB_COMPLETION_INDEX": "0"}, "", "indexed-job", "JOB_COMPLETION_INDEX"),
        *(({name: "1"}, "", "volcano", name) for name in ("VC_TASK_INDEX", "VK_TASK_INDEX")),
        # Without the env plugin, what the svc plugin sets; without that, what it mounts.
        (HOSTS, "", "volcano", "VC_MPIWORKER_HOSTS"),
        ({}, LIST, "volcano", LIST),
        (OPERATOR, LIST, "mpi-operator", "K_MPI_JOB_ROLE"),
        ({"LSB_JOBID": "7"}, "", "lsf", "LSB_JOBID"),
        *(({}, path, "plain", NONE) for path in ("/etc/volcano.host", "/etc/mpi/hostfile", "")),
        *(({name: "a,b"}, "", "plain", NONE) for name in ("VC_MY_HOSTS", "MPI_HOST")),
        ({"K_MPI_JOB_ROLE": ""}, "", "plain", NONE),
    ],
)
def test_a_platform_is_recognised_by_its_own_mark(
    environ: dict[str, str], hostfile: str, name: str, mark: str
) -> None:
    row, decision = platforms.recognise(environ, hostfile)
    assert row.name == name
    assert decision == Decision("platform", name, Source.DETECTED, mark)


FILE = "/etc/mpi/hostfile"
TRAINERS = "OMPI_MCA_orte_default_hostfile, which trainer sets on launchers alone"
VOLCANOS = "MPI_HOST, which volcano sets on launchers alone"
ASKED = "the arguments ask for worker"


@pytest.mark.parametrize(
    ("environ", "program", "hostfile", "role", "source", "reason"),
    [
        # The setting comes first, then the platform, START_SSHD, and what the arguments ask for.
        (
            {"MPIBOOT_ROLE": "none", "K_MPI_JOB_ROLE": "launcher", "START_SSHD": "true"},
            *("prog", FILE, Role.NONE, Source.ENVIRONMENT, "MPIBOOT_ROLE"),
        ),
        (
            {"K_MPI_JOB_ROLE": "launcher", "START_SSHD": "true"},
            *("prog", FILE, Role.LAUNCHER, Source.PLATFORM, "K_MPI_JOB_ROLE=launcher"),
        ),
        (
            {"K_MPI_JOB_ROLE": "Worker"},
            *("", "", Role.WORKER, Source.PLATFORM, "K_MPI_JOB_ROLE=worker"),
        ),
        (
            {"K_MPI_JOB_ROLE": "captain", "START_SSHD": "1"},
            *("", "", Role.WORKER, Source.ENVIRONMENT, "START_SSHD is true"),
        ),
        (
            {**TRAINER, "START_SSHD": "true"},
            *("prog", FILE, Role.LAUNCHER, Source.PLATFORM, TRAINERS),
        ),
        (
            {"VC_TASK_INDEX": "0", "MPI_HOST": "j-worker-0.j", "START_SSHD": "true"},
            *("prog", "", Role.LAUNCHER, Source.PLATFORM, VOLCANOS),
        ),
        ({"VC_TASK_INDEX": "0"}, "worker", "", Role.WORKER, Source.DETECTED, ASKED),
        ({"JOB_COMPLETION_INDEX": "0"}, "worker", "", Role.WORKER, Source.DETECTED, ASKED),
        (
            {"START_SSHD": "true"},
            *("prog", FILE, Role.WORKER, Source.ENVIRONMENT, "START_SSHD is true"),
        ),
        ({}, "/usr/sbin/sshd -De", FILE, Role.WORKER, Source.DETECTED, "/usr/sbin/sshd"),
        ({"START_SSHD": "false"}, "prog", "", Role.NONE, Source.DEFAULT, "nothing says a role"),
        ({}, "shell", "", Role.NONE, Source.DEFAULT, "nothing says"),
        ({}, "prog", "", Role.NONE, Source.DEFAULT, "nothing says a role"),
    ],
)
def test_the_role_is_what_the_strongest_mark_says(
    environ: dict[str, str], program: str, hostfile: str, role: Role, source: Source, reason: str
) -> None:
    resolved, words = resolve({}, environ), tuple(program.split())
    found, decision = platforms.role(resolved, environ, words, hostfile, "pod-1")
    assert found is role
    assert (decision.name, decision.value, decision.source) == ("role", role.value, source)
    assert reason in decision.reason


@pytest.mark.parametrize(
    ("environ", "hostname", "role", "reason"),
    [
        ({"JOB_COMPLETION_INDEX": "0"}, "w-7", Role.LAUNCHER, "pod 0, by JOB_COMPLETION_INDEX"),
        ({"JOB_COMPLETION_INDEX": "10"}, "w-0", Role.WORKER, "pod 10, by JOB_COMPLETION_INDEX"),
        ({}, "my-cnode-0", Role.LAUNCHER, "pod 0, by the host name my-cnode-0"),
        ({}, "my-cnode-03.svc.ns", Role.WORKER, "pod 3, by the host name my-cnode-03.svc.ns"),
        ({**OPERATOR, "START_SSHD": "1"}, "w-1", Role.WORKER, "pod 1, by the host name w-1"),
    ],
)
def test_by_its_index_pod_0_is_the_launcher(
    environ: dict[str, str], hostname: str, role: Role, reason: str
) -> None:
    environ = {**environ, "MPIBOOT_ROLE": "by-index"}
    found, decision = platforms.role(resolve({}, environ), environ, ("prog",), "", hostname)
    assert found is role
    assert decision.source is Source.ENVIRONMENT
    assert decision.reason == f"MPIBOOT_ROLE: {reason}"


@pytest.mark.parametrize("hostname", ["train-x7k2p", "node", "w-", "w-²", ""])
def test_a_pod_without_a_number_has_no_role_by_its_index(hostname: str) -> None:
    environ = {"MPIBOOT_ROLE": "by-index"}
    with pytest.raises(MpibootError) as unclear:
        platforms.role(resolve({}, environ), environ, ("prog",), "", hostname)
    assert unclear.value.code == 2
    assert f"the host name {hostname} does not end with one" in unclear.value.finding.message
    assert "completionMode: Indexed" in unclear.value.finding.hint


@pytest.mark.parametrize("environ", [{}, {"VC_TASK_INDEX": "0"}, {"LSB_JOBID": "1"}])
def test_a_mounted_hostfile_alone_makes_no_launcher(environ: dict[str, str]) -> None:
    with pytest.raises(MpibootError) as unclear:
        platforms.role(resolve({}, environ), environ, ("mpirun", "./a"), FILE, "pod-1")
    assert (unclear.value.code, unclear.value.finding.check) == (2, "role")
    assert FILE in unclear.value.finding.message
    assert "MPIBOOT_ROLE" in unclear.value.finding.hint


def test_arguments_that_only_ask_for_a_server_are_recognised() -> None:
    for words in ("/usr/sbin/sshd -De", "sshd", "worker", "shell"):
        assert platforms.is_sshd(tuple(words.split()))
    for words in ("/opt/sshd-like", "sleep infinity", "", "./worker", "/usr/local/bin/worker"):
        assert not platforms.is_sshd(tuple(words.split()))


@pytest.mark.parametrize(
    ("wanted", "environ", "expected"),
    [
        ("auto", {"K_MPI_JOB_ROLE": "worker"}, "after-job"),
        ("auto", {"VC_TASK_INDEX": "0"}, "never"),
        ("auto", {**TRAINER}, "never"),
        ("auto", {"JOB_COMPLETION_INDEX": "1"}, "with-job"),
        ("never", {"JOB_COMPLETION_INDEX": "1"}, "never"),
        ("auto", {}, "never"),
        ("never", OPERATOR, "never"),
        ("with-job", OPERATOR, "with-job"),
        ("after-job", {}, "after-job"),
    ],
)
def test_a_worker_ends_by_itself_where_nothing_starts_it_again(
    wanted: str, environ: dict[str, str], expected: str
) -> None:
    settings = resolve({"worker_exit": wanted}, {}).settings
    assert platforms.worker_exit(settings, environ) == expected
