"""Hosts that are pods which kubectl enters: how that is chosen, the gate, and commands.

The ``kubectl`` is a FAKE without an API server: it answers with what a test has written, and runs
commands, as they are, on this machine.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from mpiboot.core.checks import MpibootError
from mpiboot.core.facts import Host, NoFacts
from mpiboot.core.model import Decision, Source
from mpiboot.core.settings import Settings, resolve
from mpiboot.hosts import gate, pipeline
from mpiboot.hosts.gate import GateResult
from mpiboot.hosts.pipeline import SshAccess, choose_access
from mpiboot.network import pod
from mpiboot.ssh.attempt import CommandEnd
from mpiboot.ssh.client import PodAccess
from mpiboot.ssh.pool import Pool
from tests.waiting import until_in_loop

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
WORDS = ("exec", "-i", "w-0", "--", "/bin/sh", "-s")


class Cluster:
    """What the fake kubectl answers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.kubectl = folder / "kubectl"
        self.kubectl.write_text(FAKE)
        self.kubectl.chmod(0o755)
        self.says(GONE)
        self.pool = Pool(None, pods=PodAccess(str(self.kubectl), "jobs"))
        self.access = SshAccess("", self.pool, "launcher")

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

    async def passing(
        self,
        hosts: tuple[Host, ...] = HOSTS,
        **settings: Any,  # noqa: ANN401
    ) -> GateResult:
        given = replace(Settings(), **{"timeout": 600.0, **settings})
        return await gate.wait(hosts, given, self.access)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setattr(pipeline, "_PAUSE_S", 0.05)
    return Cluster(tmp_path)


@pytest.fixture
def account(tmp_path: Path) -> Path:
    for name, text in {"token": "t", "namespace": "jobs\n"}.items():
        (tmp_path / name).write_text(text)
    return tmp_path


DETECTED = (
    *("kubectl", Source.DETECTED),
    "the job has no SSH key, but kubectl and a service account token",
)
GIVEN = ("kubectl", Source.ENVIRONMENT, "MPIBOOT_LAUNCH_AGENT")


@pytest.mark.parametrize(
    ("agent", "key", "kubectl", "token", "chosen"),
    [
        ("", True, True, True, None),  # with a key SSH works everywhere
        ("", False, True, True, DETECTED),
        ("", None, False, True, None),  # who can't use kubectl has nothing to choose
        ("", None, True, False, None),
        ("kubectl", True, True, True, GIVEN),
        ("ssh", False, True, True, None),
    ],
)
def test_kubectl_is_chosen_where_it_is_given_or_there_is_no_key(
    cluster: Cluster,
    account: Path,
    agent: str,
    key: bool | None,  # noqa: FBT001 - a row of the table; None: not to be waited for
    kubectl: bool,  # noqa: FBT001
    token: bool,  # noqa: FBT001
    chosen: tuple[str, Source, str] | None,
) -> None:
    environ = {"PATH": str(cluster.folder) if kubectl else "/nowhere"}
    environ |= {"MPIBOOT_LAUNCH_AGENT": agent} if agent else {}
    if not token:
        (account / "token").unlink()
    key_is_there = Mock(return_value=key)
    found = choose_access(resolve({}, environ), environ, key_is_there, account)
    pods = PodAccess(str(cluster.kubectl), "jobs")
    assert found == ((pods, Decision("launch-agent", *chosen)) if chosen else None)
    assert key is not None or not key_is_there.called


def test_kubectl_that_is_wanted_and_missing_is_an_error(account: Path) -> None:
    environ = {"PATH": "/nowhere", "MPIBOOT_LAUNCH_AGENT": "kubectl"}
    with pytest.raises(MpibootError, match="no kubectl on PATH") as wrong:
        choose_access(resolve({}, environ), environ, lambda: True, account)
    assert wrong.value.code == 127
    assert "MPIBOOT_LAUNCH_AGENT" in str(wrong.value)


