"""The launches of a job, by their IDs: what makes one, and which of them a worker still has."""

from __future__ import annotations

import hashlib
import os
import re
from typing import Final

from mpiboot.core.facts import Worker
from mpiboot.core.launch_spec import LAUNCH_ID
from mpiboot.system import process, processes

# Job and launch; the launcher's host name and the time of day at its start.
_ID: Final = re.compile(r"[0-9a-f]{16}-[0-9a-f]{16}(?:@([A-Za-z0-9.-]*)@([0-9TZ:-]+))?", re.ASCII)


def job_id(job: str) -> str:
    """Derive the job's ID from what only its pods have, as its key."""
    return hashlib.sha256(job.encode()).hexdigest()[:16]


def new_launch_id(job: str) -> str:
    """Make the ID of one launch: job, launch, the launcher's host name and start time."""
    return f"{job_id(job)}-{os.urandom(8).hex()}@{process.host_and_time()}"


def running_here() -> set[str]:
    """Find the launches that run in this pod, this one included."""
    return {environ[LAUNCH_ID] for environ in processes.environments() if LAUNCH_ID in environ}


def of_job(worker: Worker, job: str) -> tuple[str, ...]:
    """Give a worker's launches that belong to this job."""
    own = job_id(job) + "-"
    return tuple(each for each in worker.launches if each.startswith(own) and _ID.fullmatch(each))


def of_earlier(worker: Worker, job: str) -> tuple[str, ...]:
    """Give a worker's launches of this job whose launcher is not in this pod."""
    found = of_job(worker, job)
    running = running_here() if found else set()
    return tuple(each for each in found if each not in running)


def holder(worker: Worker, job: str) -> str:
    """Name the other launcher of this job that is connected to a worker; empty where none is."""
    earlier = of_earlier(worker, job)
    held = sorted(item for item in worker.held if item[0] in earlier)
    if not held:
        return ""
    launch, address = held[0]
    parts = _ID.fullmatch(launch)
    name, since = (parts[1] or "", parts[2] or "") if parts else ("", "")
    place = f" ({address})" if address else ""
    who = f"launcher {name}{place}" if name else address or "a launcher"
    return f"in use by {who}" + (f" since {since}" if since else "")
