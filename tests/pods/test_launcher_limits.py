"""A launcher in real control groups and with few open files: limits too small are named."""

from __future__ import annotations

import errno
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import asyncssh
import pytest

from mpiboot.job.pods import launcher_need
from mpiboot.system.programs import recognise
from tests.fakes.many_workers import ManyWorkers, facts_of_a_worker, running
from tests.waiting import until

pytestmark = pytest.mark.pods

GROUPS = Path("/sys/fs/cgroup")
HOSTS = 500
MIB = 1 << 20
# By version of the control groups: each controller's folder, and the file with its limit.
LIMITS = (
    {"memory": "memory.limit_in_bytes", "pids": "pids.max"}
    if (GROUPS / "memory").is_dir()
    else {"": "memory.max", ".": "pids.max"}
)
INTO = (
    'groups=$1 files=$2; shift 2; for group in $groups; do echo $$ > "$group/cgroup.procs"; done; '
)
INTO += '[ -z "$files" ] || { ulimit -Sn 64; ulimit -Hn "$files"; }; exec "$@"'


@contextmanager
def groups(memory: int, processes: int | None = None) -> Iterator[list[Path]]:
    """Make control groups that are too small for the hosts."""
    name = f"mpiboot-test-{uuid.uuid4().hex[:8]}"
    made = []
    try:
        for (controller, file), limit in zip(LIMITS.items(), (memory, processes), strict=True):
            folder = GROUPS / controller / name
            folder.mkdir(exist_ok=True)
            made.append(folder)
            if limit is not None:
                (folder / file).write_text(str(limit))
            for swap in ("memory.swap.max", "memory.swappiness"):  # a pod has none
                if (folder / swap).exists():
                    (folder / swap).write_text("0")
        yield made
    finally:
        for folder in dict.fromkeys(made):
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


def launcher(
    environ: dict[str, str], made: Sequence[Path], files: str = ""
) -> subprocess.Popen[str]:
    """Start one in these control groups, with so many open files."""
    return subprocess.Popen(
        [
            *("sh", "-c", INTO, "sh", " ".join(map(str, made)), files),
            *(sys.executable, "-m", "mpiboot", "launcher", "--", "mpirun", "true"),
        ],
        env=environ,
        stderr=subprocess.PIPE,
        text=True,
    )


def nobody_there(folder: Path) -> dict[str, str]:
    """Give what a launcher needs whose hosts' addresses nobody listens at."""
    key = folder / "key"
    asyncssh.generate_private_key("ssh-ed25519").write_private_key(key)
    names = [f"127.9.{number // 250}.{number % 250 + 1}" for number in range(HOSTS)]
    return {
        **environ_of(folder, key, names),
        "MPIBOOT_SSH_CLIENT": "openssh",
        "MPIBOOT_SSH_PORT": "1",
    }


def out_of_memory(environ: dict[str, str], limit: int) -> list[str]:
    """Run a launcher whose control group has too little memory for its hosts; what it says."""
    with groups(limit) as made:
        done = launcher(environ, made)
        _, message = done.communicate(timeout=240)
    lines = message.splitlines()
    before = next(n for n, line in enumerate(lines) if "[launcher-limits]" in line)
    assert f"and the launcher's limit is {limit // MIB} MiB" in lines[before]
    assert re.search(
        r"-> set resources\.limits\.memory: \d+Mi in the launcher's", lines[before + 1]
    )
    after = [
        n for n, line in enumerate(lines) if "error: [launcher-memory] the process that" in line
    ]
    assert len(after) == 1, message
    assert f"memory limit, {limit // MIB} MiB, was reached (oom_kill " in lines[after[0]]
    assert before < after[0]
    assert done.returncode == 69
    assert "job did not start: " in lines[-2]
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


def test_limits_that_are_too_small_are_told_before_any_host_is_waited_for(tmp_path: Path) -> None:
    lines: list[str] = []
    with groups(512 * MIB, 64) as made, launcher(nobody_there(tmp_path), made, "128") as process:
        for line in process.stderr or ():
            lines.append(line)
            if " hosts ready, waiting for SSH " in line:
                process.send_signal(signal.SIGTERM)
        process.wait(60)
    memory, processes, files = launcher_need("openssh", HOSTS)
    found = [line for line in lines if "[launcher-limits] 500 hosts need about " in line]
    assert len(found) == 3, "".join(lines)
    assert (
        f"{memory / 2**20:.4g} MiB of memory here, and the launcher's limit is 512 MiB" in found[0]
    )
    assert f" {processes} processes here, and this pod may have 64 (pids.max)" in found[1]
    assert f" {files} open files in one process, and this pod's hard limit is 128" in found[2]
    assert process.returncode == 143, "".join(lines)
    waiting = next(number for number, line in enumerate(lines) if "waiting for SSH" in line)
    assert max(lines.index(line) for line in found) < waiting
