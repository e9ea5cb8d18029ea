"""``mpiboot doctor``: the gates' checks, once, for this pod and, on a launcher, for every host.

It waits for nothing, starts nothing and writes nothing but its private folder; the findings are
the same rows and sentences that a launcher or worker would end with.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping

from mpiboot import launcher, render
from mpiboot.act import files, keys, launch, process
from mpiboot.checks import BY_REFERENCE
from mpiboot.errors import MpibootError
from mpiboot.job import plan as plans
from mpiboot.job import platforms
from mpiboot.model import Finding, Level, Role
from mpiboot.observe import hostfiles, pod, programs
from mpiboot.settings import Resolved

# What the plan is asked with: its checks don't depend on the program.
_ANY_PROGRAM = ("true",)


def run(resolved: Resolved, environ: Mapping[str, str], *, as_json: bool) -> int:
    """Print every finding; the code is that of the first failure, 0 where nothing fails."""
    found = [*resolved.warnings, *_own(resolved, environ)]
    if _role(resolved, environ) is Role.LAUNCHER:
        found += [item for item in _job(resolved, environ) if item not in found]
    if as_json:
        sys.stdout.write(render.as_json(found))
    else:
        sys.stdout.write(render.findings(found))
        bad = sum(item.level is Level.FAIL for item in found)
        odd = sum(item.level is Level.WARN for item in found)
        sys.stdout.write(f"\n{len(found)} checks: {bad} failed, {odd} warnings\n")
    return next((int(BY_REFERENCE[i.check].code) for i in found if i.level is Level.FAIL), 0)


def _role(resolved: Resolved, environ: Mapping[str, str]) -> Role:
    """Where nothing says the role, a mounted hostfile is reason enough to look at its hosts."""
    mounted = _mounted(resolved, environ)
    try:
        role, _ = platforms.role(resolved, environ, (), mounted)
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
        made = files.runtime_dir(
            settings.runtime_dir, who.uid, "doctor", tmpdir=environ.get("TMPDIR", "")
        )
        mounted = keys.find(settings.ssh_key, (who.home, environ.get("HOME", "")), who.uid)
        if mounted is None:
            raise launcher.no_key(settings.ssh_key, (who.home, environ.get("HOME", "")), who.uid)
        found = keys.load(mounted, made, environ)
        return f"the key is {mounted}, {found.fingerprint}"

    def mpi() -> str:
        found = programs.detect_mpi(environ)
        if found is None:
            raise launcher.no_mpirun(environ)
        return f"mpirun is {found.path}, {found.said}"

    def ssh() -> str:
        path = process.find("ssh", environ.get("PATH", ""))
        return f"ssh is {path}" if path else "no ssh on PATH; only a launcher needs one"

    return [
        _tried("runtime-folder", folder),
        _tried("ssh-key", key),
        _tried("program-missing", mpi),
        _tried("program-missing", ssh),
    ]


def _job(resolved: Resolved, environ: Mapping[str, str]) -> list[Finding]:
    """Check the hostfile and every host of it."""
    try:
        seen, ground = launcher.look(resolved, _ANY_PROGRAM, environ)
    except MpibootError as wrong:
        return [wrong.finding, *wrong.others]
    file = seen.observed.hostfile
    found = [
        _ok("hostfile-missing", f"the hostfile is {file.path}, named by {file.named_by}"),
        _ok("hostfile-invalid", f"{len(file.hosts)} hosts, {file.slots} slots"),
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
        where = launch.paths(ground.folder, ground.key.path)
        made = plans.make(seen.observed, resolved, _ANY_PROGRAM, where)
    except MpibootError as wrong:
        return [*found, wrong.finding, *wrong.others]
    return [*found, *made.findings]
