"""How many files a process may have open: raised where mpiboot itself serves many hosts.

Programs of the user are started by other processes, which keep the limit that the pod has.
"""

from __future__ import annotations

import resource
from contextlib import suppress
from typing import Final

# More than the hosts of any job need; old programs close every number below the limit one by one.
MOST: Final = 1 << 17


def most() -> int:
    """Tell how many this process may have open once ``allow_most`` was called."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if resource.RLIM_INFINITY in (soft, hard):
        return MOST
    return max(soft, min(hard, MOST))


def allow_most() -> None:
    """Raise the soft limit, for this process and what it starts from now on."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return
    with suppress(OSError, ValueError):  # a sandbox may refuse; then the limit stays as it is
        resource.setrlimit(resource.RLIMIT_NOFILE, (most(), hard))
