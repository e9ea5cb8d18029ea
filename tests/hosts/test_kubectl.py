"""One run of kubectl: a program of the test's own stands in for it."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from mpiboot.hosts.access import Kubectl, PodAccess, PodError, pod_of
from mpiboot.system import children, programs
from mpiboot.system.children import Child


def standing_in(folder: Path, script: str, *, limit: float = 30.0) -> Kubectl:
    program = folder / "kubectl"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return Kubectl(PodAccess(str(program), "jobs"), limit=limit)


async def test_a_pods_addresses_are_what_kubectl_writes(tmp_path: Path) -> None:
    kubectl = standing_in(tmp_path, 'echo "$*" > "${0%/*}/asked"; printf "10.0.0.3 fd00::3"')
    assert await kubectl.addresses("w-0") == ("10.0.0.3", "fd00::3")
    words = "--namespace=jobs get pod w-0 --output=jsonpath={.status.podIPs[*].ip}\n"
    assert (tmp_path / "asked").read_text() == words
    assert await standing_in(tmp_path, "").addresses("w-0") == ()


def test_a_namespace_is_given_only_where_it_is_known() -> None:
    whole = PodAccess("/bin/kubectl", "jobs")
    assert whole.run("w-0", "id; x") == (
        *("/bin/kubectl", "--namespace=jobs", "exec", "w-0", "--"),
        *("/bin/sh", "-c", "id; x"),
    )
    assert PodAccess("kubectl").run("w-0", "id")[:4] == ("kubectl", "exec", "w-0", "--")


@pytest.mark.parametrize(
    ("host", "pod"),
    [
        ("w-0", "w-0"),
        ("w-0.w.jobs.svc", "w-0"),
        ("w-0.w.jobs.svc.cluster.local", "w-0"),
        ("10.0.0.3", ""),
        ("fd00::3", ""),
    ],
)
def test_a_pod_is_a_hosts_first_label(host: str, pod: str) -> None:
    assert pod_of(host) == pod


async def test_what_a_command_writes_is_given_whatever_its_bytes_are(tmp_path: Path) -> None:
    kubectl = standing_in(tmp_path, r"printf 'one\377\n'; echo 'a warning' >&2")
    assert await kubectl.run("w-0", "id") == "one\N{REPLACEMENT CHARACTER}\n"


@pytest.mark.parametrize("asked", ["addresses", "run"])
async def test_what_kubectl_complains_of_tells_what_failed(tmp_path: Path, asked: str) -> None:
    kubectl = standing_in(
        tmp_path,
        r"""echo '{}'; printf 'Error from server (NotFound): pods "w\377"\n' >&2; exit 1""",
    )
    with pytest.raises(PodError) as caught:
        await (kubectl.addresses("w-0") if asked == "addresses" else kubectl.run("w-0", ""))
    assert not caught.value.denied
    assert str(caught.value) == 'Error from server (NotFound): pods "w\N{REPLACEMENT CHARACTER}"'


async def test_a_kubectl_that_can_not_be_started_is_told(tmp_path: Path) -> None:
    kubectl = standing_in(tmp_path, "")
    (tmp_path / "kubectl").unlink()
    with pytest.raises(PodError) as caught:
        await kubectl.addresses("w-0")
    assert str(caught.value) == f"{tmp_path}/kubectl: No such file or directory"


@pytest.mark.parametrize("heir", ["", '(read -r _ < "${0%/*}/stop") & '])
async def test_a_kubectl_that_takes_too_long_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, heir: str
) -> None:
    """Also where a process that it started keeps its pipes open."""
    made: list[Child] = []
    start = children.start

    def note(*given: Any, **named: Any) -> Child:  # noqa: ANN401 - as it has them
        made.append(start(*given, **named))
        return made[-1]

    monkeypatch.setattr(children, "start", note)
    monkeypatch.setattr(programs, "_KILL_S", 0.01)
    begun, stop = tmp_path / "begun", tmp_path / "stop"
    os.mkfifo(stop)
    ending = os.open(stop, os.O_RDWR)
    script = f'{heir}echo > "${{0%/*}}/begun"; exec sleep 600'
    for limit in (0.2, 2.0, 20.0):
        if begun.exists():  # a busy machine may not have come to it within the limit
            break
        kubectl = standing_in(tmp_path, script, limit=limit)
        with pytest.raises(PodError) as caught:
            await kubectl.run("w-0", "mpirun --version; hostname")
        os.write(ending, b"\n")
        assert os.waitstatus_to_exitcode(await made[-1].ended()) == -signal.SIGKILL
        assert str(caught.value) == f"no end of {tmp_path}/kubectl within {limit:g} s"
    os.close(ending)
    assert begun.exists()
