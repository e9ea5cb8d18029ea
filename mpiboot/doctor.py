"""``mpiboot doctor``: the gates' checks, once, for this pod and, on a launcher, for every host.

It waits for nothing, starts nothing and writes nothing but its private folder; the findings are
the same rows and sentences that a launcher or worker would end with.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from mpiboot import executables, log, render, shims
from mpiboot.checks import BY_REFERENCE
from mpiboot.errors import MpibootError, ShownError, error
from mpiboot.job import plan as plans
from mpiboot.job import platforms
from mpiboot.launcher import launch_folder, look, observation
from mpiboot.launcher import setup as launcher_setup
from mpiboot.model import Finding, Level, Role
from mpiboot.network import service_mesh as meshes
from mpiboot.observe import hostfiles, pod, programs, service_mesh, worker_state
from mpiboot.setting_sources import Resolved
from mpiboot.system import files, keys
from mpiboot.wording import counted
from mpiboot.worker import self_test

# What the plan is asked with: its checks don't depend on the program.
_ANY_PROGRAM = ("true",)


def run(resolved: Resolved, environ: Mapping[str, str], *, as_json: bool) -> None:
    """Print every finding.

    Raises:
        ShownError: the first failure.
    """
    try:
        found = _look(resolved, environ)
    finally:
        wanted, tmpdir = resolved.settings.runtime_dir, environ.get("TMPDIR", "")
        folder = files.find_role(wanted, os.getuid(), "doctor", tmpdir)
        if folder:
            files.remove_role(folder)
    if as_json:
        sys.stdout.write(render.as_json(found))
    else:
        sys.stdout.write(render.findings(found, log.width(1)))
        bad = sum(item.level is Level.FAIL for item in found)
        odd = sum(item.level is Level.WARN for item in found)
        checks, warnings = counted(len(found), "check"), counted(odd, "warning")
        sys.stdout.write(f"\n{checks}: {bad} failed, {warnings}\n")
    for item in found:
        if item.level is Level.FAIL:
            raise ShownError(item)


def _look(resolved: Resolved, environ: Mapping[str, str]) -> list[Finding]:
    """Gather what is found in this pod and, on a launcher, on its hosts."""
    found = [*resolved.warnings, *_own(resolved, environ)]
    role = _role(resolved, environ)
    if role is Role.WORKER:
        server = _tried("workers-unreachable", lambda: _server(resolved, environ))
        found += [server] if server not in found else []  # without a key both say the same
    if role is not Role.LAUNCHER:  # a launcher's plan tells it of all pods
        settings = resolved.settings
        ports = [settings.ssh_port or 22]
        found += meshes.findings({"this pod": service_mesh.look()}, ports, settings.port_range)
    if role is Role.LAUNCHER:
        found += [item for item in _job(resolved, environ) if item not in found]
    return found


def _role(resolved: Resolved, environ: Mapping[str, str]) -> Role:
    """Where nothing says the role, a mounted hostfile is reason enough to look at its hosts."""
    mounted = _mounted(resolved, environ)
    try:
        role, _ = platforms.role(resolved, environ, (), mounted, os.uname().nodename)
    except MpibootError:
        return Role.LAUNCHER
    return role


def _mounted(resolved: Resolved, environ: Mapping[str, str]) -> str:
    given = str(resolved.given["hostfile"])
    named = hostfiles.candidates(resolved.settings.hostfile, given, environ)
    return next((item.path for item in named if os.path.exists(item.path)), "")  # noqa: PTH110


def _ok(check: str, said: str, host: str = "") -> Finding:
    return Finding(check, Level.OK, said, host)


def _tried(check: str, look: Callable[[], str]) -> Finding:
    """Run one look at the world: its sentence, or what it failed with."""
    try:
        return _ok(check, look())
    except MpibootError as wrong:
        return wrong.finding


def _own(resolved: Resolved, environ: Mapping[str, str]) -> list[Finding]:
    """Check this pod."""
    settings = resolved.settings
    who = pod.identity(environ)

    def folder() -> str:
        made = files.runtime_dir(
            settings.runtime_dir, who.uid, "doctor", tmpdir=environ.get("TMPDIR", "")
        )
        return f"the private folder is {made}"

    def key() -> str:
        mounted = keys.find(settings.ssh_key, (who.home, environ.get("HOME", "")), who.uid)
        if mounted is None:
            raise keys.missing(settings.ssh_key, (who.home, environ.get("HOME", "")), who.uid)
        found = keys.load(mounted)
        return f"the key is {mounted}, {found.fingerprint}"

    def mpi() -> str:
        found = programs.detect_mpi(environ)
        if found is None:
            raise observation.no_mpirun(environ)
        return f"mpirun is {found.path}, {found.said}"

    def ssh() -> str:
        path = executables.find("ssh", environ.get("PATH", ""))
        return f"ssh is {path}" if path else "no ssh on PATH; only a launcher needs one"

    return [
        _tried("runtime-folder", folder),
        _tried("ssh-key", key),
        _tried("program-missing", mpi),
        _tried("program-missing", ssh),
        *_shims(environ),
    ]


def _shims(environ: Mapping[str, str]) -> list[Finding]:
    """Tell what enters mpiboot by its name, and what has passed it by; nothing without shims."""
    try:
        good, bad = shims.effects(environ)
    except MpibootError:  # started from a folder of sources, where no shim can lead to it
        good, bad = "", ""
    odd = (
        Finding("shims", Level.WARN, said, hint=BY_REFERENCE["shims"].hint)
        for said in (bad, shims.passed_by())
        if said
    )
    return [*([_ok("shims", good)] if good else []), *odd]


def _server(resolved: Resolved, environ: Mapping[str, str]) -> str:
    """Log in to this worker's own server, as a launcher would."""
    launcher = launcher_setup.launcher_pod(resolved, environ, "doctor", patience=0.0)
    folder = Path(environ.get("MPIBOOT_WORKER_DIR") or launcher.folder.parent / "worker")
    state = worker_state.worker_state(folder)
    if state is None:
        raise error(
            "workers-unreachable",
            f"no SSH server of mpiboot's runs in this pod: nothing is in {folder}",
            hint="start the container with `args: [worker]`, and look at its log",
        )
    access = launcher_setup.access(launcher)
    asyncio.run(self_test.look(state.address, state.port, resolved.settings, access))
    return f"{state.sshd} lets {access.user} in at {state.address} port {state.port}"


