"""What a worker settles before it serves: its folder, key, address and port.

It starts no process; a worker's way to its sshd leads through here, so it imports nothing heavy.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Final

from mpiboot.core import log
from mpiboot.core.errors import MpibootError, error
from mpiboot.core.model import Decision, Source
from mpiboot.core.setting_sources import Resolved
from mpiboot.network import pod
from mpiboot.ssh import openssh, sessions
from mpiboot.ssh import server_port as ports
from mpiboot.ssh.openssh import WorkerSetup
from mpiboot.system import files, keys, process, tmpdir, worker_state
from mpiboot.worker import profile_script

FACTS_FILE: Final = "facts.json"
LOOK: Final = "look"  # a script that writes the facts anew
_CLI: Final = "from mpiboot.cli.main import main; main()"
PAIRS: Final = "pairs"  # a script that dials other workers
PATHS: Final = "paths"  # a script that measures the ways to other workers
_PROGRAM: Final = "import sys; sys.path.append(sys.argv.pop(1)); import {0}; {0}.run()"
DOCTOR: Final = "doctor"  # a script that makes this pod's own checks
# Signals that end a worker.
ENDING: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)


def settle(
    resolved: Resolved, environ: Mapping[str, str], loop: process.SignalLoop
) -> WorkerSetup | None:
    """Settle what the server needs; None where a signal came while the key was waited for.

    Raises:
        MpibootError: something that the server needs isn't there.
    """
    settings = resolved.settings
    identity = pod.identity(environ)
    named = environ.get("TMPDIR", "")
    tmpdir.check(named)
    folder = files.runtime_dir(settings.runtime_dir, identity.uid, "worker", tmpdir=named)
    environ = {**environ, **tmpdir.complete(environ, folder)}
    tmpdir.remove_stale(environ, socket.gethostname(), identity.uid)
    for name in (FACTS_FILE, worker_state.STATE):
        (folder / name).unlink(missing_ok=True)  # an earlier start of this container wrote them
    home = folder / "home"
    home.mkdir(mode=0o700, exist_ok=True)
    homes = (identity.home, environ.get("HOME", ""))
    try:
        mounted = keys.wait(
            settings.ssh_key, homes, identity.uid, settings.timeout, partial(_wait, loop)
        )
    except _EndedError:
        return None
    key = keys.load(mounted)
    odd = keys.trust(key, mounted)
    if odd:
        log.finding(odd)
    wanted = settings.control_ifname
    address, because = pod.control_address(
        wanted, socket.gethostname(), api=environ.get(pod.API, "")
    )
    if not address:
        none = f"this pod has no address: {because}"
        raise error("interface-missing", f"the link {wanted} has no address" if wanted else none)
    given = resolved.given["ssh_port"]
    chosen = None
    if given.source is not Source.DEFAULT:
        chosen = Decision("ssh-port", str(settings.ssh_port), given.source, str(given))
    port = ports.choose(chosen, environ, identity.home, address)
    guessed = because.startswith(pod.NO_DEFAULT_ROUTE)
    say = log.warning if guessed else log.debug
    say("control-address", f"control address {address} ({because})")
    log.debug("ssh-port", f"port {port.value} ({port.because})")
    own = {**environ, **pod.user_environment(identity, environ, home)}
    if settings.env_profile:
        own, wrong = profile_script.evaluate(settings.env_profile, own)
        if wrong:
            log.finding(wrong)
    # The last step: whoever serves removes it at the end.
    key = keys.copy(key, folder / "key")
    return WorkerSetup(
        identity=identity,
        folder=folder,
        key=key,
        address=address,
        port=int(port.value),
        token=sessions.new_token(),
        keepalive=settings.ssh_keepalive,
        environ=own,
    )


class _EndedError(Exception):
    """A signal came that ends this worker."""


def _wait(loop: process.SignalLoop, seconds: float) -> None:
    if set(loop.wait(seconds)) & set(ENDING):
        raise _EndedError


def embedded_argv(setup: WorkerSetup) -> list[str]:
    """Write what the embedded server reads; its argv. Its module is never loaded here."""
    identity = setup.identity
    config: dict[str, str | int | float] = {
        "folder": str(setup.folder),
        "token": setup.token,
        "address": setup.address,
        "port": setup.port,
        "user": identity.user,
        "home": identity.home if identity.known else setup.environ["HOME"],
        "shell": openssh.shell_of(identity),
        "public": setup.key.public,
        "keepalive": setup.keepalive,
    }
    path = setup.folder / "embedded.json"
    files.write_private(path, json.dumps(config))
    return process.python("from mpiboot.ssh.embedded import main; main(sys.argv[1])", str(path))


def write_scripts(folder: Path) -> None:
    """Write what a launcher may start here."""
    argv = process.python(_CLI, "facts", "--write", str(folder / FACTS_FILE))
    # Where something of the data network is still to come. What it meets is never the reason why
    # this container ended.
    look = f"MPIBOOT_TERMINATION_LOG={os.devnull} exec {shlex.join(argv)}\n"
    files.write_private(folder / LOOK, look)
    # Imported: what is run by its path is compiled anew each time, a quarter of its start.
    for script, module in ((PAIRS, "pairs"), (PATHS, "path_probe")):
        argv = [sys.executable, "-I", "-S", "-c", _PROGRAM.format(module)]
        words = shlex.join([*argv, str(Path(__file__).parent)])
        files.write_private(folder / script, f'exec {words} "$@"\n')
    checks = shlex.join(process.python(_CLI, "doctor", "--json", "--no-login"))
    quiet = f"MPIBOOT_TERMINATION_LOG={os.devnull} MPIBOOT_ROLE=worker"
    files.write_private(folder / DOCTOR, f"{quiet} exec {checks}\n")


def gather_facts(resolved: Resolved, setup: WorkerSetup) -> None:
    """Observe this pod for the launcher; for a child, which says itself what goes wrong."""
    from mpiboot.hosts import error_report  # noqa: PLC0415 - not for the process that stays
    from mpiboot.worker import facts  # noqa: PLC0415 - not for the process that stays

    environ = {**setup.environ, "MPIBOOT_WORKER_DIR": str(setup.folder)}
    try:
        facts.run(resolved, environ, as_json=False, path=str(setup.folder / FACTS_FILE))
    except MpibootError as wrong:
        error_report.say(wrong)
    except Exception as wrong:  # noqa: BLE001 - a copy of the worker has no other boundary
        error_report.say(error_report.bug(wrong))
