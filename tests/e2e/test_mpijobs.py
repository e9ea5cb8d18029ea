"""The example MPIJobs in a real cluster, and what a user would look at when one goes wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.e2e.cluster import KubectlError, Namespace
from tests.e2e.jobs import container, example, image, ranks, set_env, templates

Fields = dict[str, Any]
OPENMPI = "mpi-operator/openmpi.yaml"
BOTH = {"train-worker-0": 2, "train-worker-1": 2}
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
OVER = ("Succeeded", "Failed")


def counted(log: str) -> dict[str, int]:
    return {host: len(numbers) for host, numbers in ranks(log).items()}


def launcher_of(namespace: Namespace, job: str = "train", number: int = 1) -> Fields:
    """The job's launcher pod; of several tries the one with that number, from 1."""

    def look() -> Fields | None:
        found = namespace.pods(job, "launcher")
        return found[number - 1] if len(found) >= number else None

    return namespace.wait_for(f"{job}: launcher {number}", look)


def succeeds(namespace: Namespace, job: str = "train") -> str:
    assert namespace.condition(job, OVER) == "Succeeded", namespace.shown()
    return namespace.log(launcher_of(namespace, job))


@pytest.mark.parametrize("namespace", [RESTRICTED], indirect=True, ids=["restricted"])
@pytest.mark.parametrize(
    ("file", "mpi"),
    [
        (OPENMPI, "openmpi-4.1"),
        (OPENMPI, "openmpi-5.0"),
        ("mpi-operator/mpich.yaml", "mpich-5.0"),
        ("mpi-operator/intel.yaml", "intel-mpi"),
    ],
)
def test_an_example_runs_under_pod_security_restricted(
    namespace: Namespace, file: str, mpi: str
) -> None:
    namespace.apply(example(file, mpi))
    assert counted(succeeds(namespace)) == BOTH
    ended = namespace.ended(launcher_of(namespace))
    assert (ended["exitCode"], ended["reason"], ended.get("message", "")) == (0, "Completed", "")


def as_root(job: Fields) -> None:
    job["spec"]["runPolicy"]["cleanPodPolicy"] = "None"


def carried(job: Fields) -> None:
    for pod in templates(job).values():
        (init,) = pod["initContainers"]
        init["image"] = image("mpiboot")


def late(job: Fields) -> None:
    job["spec"]["launcherCreationPolicy"] = "WaitForWorkersReady"


def as_worker(job: Fields) -> None:
    job["spec"]["runLauncherAsWorker"] = True


@pytest.mark.parametrize(
    ("file", "mpi", "change"),
    [
        ("mpi-operator/unchanged-image.yaml", "openmpi-5.0", carried),
        ("mpi-operator/root.yaml", "openmpi-5.0", as_root),
        (OPENMPI, "openmpi-5.0", late),
        (OPENMPI, "openmpi-4.1", as_worker),
        (OPENMPI, "openmpi-5.0", as_worker),
    ],
)
def test_an_example_that_is_changed(
    namespace: Namespace, file: str, mpi: str, change: Callable[[Fields], None]
) -> None:
    job = example(file, mpi)
    change(job)
    namespace.apply(job)
    found = counted(succeeds(namespace))
    assert found.items() >= BOTH.items()
    assert len(found) == (3 if change is as_worker else 2)
    if change is as_root:
        workers = namespace.pods("train", "worker")
        assert [namespace.ended(pod)["exitCode"] for pod in workers] == [0, 0]
        assert "openssh" in namespace.log(workers[0]).lower()


def until_ranks_run(namespace: Namespace, job: str = "train") -> Fields:
    """Wait until all ranks have said where they run, and give the launcher's pod."""
    launcher = launcher_of(namespace, job)
    hosts = {f"{job}-worker-{number}": 2 for number in range(2)}

    def look() -> bool:
        try:
            return counted(namespace.log(launcher)) == hosts
        except KubectlError:  # its container is still being made
            return False

    namespace.wait_for(f"{job}: all ranks", look)
    return launcher


def test_doctor_and_a_worker_that_is_deleted_while_the_job_runs(namespace: Namespace) -> None:
    namespace.apply(example(OPENMPI, "openmpi-5.0", "--sleep", "600"))
    launcher = until_ranks_run(namespace)
    found = namespace.run("exec", launcher["metadata"]["name"], "--", "mpiboot", "doctor")
    assert "train-worker-1" in found
    assert "FAIL" not in found
    namespace.run("delete", "pod", "train-worker-1", "--grace-period=0", "--force")
    ended = namespace.ended(launcher)
    assert ended["exitCode"] == 69
    assert "train-worker-1" in ended["message"]
    assert namespace.condition("train", OVER) == "Failed"


def test_a_worker_whose_image_cannot_be_pulled_is_named(namespace: Namespace) -> None:
    job = example(OPENMPI, "openmpi-5.0")
    container(job, "Worker")["image"] = "localhost/mpiboot/no-such-image:1"
    set_env(job, "Launcher", MPIBOOT_TIMEOUT="20s")
    namespace.apply(job)
    ended = namespace.ended(launcher_of(namespace))
    assert ended["exitCode"] == 68
    assert ended["message"].startswith("names-unresolved: ")
    assert "train-worker-0" in ended["message"]
    assert "train-worker-1" in ended["message"]


def test_a_running_job_is_suspended_and_resumed(namespace: Namespace) -> None:
    namespace.apply(example(OPENMPI, "openmpi-5.0", "--sleep", "20"))
    until_ranks_run(namespace)
    patch = '{{"spec": {{"runPolicy": {{"suspend": {}}}}}}}'
    namespace.run("patch", "mpijob", "train", "--type", "merge", "--patch", patch.format("true"))
    namespace.wait_for("no pod is left", lambda: not namespace.pods("train", "worker"))
    namespace.run("patch", "mpijob", "train", "--type", "merge", "--patch", patch.format("false"))
    assert counted(succeeds(namespace)) == BOTH


def test_a_new_launcher_says_how_the_last_one_ended(namespace: Namespace) -> None:
    job = example(OPENMPI, "openmpi-5.0", "--exit", "3")
    job["spec"]["runPolicy"]["backoffLimit"] = 1
    namespace.apply(job)
    second = launcher_of(namespace, number=2)
    assert namespace.ended(second)["exitCode"] == 3
    assert "attempt 2" in namespace.log(second)
    assert namespace.ended(launcher_of(namespace))["exitCode"] == 3
    assert namespace.condition("train", OVER) == "Failed"
