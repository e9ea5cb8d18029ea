"""A launcher in a real control group: a memory limit that is too small is named."""

from __future__ import annotations

import errno
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import asyncssh
import pytest

from mpiboot.system.programs import recognise
from tests.fakes.many_workers import ManyWorkers, facts_of_a_worker, running
from tests.waiting import until

pytestmark = pytest.mark.pods

GROUPS = Path("/sys/fs/cgroup")
MIB = 1 << 20
# By version of the control groups: the controller's folder, and the file with its limit.
CONTROLLER, LIMIT = (
    ("memory", "memory.limit_in_bytes") if (GROUPS / "memory").is_dir() else ("", "memory.max")
)
INTO = 'echo $$ > "$1/cgroup.procs"; shift; exec "$@"'


@contextmanager
def group(memory: int) -> Iterator[Path]:
    """Make a control group that is too small for the hosts."""
    folder = GROUPS / CONTROLLER / f"mpiboot-test-{uuid.uuid4().hex[:8]}"
    folder.mkdir()
    try:
        (folder / LIMIT).write_text(str(memory))
        for swap in ("memory.swap.max", "memory.swappiness"):  # a pod has none
            if (folder / swap).exists():
                (folder / swap).write_text("0")
        yield folder
    finally:
        until(partial(_removed, folder))  # what was killed there may still be ending


def _removed(folder: Path) -> bool:
    try:
        folder.rmdir()
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        return False
    return True


def environ_of(folder: Path, key: Path, hosts: Sequence[str]) -> dict[str, str]:
    """Give a launcher's variables; its mpirun only tells what it is."""
    hostfile, mpirun = folder / "hostfile", folder / "mpirun"
    hostfile.write_text("".join(f"{name} slots=1\n" for name in hosts))
    mpirun.write_text("#!/bin/sh\necho 'mpirun (Open MPI) 4.1.4'\n")
    mpirun.chmod(0o755)
    return {
        "PATH": f"{folder}:/usr/sbin:/usr/bin:/bin",
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "MPIBOOT_SSH_KEY": str(key),
        "MPIBOOT_HOSTFILE": str(hostfile),
        "MPIBOOT_RUNTIME_DIR": str(folder / "run"),
        "MPIBOOT_TERMINATION_LOG": str(folder / "termination-log"),
    }


def out_of_memory(environ: dict[str, str], limit: int) -> list[str]:
    """Run a launcher whose control group has too little memory for its hosts; what it says."""
    with group(limit) as folder:
        done = subprocess.run(
            [
                *("sh", "-c", INTO, "sh", str(folder)),
                *(sys.executable, "-m", "mpiboot", "launcher", "--", "mpirun", "true"),
            ],
            env=environ,
            stderr=subprocess.PIPE,
            text=True,
            timeout=240,
            check=False,
        )
    lines = done.stderr.splitlines()
    (at,) = (
        n for n, line in enumerate(lines) if "error: [launcher-memory] the process that" in line
    )
    assert f"memory limit, {limit // MIB} MiB, was reached (oom_kill " in lines[at]
    assert lines[at + 1].startswith("mpiboot:   -> raise resources.limits.memory of the launcher's")
    assert done.returncode == 69
    assert "job did not start: " in lines[-1]
    return lines


@pytest.mark.full
def test_a_launcher_of_64_mib_with_a_thousand_hosts(tmp_path: Path) -> None:
    """The line before the end has how many were ready by then."""
    key = tmp_path / "key"
    made = asyncssh.generate_private_key("ecdsa-sha2-nistp521")
    made.write_private_key(key)
    key.chmod(0o600)
    made.write_public_key(key.with_suffix(".pub"))
    facts = facts_of_a_worker(recognise("/usr/bin/mpirun", "mpirun (Open MPI) 4.1.4\n"))
    workers = ManyWorkers(tmp_path, key, 1000, 2022, facts)
    environ = {**environ_of(tmp_path, key, workers.addresses), "MPIBOOT_SSH_PORT": "2022"}
    with running(workers):
        workers.listen(workers.addresses)
        (tmp_path / "termination-log").touch()
        lines = out_of_memory(environ, 64 * MIB)
    assert (tmp_path / "termination-log").read_text().startswith("launcher-memory: the process ")
    assert [
        line for line in lines if re.match(r"mpiboot: \d+/1000 hosts ready, waiting for ", line)
    ]
