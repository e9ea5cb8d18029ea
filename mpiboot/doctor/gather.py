"""All looks at this pod at once, a thread each: one that hangs or fails makes its part unknown."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from mpiboot.core.errors import MpibootError
from mpiboot.core.model import PodFacts
from mpiboot.core.settings import Resolved
from mpiboot.core.wording import lasting
from mpiboot.doctor import looks
from mpiboot.doctor.pod import LimitsPart, ServersPart
from mpiboot.hosts.access import PORTS
from mpiboot.network import platform_hints, pod
from mpiboot.system import files
from mpiboot.system.files import WorkerState
from mpiboot.worker import facts

# Parts that are made from the facts: they come in a second round.
FROM_FACTS: Final[Mapping[str, Callable[[PodFacts], object]]] = {
    "pci": looks.pci,
    "counters": looks.counters,
}


@dataclass(frozen=True, slots=True)
class Subject:
    """This pod, as a look finds it: settings, environment, and its worker if one runs."""

    resolved: Resolved
    environ: Mapping[str, str]
    worker: WorkerState | None = None


def subject(resolved: Resolved, environ: Mapping[str, str]) -> Subject:
    """Find out whether a worker of mpiboot's runs here."""
    named = environ.get("TMPDIR", "")
    given = environ.get("MPIBOOT_WORKER_DIR")
    wanted = resolved.settings.runtime_dir
    folder = Path(given) if given else files.find_role(wanted, os.getuid(), "worker", named)
    state = files.worker_state(folder) if folder else None
    there = state is not None and os.path.exists(f"/proc/{state.pid}")  # noqa: PTH110
    return Subject(resolved, environ, state if there else None)


def _facts(one: Subject) -> PodFacts:
    sshd, pid = (one.worker.sshd, one.worker.pid) if one.worker else ("", 1)
    return facts.gather(one.resolved, one.environ, sshd=sshd, pid=pid, mpi=None)


def _limits(one: Subject) -> LimitsPart:
    server = looks.process_of(one.worker.port) or one.worker.pid if one.worker else 0
    # A session of an SSH server that is not mpiboot's knows that it is one.
    return looks.limits(
        str(server) if server else "self" if "SSH_CONNECTION" in one.environ else ""
    )


def _servers(one: Subject) -> ServersPart:
    """Look at the worker's port, else at those where a launcher tries its luck."""
    return looks.servers(one.worker.port, ()) if one.worker else looks.servers(0, _ports(one))


def _ports(one: Subject) -> tuple[int, ...]:
    named = one.worker.port if one.worker else one.resolved.settings.ssh_port
    return (named,) if named else PORTS


LOOKS: Final[Mapping[str, Callable[[Subject], object]]] = {
    "identity": lambda one: pod.identity(one.environ),
    "facts": _facts,
    "image": lambda one: looks.image(one.environ),
    "sshd": lambda one: looks.sshd(one.environ),
    "folder": lambda one: looks.folder(one.resolved.settings, one.environ),
    "key": lambda one: looks.key(one.resolved.settings, one.environ),
    "shims": lambda one: looks.shims(one.environ),
    "mesh": lambda _: platform_hints.service_mesh(),
    "servers": _servers,
    "sshd_settings": lambda one: looks.sshd_settings(_ports(one), pod.identity(one.environ)),
    "nvidia": lambda one: looks.nvidia(one.environ),
    "limits": _limits,
    "shm": lambda _: looks.shm(),
    "memory": lambda _: looks.memory(),
    "rp_filters": lambda _: looks.rp_filters(),
}
INTERRUPTED: Final = "interrupted"


@dataclass(frozen=True, slots=True)
class PodReport:
    """One pod, as doctor saw it: its parts by name, and of those that were not seen the reason."""

    parts: Mapping[str, object]
    unseen: Mapping[str, str] = field(default_factory=dict)


def gather(one: Subject, wanted: Collection[str], seconds: float) -> PodReport:
    """Look at the parts that are wanted; Ctrl-C ends the looks, and what was seen is kept.

    Args:
        one: this pod.
        wanted: names of the report's parts.
        seconds: how long all of them may take.

    Returns:
        The report; ``unseen`` has the parts that failed or took too long, each with its reason.
    """
    later = set(wanted) & set(FROM_FACTS)
    names = {*wanted, *(["facts"] if later else [])} & set(LOOKS)
    parts, unseen = _looked({name: partial(LOOKS[name], one) for name in names}, seconds)
    parts |= {"settings": one.resolved.settings, "environ": one.environ}
    seen = parts.get("facts")
    if isinstance(seen, PodFacts):
        more = _looked({name: partial(FROM_FACTS[name], seen) for name in later}, seconds)
        return PodReport({**parts, **more[0]}, {**unseen, **more[1]})
    return PodReport(parts, {**unseen, **dict.fromkeys(later, unseen.get("facts", ""))})


def _looked(
    wanted: Mapping[str, Callable[[], object]], seconds: float
) -> tuple[dict[str, object], dict[str, str]]:
    """Look at all of these at once: the parts that were seen, and why the others were not."""
    done: queue.SimpleQueue[tuple[str, object, str]] = queue.SimpleQueue()

    def run(name: str, look: Callable[[], object]) -> None:
        try:
            done.put((name, look(), ""))
        except MpibootError as wrong:
            done.put((name, None, wrong.finding.message))
        except OSError as wrong:
            done.put((name, None, wrong.strerror or str(wrong)))
        except Exception as wrong:  # noqa: BLE001 - one look that fails must not end the others
            done.put((name, None, f"this look failed: {type(wrong).__name__}: {wrong}"))

    for name, look in wanted.items():
        _begin(partial(run, name, look))
    missing = set(wanted)
    found: dict[str, object] = {}
    unseen: dict[str, str] = {}
    end, why = time.monotonic() + seconds, f"no answer within {lasting(seconds)}"
    try:
        while missing:
            name, value, wrong = done.get(timeout=max(0.0, end - time.monotonic()))
            missing.discard(name)
            if wrong:
                unseen[name] = wrong
            else:
                found[name] = value
    except queue.Empty:
        pass
    except KeyboardInterrupt:
        why = INTERRUPTED
    return found, {**unseen, **dict.fromkeys(missing, why)}


def _begin(look: Callable[[], None]) -> None:
    try:
        # Of its own and not an executor's: a look that hangs in the kernel is left behind.
        threading.Thread(target=look, daemon=True).start()
    except RuntimeError:  # the pod may start no more: one of the things that are to be found
        look()
