"""``mpiboot facts``: what is observed in this pod, for a person, for JSON, for the launcher."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

from mpiboot import render
from mpiboot.act import files
from mpiboot.model import PodFacts
from mpiboot.observe import links, pod, programs
from mpiboot.settings import Resolved


def gather(resolved: Resolved, environ: Mapping[str, str], *, sshd: str, pid: int) -> PodFacts:
    """Observe everything; what can't be seen is empty, never an error."""
    control, _ = pod.control_address(resolved.settings.control_ifname, socket.gethostname())
    return pod.pod_facts(
        who=pod.identity(environ),
        runtime_dir=environ.get("MPIBOOT_WORKER_DIR", ""),
        control=control,
        sshd=sshd,
        pid=pid,
        links=links.links(),
        mpi=programs.detect_mpi(environ),
    )


def run(
    resolved: Resolved,
    environ: Mapping[str, str],
    *,
    as_json: bool,
    path: str | None,
    sshd: str = "",
) -> int:
    """Print the facts, or write them as JSON to a private file that appears whole.

    Args:
        resolved: the settings.
        environ: the pod's environment.
        as_json: print JSON.
        path: write there instead; the worker that started this is the pod's first mpiboot.
        sshd: which SSH server that worker runs.
    """
    found = gather(resolved, environ, sshd=sshd, pid=os.getppid() if path else 1)
    if path:
        files.write_private(Path(path), pod.to_json(found))
        return 0
    sys.stdout.write(pod.to_json(found) + "\n" if as_json else render.facts(found))
    return 0
