"""Pods that kubectl enters: a program of the test's own stands in for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpiboot.ssh.commands import CommandEnd
from mpiboot.ssh.kubectl import PodAccess, pod_of
from mpiboot.ssh.pool import Pool
from tests.waiting import until_in_loop

SECONDS = 60.0


def standing_in(folder: Path, script: str) -> Pool:
    program = folder / "kubectl"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return Pool(None, pods=PodAccess(str(program), "jobs"))


async def test_a_pods_addresses_are_what_kubectl_writes(tmp_path: Path) -> None:
    pool = standing_in(tmp_path, 'echo "$*" > "${0%/*}/asked"; printf "10.0.0.3 fd00::3"')
    assert await pool.addresses("w-0", SECONDS) == CommandEnd("10.0.0.3 fd00::3", 0)
    words = "--namespace=jobs get pod w-0 --output=jsonpath={.status.podIPs[*].ip}\n"
    assert (tmp_path / "asked").read_text() == words


def test_a_namespace_is_given_only_where_it_is_known() -> None:
    whole = PodAccess("/bin/kubectl", "jobs")
    words = ("exec", "-i", "w-0", "--", "/bin/sh", "-s")
    assert whole.run("w-0") == ("/bin/kubectl", "--namespace=jobs", *words)
    assert PodAccess("kubectl").run("w-0") == ("kubectl", *words)


@pytest.mark.parametrize(
    ("host", "pod"),
    [
        ("w-0", "w-0"),
        ("w-0.w.jobs.svc.cluster.local", "w-0"),
        ("10.0.0.3", ""),
        ("fd00::3", ""),
    ],
)
def test_a_pod_is_a_hosts_first_label(host: str, pod: str) -> None:
    assert pod_of(host) == pod


@pytest.mark.parametrize(
    ("script", "end"),
    [
        (r"printf 'one\377\n'; echo 'a warning' >&2", CommandEnd("one\ufffd\n", 0, "a warning\n")),
        (r"echo '{}'; printf 'no \377\n' >&2; exit 1", CommandEnd("{}\n", 1, "no \ufffd\n")),
    ],
)
async def test_what_a_command_writes_is_given_whatever_its_bytes_are(
    tmp_path: Path, script: str, end: CommandEnd
) -> None:
    assert await standing_in(tmp_path, script).run("w-0", "id", SECONDS) == end


async def test_a_kubectl_that_can_not_be_started_is_a_reason(tmp_path: Path) -> None:
    pool = standing_in(tmp_path, "")
    (tmp_path / "kubectl").unlink()
    end = await pool.addresses("w-0", SECONDS)
    assert end.status is None
    assert f"No such file or directory: '{tmp_path}/kubectl'" in end.error


async def test_a_kubectl_that_takes_too_long_is_killed(tmp_path: Path) -> None:
    pool = standing_in(tmp_path, 'echo $$ > "${0%/*}/pid"; exec sleep 600')
    seconds = 0.2
    while not (tmp_path / "pid").exists():  # a busy machine needs more
        assert await pool.run("w-0", "id", seconds) == CommandEnd(
            error=f"no end within {seconds:g} s", timed_out=True
        )
        seconds *= 2
    pid = (tmp_path / "pid").read_text().strip()
    await until_in_loop(lambda: not Path(f"/proc/{pid}/cmdline").exists())
