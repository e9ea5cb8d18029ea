"""A launcher in real control groups and with few open files: what is too small is told at once."""

from __future__ import annotations

import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import asyncssh
import pytest

from mpiboot.job.launcher_size import need

pytestmark = pytest.mark.pods

GROUPS = Path("/sys/fs/cgroup")
HOSTS = 500
# By version of the control groups: each controller's folder, the file and the limit.
LIMITS = (
    ({"memory": ("memory.limit_in_bytes", 512 << 20), "pids": ("pids.max", 64)})
    if (GROUPS / "memory").is_dir()
    else {"": ("memory.max", 512 << 20), ".": ("pids.max", 64)}
)
INTO = 'files=$1; shift; for group in $files; do echo $$ > "$group/cgroup.procs"; done; '
INTO += 'ulimit -Sn 64; ulimit -Hn 128; exec "$@"'


@contextmanager
def groups() -> Iterator[list[Path]]:
    """Make control groups that are too small for the hosts."""
    name = f"mpiboot-test-{uuid.uuid4().hex[:8]}"
    made = []
    try:
        for controller, (file, limit) in LIMITS.items():
            folder = GROUPS / controller / name
            folder.mkdir(exist_ok=True)
            made.append(folder)
            (folder / file).write_text(str(limit))
        yield made
    finally:
        for folder in dict.fromkeys(made):
            folder.rmdir()


def test_limits_that_are_too_small_are_told_before_any_host_is_waited_for(tmp_path: Path) -> None:
    key, hostfile, mpirun = (tmp_path / name for name in ("key", "hostfile", "mpirun"))
    asyncssh.generate_private_key("ssh-ed25519").write_private_key(key)
    # Nobody listens there.
    names = [f"127.9.{number // 250}.{number % 250 + 1}" for number in range(HOSTS)]
    hostfile.write_text("".join(f"{name} slots=1\n" for name in names))
    mpirun.write_text("#!/bin/sh\necho 'mpirun (Open MPI) 4.1.4'\n")
    mpirun.chmod(0o755)
    environ = {
        "PATH": f"{tmp_path}:/usr/sbin:/usr/bin:/bin",
        "HOME": str(tmp_path),
        "TMPDIR": str(tmp_path),
        "MPIBOOT_SSH_KEY": str(key),
        "MPIBOOT_SSH_CLIENT": "openssh",
        "MPIBOOT_SSH_PORT": "1",
        "MPIBOOT_HOSTFILE": str(hostfile),
        "MPIBOOT_RUNTIME_DIR": str(tmp_path / "run"),
        "MPIBOOT_TERMINATION_LOG": str(tmp_path / "termination-log"),
    }
    told: list[str] = []
    with groups() as made:
        launcher = subprocess.Popen(
            [
                *("sh", "-c", INTO, "sh", " ".join(map(str, made))),
                *(sys.executable, "-m", "mpiboot", "launcher", "--", "true"),
            ],
            env=environ,
            stderr=subprocess.PIPE,
            text=True,
        )
        with launcher:
            for line in launcher.stderr or ():
                told.append(line)
                if " hosts ready, waiting for SSH " in line:
                    launcher.send_signal(signal.SIGTERM)
            launcher.wait(60)
    memory, processes, files = need("openssh", HOSTS)
    found = [line for line in told if "[launcher-limits] 500 hosts need about " in line]
    assert len(found) == 3, "".join(told)
    assert (
        f"{memory / 2**20:.4g} MiB of memory here, and the launcher's limit is 512 MiB" in found[0]
    )
    assert f" {processes} processes here, and this pod may have 64 (pids.max)" in found[1]
    assert f" {files} open files in one process, and this pod's hard limit is 128" in found[2]
    assert launcher.returncode == 143, "".join(told)
    waiting = next(number for number, line in enumerate(told) if "waiting for SSH" in line)
    assert max(told.index(line) for line in found) < waiting
