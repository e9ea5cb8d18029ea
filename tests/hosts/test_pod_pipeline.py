"""The gate where hosts are pods that kubectl enters.

The ``kubectl`` is a FAKE without an API server: it answers with what a test has written, and runs
the gate's own command, as it is, on this machine.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mpiboot.core import log
from mpiboot.core.checks import MpibootError
from mpiboot.core.facts import Host, NoFacts
from mpiboot.core.settings import Settings
from mpiboot.hosts import gate, pipeline, progress
from mpiboot.hosts.access import SshAccess
from mpiboot.hosts.dns import Resolver
from mpiboot.hosts.gate import GateResult
from mpiboot.hosts.progress import HostState, Stage
from mpiboot.network import pod
from mpiboot.ssh.commands import CommandEnd
from mpiboot.ssh.kubectl import PodAccess
from mpiboot.ssh.pool import Pool
from tests.hosts.test_gate import Deadline

FAKE = """#!/bin/sh
dir=${0%/*}
echo "$*" | head -n 1 >> "$dir/asked"
case $2 in
    get) out=$dir/$4.get ;;
    *)
        while [ "$1" != -- ]; do shift; done
        shift
        [ -e "$dir/exec" ] || exec "$@"
        out=$dir/exec
        ;;
esac
if [ -e "$out" ]; then cat "$out"; exit 0; fi
cat "$dir/says" >&2
exit 1
"""
GONE = 'Error from server (NotFound): pods "w-0" not found'
UNREACHABLE = "Unable to connect to the server: dial tcp 10.96.0.1:443: i/o timeout"
FORBIDDEN = (
    'Error from server (Forbidden): pods "w-0" is forbidden: User "system:serviceaccount:jobs:x" '
    'cannot get resource "pods" in API group "" in the namespace "jobs"'
)
HOSTS = (Host("w-0.w.jobs.svc", slots=1, line=1),)


class Cluster:
    """What the fake kubectl answers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.kubectl = folder / "kubectl"
        self.kubectl.write_text(FAKE)
        self.kubectl.chmod(0o755)
        self.says(GONE)
        pods = PodAccess(str(self.kubectl), "jobs")
        self.access = SshAccess("", Pool(None, pods=pods), "launcher")

    def says(self, words: str) -> None:
        (self.folder / "says").write_text(f"{words}\n")

    def runs(self, pod: str = "w-0", *addresses: str) -> None:
        new = self.folder / "new"
        new.write_text(" ".join(addresses or ("192.0.2.7",)))
        new.rename(self.folder / f"{pod}.get")

    def refuses(self, words: str) -> None:
        """Let exec fail with these words, though the pod is there."""
        self.says(words)
        self.kubectl.write_text(FAKE.replace('[ -e "$dir/exec" ] || exec "$@"', ""))

    def asked(self) -> list[str]:
        file = self.folder / "asked"
        return file.read_text().splitlines() if file.exists() else []

    async def asked_more_often_than(self, count: int) -> None:
        while len(self.asked()) <= count:  # noqa: ASYNC110 - another process writes them
            await asyncio.sleep(0.01)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setattr(pipeline, "_KUBECTL_PAUSE", 0.05)
    log.configure()
    return Cluster(tmp_path)


async def passing(
    cluster: Cluster,
    hosts: tuple[Host, ...] = HOSTS,
    **settings: Any,  # noqa: ANN401
) -> GateResult:
    given = replace(Settings(), **{"timeout": 600.0, **settings})
    return await gate.wait(hosts, given, cluster.access, resolver=Resolver())


async def test_a_pod_that_can_be_entered_is_ready(cluster: Cluster) -> None:
    """No name is asked for: the API server knows the address."""
    cluster.runs("w-0", "192.0.2.7", "2001:db8::7")
    (worker,) = (await passing(cluster)).workers
    assert (worker.host.name, worker.address, worker.port) == ("w-0.w.jobs.svc", "192.0.2.7", 0)
    assert worker.local_address == pod.source_address("192.0.2.7")
    assert worker.no_facts is NoFacts.BY_KUBECTL
    assert not worker.runs_mpiboot
    assert [words.split()[:2] for words in cluster.asked()] == [
        ["--namespace=jobs", "get"],
        ["--namespace=jobs", "exec"],
    ]


async def test_the_address_is_of_the_launchers_own_kind(cluster: Cluster) -> None:
    cluster.runs("w-0", "192.0.2.7", "2001:db8::7")
    cluster.access = replace(cluster.access, ipv6=True)
    (worker,) = (await passing(cluster)).workers
    assert worker.address == "2001:db8::7"


async def test_a_pod_is_waited_for_until_it_runs(cluster: Cluster) -> None:
    waiting = asyncio.ensure_future(passing(cluster))
    await cluster.asked_more_often_than(0)
    cluster.refuses("Error from server (BadRequest): pod w-0 does not have a host assigned")
    cluster.runs()
    await cluster.asked_more_often_than(len(cluster.asked()) + 2)
    assert not waiting.done()
    cluster.kubectl.write_text(FAKE)
    assert len((await waiting).workers) == 1


@pytest.mark.parametrize(
    ("says", "check"),
    [
        (GONE, "workers-unreachable"),
        (
            'error: unable to upgrade connection: container not found ("main")',
            "workers-unreachable",
        ),
        (UNREACHABLE, "workers-unreachable"),
        (FORBIDDEN, "kubectl-denied"),
        ("error: You must be logged in to the server (Unauthorized)", "kubectl-denied"),
    ],
)
async def test_kubectls_own_words_are_the_reason(cluster: Cluster, says: str, check: str) -> None:
    cluster.says(f"something to begin with\n{says}")
    found = await gate.probe_once(HOSTS, Settings(), cluster.access, resolver=Resolver())
    (finding,) = found.findings
    assert (finding.check, finding.host) == (check, "w-0.w.jobs.svc")
    assert finding.message.endswith(says)
    assert "kubectl" in (finding.hint or "")


async def test_a_missing_right_is_waited_for_and_reported_at_the_deadline(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Role may be applied later."""
    cluster.says(FORBIDDEN)
    deadline = Deadline(monkeypatch)
    waiting = asyncio.ensure_future(passing(cluster))
    await deadline.comes("(Forbidden)")
    with pytest.raises(MpibootError) as told:
        await waiting
    assert (told.value.finding.check, told.value.code) == ("kubectl-denied", 77)
    cluster.runs()
    assert len((await passing(cluster)).workers) == 1


async def test_the_deadline_is_the_gates(cluster: Cluster) -> None:
    with pytest.raises(MpibootError) as told:
        await passing(cluster, timeout=0.5)
    assert told.value.code == 69
    assert "waiting for kubectl exec on w-0" in str(told.value)


async def test_a_command_that_fails_in_the_pod_is_no_ready_host(cluster: Cluster) -> None:
    cluster.runs()
    cluster.refuses('error: exec: "/bin/sh": stat /bin/sh: no such file or directory')
    found = await gate.probe_once(HOSTS, Settings(), cluster.access, resolver=Resolver())
    assert "no such file or directory" in found.findings[0].message
    assert "/bin/sh" in (found.findings[0].hint or "")


async def test_this_pod_itself_is_not_entered(cluster: Cluster) -> None:
    cluster.runs("w-0", "127.0.0.1")
    own = Host("launcher", slots=1)
    passed = await passing(cluster, (*HOSTS, own))
    assert passed.workers == ()
    assert passed.local == (*HOSTS, own)
    assert not any("exec" in words.split()[:2] for words in cluster.asked())


async def test_a_host_that_is_an_address_is_no_pods_name(cluster: Cluster) -> None:
    with pytest.raises(MpibootError, match="this host is an address") as told:
        await passing(cluster, (Host("192.0.2.7", slots=1),))
    assert told.value.code == 65


def test_the_line_says_what_is_waited_for() -> None:
    state = HostState(HOSTS[0], "w-0", Stage.KUBECTL, "pod not found")
    line = progress.line([state])
    assert line == "0/1 hosts ready, waiting for kubectl exec on w-0 (pod not found)"


async def test_commands_after_the_gate_go_the_same_way(cluster: Cluster) -> None:
    for status in (0, 1):
        end = await cluster.access.pool.run(HOSTS[0].name, f"echo it; exit {status}", 60.0)
        assert end == CommandEnd("it\n", status, "")
    assert cluster.asked()[0].endswith("exec -i w-0 -- /bin/sh -s")
