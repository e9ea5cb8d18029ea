"""Thin POSIX wrappers: limits, handles of processes, children; none blocks."""

from __future__ import annotations

import errno
import os
import resource
from contextlib import suppress
from typing import Final

from mpiboot.core.launch_spec import BY_SIGNAL

# More than the hosts of any job need; old programs close every number below the limit one by one.
MOST_OPEN_FILES: Final = 1 << 16


def most_open_files() -> int:
    """How many files this process may have open once ``raise_soft_limits`` was called."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if resource.RLIM_INFINITY in (soft, hard):
        return MOST_OPEN_FILES
    return max(soft, min(hard, MOST_OPEN_FILES))


def raise_soft_limits() -> None:
    """Raise the soft limits of files and processes, also for what this process starts."""
    most = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    wants = ((resource.RLIMIT_NOFILE, most_open_files()), (resource.RLIMIT_NPROC, most))
    for which, wanted in wants:
        soft, hard = resource.getrlimit(which)
        if soft != resource.RLIM_INFINITY and (wanted > soft or wanted == resource.RLIM_INFINITY):
            with suppress(OSError, ValueError):  # a sandbox may refuse
                resource.setrlimit(which, (wanted, hard))


def process_handle(pid: int) -> int | None:
    """Open a handle that is readable once a process has ended; None where there is no such thing.

    Older kernels and sandboxes have none, nor has a Python that was built for them.

    Raises:
        ProcessLookupError: the process has ended.
    """
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        raise
    except (AttributeError, OSError):
        return None


_CLONE3: Final = 435  # on every machine


def clone3_is_refused() -> bool:
    """Whether a seccomp profile fails clone3 with EPERM.

    glibc starts threads and programs by it, and falls back on clone at ENOSYS alone.
    """
    import ctypes  # noqa: PLC0415 - for an error alone

    libc = ctypes.CDLL(None, use_errno=True)
    return libc.syscall(_CLONE3, None, 0) < 0 and ctypes.get_errno() == errno.EPERM


def exit_status(status: int) -> int:
    """Give the exit status of a wait status, as shells count it: 128+n for signal n."""
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else BY_SIGNAL - code
