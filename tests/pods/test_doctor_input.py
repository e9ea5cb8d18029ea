"""Doctor where little is there: in a build, outside a cluster, without hosts, with half of them."""

from __future__ import annotations

import json

import pytest

from tests.pods.cluster import Cluster
from tests.pods.images import Image
from tests.pods.network import Link
from tests.pods.oci import NO_CAPABILITIES, PodSpec
from tests.pods.operator import mpijob

SITE = "/opt/mpiboot/lib/python3.11/site-packages"
# A guard against a hang only, many times what it takes.
PATIENCE = 60


def doctor(cluster: Cluster, image: Image, *words: str, **details: object) -> tuple[int, str]:
    """The exit code and all that is written by doctor as the program of a container."""
    command = ["mpiboot", "doctor", *words]
    name = f"p{len(cluster.pods)}"
    pod = cluster.pod(PodSpec(name=name, image=image, command=command, **details)).start()  # type: ignore[arg-type]
    code = pod.wait(PATIENCE)
    text = pod.stdout() + pod.stderr()
    assert "Traceback" not in text
    return code, " ".join(text.split())


def test_a_build_ends_over_an_image_that_lacks_something(cluster: Cluster, one: Image) -> None:
    code, text = doctor(cluster, one.without("/usr/bin/orted"), "--image")
    assert code == 1
    assert "/usr/bin/mpirun has no orted beside it or on PATH" in text
    # Without this one there is no command line at all, and no table of checks.
    code, text = doctor(cluster, one.without(f"{SITE}/click"), "--image")
    assert code == 127
    assert "[python-modules] Python 3.11.2 does not find click" in text


def test_in_a_plain_container_outside_a_cluster(cluster: Cluster, one: Image) -> None:
    """A uid that nobody knows, without capabilities, without a network, nothing to write to."""
    code, text = doctor(
        cluster,
        one,
        user=4711,
        capabilities=NO_CAPABILITIES,
        no_new_privileges=True,
        seccomp=True,
        read_only_root=True,
        links=(Link(ipv4=False),),
        cluster_dns=False,
        env={"HOME": "/nonexistent"},
    )
    assert code == 1
    assert "uid 4711 has no passwd entry" in text
    assert "FAIL this pod ssh-key no private SSH key in" in text
    assert "no link of its own has the control address" in text
    assert " 1 failed, " in text


@pytest.mark.full
def test_with_half_of_the_workers_gone_the_others_are_told(cluster: Cluster, one: Image) -> None:
    job = mpijob(cluster, one, workers=4, launcher_command=["sleep", "1000"]).start()
    assert job.launcher.exec("mpiboot", "wait").returncode == 0
    before = job.launcher.shell("ls -AR /run /tmp /dev/shm /root 2>/dev/null")
    job.workers[1].delete()  # its name too
    job.workers[3].kill()
    done = job.launcher.exec("mpiboot", "doctor", "--json", "--timeout", "5")
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    found = json.loads(done.stdout)["findings"]
    bad = {
        (item["host"].partition(".")[0], item["check"])
        for item in found
        if item["level"] == "fail" and item["host"].startswith("pi-worker")
    }
    assert {("pi-worker-1", "names-unresolved"), ("pi-worker-3", "workers-unreachable")} <= bad
    assert {host for host, _ in bad} == {"pi-worker-1", "pi-worker-3"}
    good = {item["host"].partition(".")[0] for item in found if item["level"] == "ok"}
    assert {"pi-worker-0", "pi-worker-2"} <= good
    assert job.launcher.shell("ls -AR /run /tmp /dev/shm /root 2>/dev/null") == before