def _job(resolved: Resolved, environ: Mapping[str, str]) -> list[Finding]:
    """Check the hostfile and every host of it."""
    try:
        seen, launcher = look.look(resolved, _ANY_PROGRAM, environ)
    except MpibootError as wrong:
        return [wrong.finding, *wrong.others]
    file = seen.observed.hostfile
    hosts = counted(len(file.hosts), "host")
    found = [
        _ok("hostfile-missing", f"the hostfile is {file.path}, named by {file.named_by}"),
        _ok("hostfile-invalid", f"{hosts}, {counted(file.slots, 'slot')}"),
        *seen.warnings,
    ]
    found += [_ok("names-unresolved", "this pod itself", host.name) for host in seen.observed.local]
    for worker in seen.observed.workers:
        server = worker.facts.sshd if worker.facts and worker.facts.sshd else "sshd"
        mpi = worker.facts.mpi if worker.facts else worker.mpi
        said = f"{worker.address} port {worker.port}, {server}, {mpi.said if mpi else 'no mpirun'}"
        found.append(_ok("workers-unreachable", said, worker.host.name))
    found += seen.passed.findings
    try:
        where = launch_folder.paths(launcher.folder)
        made = plans.make(seen.observed, resolved, where)
    except MpibootError as wrong:
        return [*found, wrong.finding, *wrong.others]
    odd = plans.pair_findings(made, seen.observed, seen.dialled)
    if seen.dialled and not odd:
        tried = counted(len(seen.dialled), "connection")
        found.append(_ok("worker-pairs", f"workers reach each other: {tried} tried"))
    return [*found, *odd, *made.findings]
