"""What doctor looks at: made trees of /proc and /sys, and real files, programs and sockets."""

from __future__ import annotations

import os
import re
import resource
import shutil
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from mpiboot.core.checks import error
from mpiboot.core.model import Level
from mpiboot.core.settings import Settings
from mpiboot.doctor import observe
from mpiboot.launcher import shims
from tests.waiting import until


def write(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def program(folder: Path, name: str, text: str = "#!/bin/sh\n") -> str:
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)
    return str(folder / name)


def paths(environ: dict[str, str]) -> dict[str, str]:
    seen = observe.image(environ)
    found = (*seen.programs, *([seen.daemon] if seen.daemon else []))
    return {item.name: item.path for item in found}


def test_mpirun_daemon_and_ssh_are_found_where_they_are(tmp_path: Path) -> None:
    environ = {"PATH": f"{tmp_path}"}
    assert observe.image(environ).mpi is None
    assert observe.image(environ).search == str(tmp_path)
    assert paths(environ).items() >= {"mpirun": "", "ssh": ""}.items()
    program(tmp_path, "mpirun", "#!/bin/sh\necho 'prterun (Open MPI) 5.0.7'\n")
    assert paths(environ)["prted"] == ""
    environ["PATH"] += ":/usr/bin:/bin"
    ssh = program(tmp_path, "ssh")
    mpirun = program(tmp_path, "mpirun", "#!/bin/sh\necho 'mpirun (Open MPI) 4.1.6'\n")
    orted = program(tmp_path, "orted")
    assert paths(environ).items() >= {"mpirun": mpirun, "ssh": ssh, "orted": orted}.items()
    seen = observe.image(environ).mpi
    assert seen is not None
    assert (seen.path, seen.version) == (mpirun, "4.1.6")


def test_the_folder_is_made_and_goes_with_those_of_runs_that_were_killed(tmp_path: Path) -> None:
    settings = Settings(runtime_dir=str(tmp_path / "run"))
    (seen,) = observe.folder(settings, {})
    (made,) = tmp_path.rglob(observe.role())
    assert (seen.level, seen.message) == (Level.OK, f"the private folder is {made}")
    nobody = int(Path("/proc/sys/kernel/pid_max").read_text()) + 1
    others = ["doctor-1", "launcher"]  # the first process is always there
    for name in (f"doctor-{nobody}", *others):
        (made.parent / name).mkdir()
        (made.parent / name / "id").touch()
    observe.remove_folder(settings, {})
    assert sorted(path.name for path in made.parent.iterdir()) == sorted(others)


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="no ssh-keygen")
def test_a_key_is_seen_with_type_mode_and_owner(tmp_path: Path) -> None:
    path = tmp_path / "id_rsa"
    command = ["ssh-keygen", "-q", "-t", "ecdsa", "-N", "", "-f", str(path)]
    subprocess.run(command, check=True)
    path.chmod(0o644)
    settings = Settings(ssh_key=str(path))
    (seen,) = observe.key(settings, {})
    assert re.fullmatch(
        rf"the key is {path}, ecdsa-sha2-nistp256 SHA256:\S+, mode 0644 of uid {os.getuid()}",
        seen.message,
    )
    assert (seen.check, seen.level) == ("ssh-key", Level.OK)
    path.write_text("no key")
    (wrong,) = observe.key(settings, {})
    assert (wrong.check, wrong.level) == ("ssh-key", Level.FAIL)
    path.unlink()
    (wrong,) = observe.key(settings, {})
    assert wrong.message == f"no private SSH key in {path}"


def test_where_no_shim_can_lead_to_mpiboot_none_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def effects(_: object) -> tuple[str, str]:
        raise error("program-missing", "it was not installed")

    monkeypatch.setattr(shims, "effects", effects)
    monkeypatch.setattr(shims, "passed_by", lambda: "")
    assert observe.shims({}) == []
    monkeypatch.setattr(shims, "effects", lambda _: ("works", "has no effect"))
    monkeypatch.setattr(shims, "passed_by", lambda: "passed by")
    found = [(item.level, item.message) for item in observe.shims({})]
    warnings = [(Level.WARN, "has no effect"), (Level.WARN, "passed by")]
    assert found == [(Level.OK, "works"), *warnings]


def test_limits_are_those_of_the_server_and_of_the_first_process() -> None:
    words = ["sh", "-c", "ulimit -Sn 77; exec sleep 1000"]
    with subprocess.Popen(words) as server:
        until(lambda: observe.limits(server.pid).sessions["open files"] == 77)
        seen = observe.limits(server.pid)
        server.kill()
    assert seen.sessions["locked memory"] == resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    assert seen.first == observe.limits(0).first
    assert observe.limits(0).sessions == observe.limits(server.pid).sessions == {}  # it is gone


def test_a_sessions_values_are_those_of_the_kernels_table() -> None:
    rows = dict(re.findall("\nMax (.*?)  +([^ ]+)", Path("/proc/self/limits").read_text()))
    limits = {name: rows[name] for name in observe.LIMITS}
    assert observe.session() == {"uid": str(os.getuid()), **limits}


def test_who_listens_on_a_port_is_named() -> None:
    name = f"process {os.getpid()} ({Path('/proc/self/comm').read_text().strip()})"
    servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    low, high = sorted(server.getsockname()[1] for server in servers)
    assert observe.process_of(low) == os.getpid()
    assert observe.servers((low,)) == (f"port {low}: {name}",)
    assert observe.servers((low, high)) == (f"port {low} and {high}: {name}",)
    for server in servers:
        server.close()
    assert (observe.process_of(low), observe.servers((low,))) == (0, ())


def test_shared_memory_is_measured(tmp_path: Path) -> None:
    seen = observe.shm(tmp_path)
    assert seen.size >= seen.used > 0
