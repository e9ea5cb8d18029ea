"""Processes, listening sockets and control groups, as psutil and stand-ins of /sys show them."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import psutil
import pytest

from mpiboot.system import processes


def test_a_process_is_found_whatever_its_name_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And whatever the clock says: it may be set between two looks."""
    monkeypatch.delattr(psutil._pslinux, "boot_time")
    odd = tmp_path / "a) R 1 1"
    odd.symlink_to("/bin/cat")
    environ = {"MPIBOOT_SESSION": "a=b", "BARE": ""}
    child = subprocess.Popen([str(odd)], stdin=subprocess.PIPE, env=environ, start_new_session=True)
    try:
        found = processes.find(child.pid)
        assert found is not None
        assert (found.pid, found.parent, found.session) == (child.pid, os.getpid(), child.pid)
        assert processes.table()[child.pid] == found
        assert processes.environ(child.pid) == environ
        assert environ in list(processes.environments())
    finally:
        monkeypatch.undo()
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        zombie = (processes.find(child.pid), processes.environ(child.pid))
        child.communicate()
    assert zombie == (None, {})
    assert {1, os.getpid(), os.getppid()} <= processes.ancestors()
    assert (processes.find(child.pid), processes.environ(child.pid)) == (None, {})


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "::1", "::"])
def test_a_listening_socket_has_its_address_and_process(address: str) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, 0), family=family) as server:
        port = server.getsockname()[1]
        # Another process that has the socket, too, and a connection to it are not counted.
        with (
            subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=[server.fileno()]) as child,
            socket.create_connection(server.getsockname()[:2]),
        ):
            # Other tests may listen at this port of another address.
            at = (address, port)
            found = [item.pid for item in processes.sockets("LISTEN") if item.laddr == at]
    assert at not in [item.laddr for item in processes.sockets("LISTEN")]
    assert found in ([os.getpid()], [child.pid])


def test_tables_that_can_not_be_read_show_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path))
    assert (processes.sockets("LISTEN"), processes.link_counters()) == ([], {})
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "tcp").write_text("sl\nof another form\n")
    assert processes.sockets("LISTEN") == []


# -- control groups --------------------------------------------------------------------------------


POD, OWN = "kubepods/pod1", "kubepods/pod1/c1"


def tree(folder: Path, group: str, files: dict[str, str | bytes]) -> tuple[Path, Path]:
    """A file system of groups, and a /proc whose process is in ``group``."""
    for name, text in {"groups/x": "", "proc/self/cgroup": f"{group}\n", **files}.items():
        path = folder / (name if name.startswith("proc/") else f"groups/{name}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder / "groups", folder / "proc"


V1_CPU = f"4:cpu,cpuacct:/{OWN}"
V1_QUOTA, V1_PERIOD = f"cpu/{OWN}/cpu.cfs_quota_us", {f"cpu/{OWN}/cpu.cfs_period_us": "100000"}


@pytest.mark.parametrize(
    ("line", "files", "quota", "kills"),
    [
        ("", {"cpu.max": "max 100000\n"}, 0.0, None),
        ("", {f"{POD}/cpu.max": "400000 100000\n", f"{OWN}/cpu.max": "150000 100000\n"}, 1.5, None),
        ("", {f"{POD}/cpu.max": "400000 100000\n", f"{OWN}/cpu.max": "max 100000\n"}, 4.0, None),
        ("", {"cpu.max": "nonsense\n"}, 0.0, None),
        (V1_CPU, {V1_QUOTA: "200000", **V1_PERIOD}, 2.0, None),
        (V1_CPU, {V1_QUOTA: "-1", **V1_PERIOD}, 0.0, None),
        # The kills are those of the nearest group that counts them.
        ("", {f"{OWN}/memory.events": "a 3\noom_kill 2\n", "memory.events": "oom_kill 9"}, 0.0, 2),
        ("", {f"{OWN}/memory.events": "oom 3\n", "memory.oom_control": "oom_kill 4\n"}, 0.0, 4),
        ("", {"memory.events": "oom_kill many\n"}, 0.0, None),
        ("", {"cpu.max": b"\xff", "memory.events": b"\xff\xfe"}, 0.0, None),
        # The group mounted alone, with the path of the node; a path outside of the mount.
        ("", {"memory.events": "oom_kill 3"}, 0.0, 3),
        ("0::/../c1", {"../c1/cpu.max": "1 1\n"}, 0.0, None),
    ],
)
def test_the_cpus_and_the_memory_kills_of_a_process(
    tmp_path: Path, line: str, files: dict[str, str | bytes], quota: float, kills: int | None
) -> None:
    where = tree(tmp_path, line or f"0::/{OWN}", files)
    assert (processes.cpu_quota(*where), processes.memory_kills(*where)) == (quota, kills)
