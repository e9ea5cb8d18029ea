"""Processes and listening sockets of this machine, as psutil shows them."""

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
    assert processes.sockets("LISTEN") == []
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "tcp").write_text("sl\nof another form\n")
    assert processes.sockets("LISTEN") == []
