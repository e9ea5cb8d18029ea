"""Processes, listening sockets and control groups, as psutil and stand-ins of /sys show them."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import psutil
import pytest

from mpiboot.system import processes
from mpiboot.system.processes import Usage


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
    assert processes.sockets("LISTEN") == []
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


NOW, MAX, STAT = "memory.current", "memory.max", "memory.stat"
V1_NOW, V1_MAX = "memory.usage_in_bytes", "memory.limit_in_bytes"
IN_USE = {NOW: "100\n", MAX: "200\n"}
V1 = {f"memory/{V1_NOW}": "5\n"}
V2_OWN = {f"{POD}/{NOW}": "90", f"{OWN}/{NOW}": "50", NOW: "800"}
V1_LARGE = {f"memory/{V1_MAX}": f"{(1 << 60) - 1}", **V1}
# The line of /proc/self/cgroup, the groups' files, and what is read: limit, use.
MEMORY: dict[str, tuple[str, dict[str, str | bytes], tuple[int | None, int] | None]] = {
    "the lowest limit, and its use": (
        f"0::/{OWN}",
        {**V2_OWN, MAX: "900", f"{POD}/{MAX}": "500", f"{OWN}/{MAX}": "700"},
        (500, 90),
    ),
    "without a limit the nearest group": (
        f"0::/{OWN}",
        {f"{POD}/{MAX}": "max", f"{POD}/{NOW}": "90", NOW: "800", f"{OWN}/{MAX}": "max"},
        (None, 90),
    ),
    "the node's path, the container's group mounted alone": (f"0::/{OWN}", {**IN_USE}, (200, 100)),
    "a path above a namespace": ("0::/../../c1", {**IN_USE}, (200, 100)),
    "version 1 among others": (
        "12:cpu:/a\n7:devices,memory:/a/b\n0::/",
        {f"memory/a/b/{V1_MAX}": "30\n", f"memory/a/b/{V1_NOW}": "7\n"},
        (30, 7),
    ),
    "version 1 without its path": (
        "12:cpu:/a\nnonsense\n7:memory:/a/b",
        {f"memory/{V1_MAX}": "30\n", **V1},
        (30, 5),
    ),
    "another controller's group": ("3:memoryx,cpu:/a", {f"memory/a/{V1_MAX}": "5\n"}, None),
    "the cache that goes first": ("0::/", {**IN_USE, STAT: "inactive_file 10\n"}, (200, 90)),
    # Version 1 has one row for the group itself and one with what is below it.
    "the cache of version 1": (
        "0::/",
        {**IN_USE, STAT: "inactive_file 10\ntotal_inactive_file 30\n"},
        (200, 70),
    ),
    "more cache than use": ("0::/", {**IN_USE, STAT: "inactive_file 1000\n"}, (200, 0)),
    "odd rows": ("0::/", {**IN_USE, STAT: "anon 5\nodd\nrow of many words\n"}, (200, 100)),
    "the largest limit": ("4:memory:/", {**V1_LARGE}, ((1 << 60) - 1, 5)),
    "a limit that no machine has": (
        "4:memory:/",
        {f"memory/{V1_MAX}": "9223372036854771712\n", **V1},
        (None, 5),
    ),
    "a limit whose use can't be read": ("0::/", {MAX: "5\n"}, (5, 0)),
    "outside of what is mounted": ("0::/../c1", {"../c1/memory.max": "1\n"}, None),
    "no text": ("0::/", dict.fromkeys((MAX, STAT, "memory.events"), b"\xff\xfe"), None),
}


@pytest.mark.parametrize(("line", "files", "found"), MEMORY.values(), ids=MEMORY)
def test_the_memory_of_a_process(
    tmp_path: Path,
    line: str,
    files: dict[str, str | bytes],
    found: tuple[int | None, int] | None,
) -> None:
    usage = Usage(*found, seen=True) if found else Usage(None, 0, seen=False)
    where = tree(tmp_path, line, files)
    assert processes.memory_usage(*where) == usage
    assert processes.memory_kills(*where) == 0
    assert processes.memory_usage(tmp_path, tmp_path) == Usage(None, 0, seen=False)


V1_CPU = f"4:cpu,cpuacct:/{OWN}"
V1_QUOTA, V1_PERIOD = f"cpu/{OWN}/cpu.cfs_quota_us", {f"cpu/{OWN}/cpu.cfs_period_us": "100000"}


@pytest.mark.parametrize(
    ("line", "files", "quota", "kills"),
    [
        ("", {"cpu.max": "max 100000\n"}, 0.0, 0),
        ("", {f"{POD}/cpu.max": "400000 100000\n", f"{OWN}/cpu.max": "150000 100000\n"}, 1.5, 0),
        ("", {f"{POD}/cpu.max": "400000 100000\n", f"{OWN}/cpu.max": "max 100000\n"}, 4.0, 0),
        ("", {"cpu.max": "nonsense\n"}, 0.0, 0),
        (V1_CPU, {V1_QUOTA: "200000", **V1_PERIOD}, 2.0, 0),
        (V1_CPU, {V1_QUOTA: "-1", **V1_PERIOD}, 0.0, 0),
        # The kills are those of the nearest group that counts them.
        ("", {f"{OWN}/memory.events": "a 3\noom_kill 2\n", "memory.events": "oom_kill 9"}, 0.0, 2),
        ("", {f"{OWN}/memory.events": "oom 3\n", "memory.oom_control": "oom_kill 4\n"}, 0.0, 4),
        ("", {"memory.events": "oom_kill many\n"}, 0.0, 0),
    ],
)
def test_the_cpus_and_the_memory_kills_of_a_process(
    tmp_path: Path, line: str, files: dict[str, str | bytes], quota: float, kills: int
) -> None:
    where = tree(tmp_path, line or f"0::/{OWN}", files)
    assert (processes.cpu_quota(*where), processes.memory_kills(*where)) == (quota, kills)
