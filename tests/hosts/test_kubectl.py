"""One run of kubectl: a program of the test's own stands in for it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from mpiboot.hosts.access import Kubectl, PodAccess, PodError, Trouble
from mpiboot.system import programs

POD = {
    "metadata": {},
    "spec": {"containers": [{"name": "main"}]},
    "status": {
        "phase": "Running",
        "podIPs": [{"ip": "10.0.0.3"}],
        "containerStatuses": [{"name": "main", "state": {"running": {}}}],
    },
}


def standing_in(folder: Path, script: str, *, limit: float = 30.0) -> Kubectl:
    program = folder / "kubectl"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return Kubectl(PodAccess(str(program), "jobs"), limit=limit)


async def test_a_pods_state_is_what_kubectl_writes(tmp_path: Path) -> None:
    (tmp_path / "pod").write_text(json.dumps(POD))
    kubectl = standing_in(tmp_path, 'echo "$*" > "${0%/*}/asked"; cat "${0%/*}/pod"')
    assert await kubectl.look("w-0") == ("10.0.0.3",)
    words = "--namespace=jobs get pod w-0 --output=json\n"
    assert (tmp_path / "asked").read_text() == words


async def test_what_a_command_writes_is_given_whatever_its_bytes_are(tmp_path: Path) -> None:
    kubectl = standing_in(tmp_path, r"printf 'one\377\n'; echo 'a warning' >&2")
    assert await kubectl.run("w-0", "id") == "one\N{REPLACEMENT CHARACTER}\n"


@pytest.mark.parametrize("asked", ["look", "run"])
async def test_what_kubectl_complains_of_tells_what_failed(tmp_path: Path, asked: str) -> None:
    kubectl = standing_in(
        tmp_path,
        r"""echo '{}'; printf 'Error from server (NotFound): pods "w\377"\n' >&2; exit 1""",
    )
    with pytest.raises(PodError) as caught:
        await (kubectl.look("w-0") if asked == "look" else kubectl.run("w-0", ""))
    found = caught.value
    assert found.trouble is Trouble.NO_POD
    assert found.message == 'Error from server (NotFound): pods "w\N{REPLACEMENT CHARACTER}"'


async def test_a_kubectl_that_can_not_be_started_is_told(tmp_path: Path) -> None:
    kubectl = standing_in(tmp_path, "")
    (tmp_path / "kubectl").unlink()
    with pytest.raises(PodError) as caught:
        await kubectl.look("w-0")
    assert caught.value.trouble is Trouble.FAILED
    assert caught.value.message == f"{tmp_path}/kubectl: No such file or directory"
    assert "/bin/sh" in caught.value.trouble.hint


@pytest.mark.parametrize("heir", ["", '(read -r _ < "${0%/*}/stop") & '])
async def test_a_kubectl_that_takes_too_long_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, heir: str
) -> None:
    """Also where a process that it started keeps its pipes open."""
    made: list[asyncio.subprocess.Process] = []
    real = asyncio.create_subprocess_exec

    async def make(*words: str, **named: Any) -> asyncio.subprocess.Process:  # noqa: ANN401
        made.append(await real(*words, **named))
        return made[-1]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", make)
    monkeypatch.setattr(programs, "_LEFT", 0.01)
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
        await made[-1].communicate()
        assert made[-1].returncode == -signal.SIGKILL
        assert caught.value.trouble is Trouble.FAILED
        assert (
            caught.value.message == f"no end of `kubectl mpirun --version; ho` within {limit:g} s"
        )
    os.close(ending)
    assert begun.exists()