@pytest.mark.parametrize("ipv6", [None, True])
async def test_a_pod_that_can_be_entered_is_ready(cluster: Cluster, *, ipv6: bool | None) -> None:
    """No name is resolved: the API server knows the address, of the launcher's kind first."""
    cluster.access = replace(cluster.access, ipv6=ipv6)
    cluster.runs("w-0", "192.0.2.7", "2001:db8::7")
    (worker,) = (await cluster.passing()).workers
    address = "2001:db8::7" if ipv6 else "192.0.2.7"
    assert (worker.host.name, worker.address, worker.port) == ("w-0.w.jobs.svc", address, 0)
    assert worker.local_address == pod.source_address(address)
    assert (worker.no_facts, worker.runs_mpiboot) == (NoFacts.BY_KUBECTL, False)
    get = "--namespace=jobs get pod w-0 --output=jsonpath={.status.podIPs[*].ip}"
    assert cluster.asked() == [get, f"--namespace=jobs {' '.join(WORDS)}"]


async def test_a_pod_is_waited_for_until_it_runs(cluster: Cluster) -> None:
    waiting = asyncio.ensure_future(cluster.passing())
    await until_in_loop(cluster.asked)
    cluster.refuses("Error from server (BadRequest): pod w-0 does not have a host assigned")
    cluster.runs()
    count = len(cluster.asked())
    await until_in_loop(lambda: len(cluster.asked()) > count + 2)
    assert not waiting.done()
    cluster.kubectl.write_text(FAKE)
    assert len((await waiting).workers) == 1


NO_SHELL = 'error: exec: "/bin/sh": stat /bin/sh: no such file or directory'


@pytest.mark.parametrize(
    ("words", "runs", "check"),
    [
        (GONE, False, "workers-unreachable"),
        ('error: container not found ("main")', False, "workers-unreachable"),
        (UNREACHABLE, False, "workers-unreachable"),
        (FORBIDDEN, False, "kubectl-denied"),
        ("error: You must be logged in to the server (Unauthorized)", False, "kubectl-denied"),
        (NO_SHELL, True, "workers-unreachable"),
    ],
)
async def test_kubectls_own_words_are_the_reason(
    cluster: Cluster, words: str, check: str, *, runs: bool
) -> None:
    cluster.refuses(f"something to begin with\n{words}")
    if runs:
        cluster.runs()
    found = await gate.probe_once(HOSTS, Settings(), cluster.access)
    (finding,) = found.findings
    assert (finding.check, finding.host) == (check, "w-0.w.jobs.svc")
    assert finding.message.endswith(words)
    assert "kubectl" in (finding.hint or "")
    assert not runs or "/bin/sh" in (finding.hint or "")


async def test_this_pod_itself_is_not_entered(cluster: Cluster) -> None:
    cluster.runs("w-0", "127.0.0.1")
    passed = await cluster.passing((*HOSTS, Host("launcher")))
    assert (passed.workers, len(passed.local)) == ((), 2)
    assert not any("exec" in words.split()[:2] for words in cluster.asked())


async def test_a_host_that_is_an_address_is_no_pods_name(cluster: Cluster) -> None:
    with pytest.raises(MpibootError, match="this host is an IP address") as wrong:
        await cluster.passing((Host("192.0.2.7", slots=1),))
    assert wrong.value.code == 65


async def test_a_kubectl_that_takes_too_long_is_killed(cluster: Cluster) -> None:
    file, seconds = cluster.folder / "pid", 0.2
    script = f"echo $$ > '{file}'; exec sleep 600"
    while not file.exists():  # a busy machine needs more
        end = await cluster.pool.run("w-0", script, seconds)
        assert end == CommandEnd(error=f"no end within {seconds:g} s", timed_out=True)
        seconds *= 2
    pid = file.read_text().strip()
    await until_in_loop(lambda: not Path(f"/proc/{pid}/cmdline").exists())
