"""Names are resolved once, by the gate: which queries `mpirun` makes after it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.pods import images
from tests.pods.cluster import Cluster
from tests.pods.jobs import PATIENCE, RING, ranks, spans
from tests.pods.marks import NEW, OLD, each
from tests.pods.operator import Job, mpijob
from tests.waiting import until

# An mpirun that waits for a file before it starts.
HELD = """#!/bin/sh
PATH=${PATH#/opt/held:}
case " $* " in *" --version "* | *" -version "*) exec "${0##*/}" "$@" ;; esac
touch /tmp/held
until [ -e /tmp/go ]; do sleep 0.1; done
exec "${0##*/}" "$@"
"""
# Ranks without MPI: MPICH 4.0.2 itself does not come out of MPI_Finalize each time, with three
# hosts (docs/how-to/job-hangs.md).
HYDRA_RANK = ["mpirun", "sh", "-c", 'echo "rank $PMI_RANK of $PMI_SIZE on $(hostname)"']
# As short as the search list allows, and this pod itself by an address.
SHORT = "127.0.0.1 slots=1\npi-worker-0.pi slots=1\npi-worker-1.pi slots=1\n"


def asked_after_the_gate(job: Job, cluster: Cluster) -> list[str]:
    """Run a job whose nameserver is silent once mpirun starts; the queries from then on."""
    job.start()
    until(lambda: job.launcher.shell("[ ! -e /tmp/held ] || echo held").strip() == "held")
    before = len(cluster.dns.questions())
    cluster.dns.behave(drop=1_000_000)
    job.launcher.shell("touch /tmp/go")
    assert job.wait(PATIENCE) == 0
    questions = cluster.dns.questions()[before:]
    return [item.name for item in questions if item.client == job.launcher.address]


def held(cluster: Cluster, name: str, **details: Any) -> Job:
    files = dict.fromkeys(("/opt/held/mpirun", "/opt/held/mpiexec.hydra"), HELD)
    image = images.image(name).with_files(files, 0o755)
    path = image.env.get("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
    launcher = {"env": {"PATH": f"/opt/held:{path}"}}
    program = HYDRA_RANK if name.startswith("mpich") else ["mpirun", RING]
    given = {"launcher_args": program, "as_worker": True, "launcher": launcher}
    return mpijob(cluster, image, **{**given, **details})


@pytest.mark.parametrize(
    ("name", "hostfile"),
    [
        pytest.param(OLD, None, id="4.1"),
        pytest.param(NEW, None, id="5.0", marks=pytest.mark.full),
        pytest.param(OLD, SHORT, id="4.1-short", marks=pytest.mark.full),
        pytest.param(NEW, SHORT, id="5.0-short", marks=pytest.mark.full),
        pytest.param("mpich-4.0", None, id="mpich-4.0", marks=pytest.mark.full),
        pytest.param("intel-mpi", None, id="intel", marks=pytest.mark.full),
    ],
)
def test_a_nameserver_that_is_silent_once_the_gate_is_passed(
    cluster: Cluster, rig: None, name: str, hostfile: str | None
) -> None:
    """This pod is one of the hosts, and is known for mpirun's own host without being asked for."""
    job = held(cluster, name, hostfile=hostfile)
    assert asked_after_the_gate(job, cluster) == []
    hosts = [pod.hostname for pod in job.pods]
    assert ranks(job.launcher.stdout()) == [(n, 3, host) for n, host in enumerate(hosts)]


# An address that no pod has.
NOBODY = "10.244.0.250"


def misbehaving(cluster: Cluster, job: Job, each: dict[int, dict[str, Any]]) -> Job:
    """Drop every query by UDP, and spoil the answers for some workers."""
    cluster.dns.behave(tcp_only=True)
    for index, behaviour in each.items():
        cluster.dns.behave(job.workers[index].fqdn, tcp_only=True, **behaviour)
    return job


@each(NEW, OLD, "mpich-4.0")
def test_a_nameserver_by_tcp_that_fails_and_flips(cluster: Cluster, rig: None, name: str) -> None:
    """The wrong address comes first: nobody is there, and the name is asked for again."""
    program = HYDRA_RANK if name.startswith("mpich") else ["mpirun", RING]
    job = mpijob(cluster, images.image(name), workers=3, launcher_args=program)
    misbehaving(cluster, job, {0: {"servfail": 3}, 1: {"flip": True, "other": NOBODY}}).start()
    assert job.wait(PATIENCE) == 0
    spans(job)
    found = {item for item in cluster.dns.questions() if item.message == "NOERROR"}
    assert {item.transport for item in found} == {"tcp"}
    assert {item.name.partition(".")[0] for item in found} == {pod.hostname for pod in job.workers}
    refused = [item for item in cluster.dns.questions() if item.message == "SERVFAIL"]
    assert len(refused) == 3


@pytest.mark.full
def test_servfail_until_the_deadline_is_named(cluster: Cluster, rig: None) -> None:
    job = mpijob(cluster, images.image(NEW), workers=3, env={"MPIBOOT_DNS_WAIT": "15"})
    misbehaving(cluster, job, {1: {"servfail": 1_000_000}}).start()
    assert job.wait(PATIENCE) == 68
    message = job.launcher.termination_log()
    assert message.startswith(
        "names-unresolved: 1 of 3 hosts do not resolve after 15 s: waiting for "
    )
    assert "\npi-worker-1.pi.default.svc: DNS: SERVFAIL for " in message
    assert "pi-worker-0" not in message
    assert "starting mpirun" not in job.launcher.stderr()


@pytest.mark.full
def test_a_name_that_leads_to_another_worker_is_no_second_host(cluster: Cluster, rig: None) -> None:
    """It has the job's key and accepts the login."""
    job = mpijob(cluster, images.image(NEW), workers=3).start(publish=False)
    first = job.workers[0]
    cluster.dns.behave(job.workers[1].fqdn, flip=True, other=first.address)
    job.publish()
    assert job.wait(PATIENCE) == 78
    message = job.launcher.termination_log()
    both = "pi-worker-0.pi.default.svc, pi-worker-1.pi.default.svc"
    assert f"{both} lead to one and the same SSH server, {first.address} port 22" in message
    assert "else the nameserver has a wrong or an old address" in message
    assert "starting mpirun" not in job.launcher.stderr()
