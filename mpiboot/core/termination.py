"""The container's termination message, which the kubelet shows as the reason of its end."""

from __future__ import annotations

import os
from typing import Final

# The kubelet reads at most this much.
LIMIT: Final = 4096


def read(path: str) -> str:
    """Read the reason that is there; empty where none is, or the file can't be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return ""
    try:
        return os.read(descriptor, LIMIT).decode("utf-8", "replace")
    except OSError:  # a folder, or a pipe in which nothing is
        return ""
    finally:
        os.close(descriptor)


def write(path: str, text: str) -> None:
    """Write the reason of a failure to where the kubelet looks for it; silent where that is not.

    The kubelet mounts that one file: it is opened and truncated, never created or renamed onto.
    """
    data = text.encode("utf-8", "replace")[:LIMIT]
    data = data.decode("utf-8", "ignore").encode()  # drop the part of a character at the cut
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return
    try:
        os.write(descriptor, data)
    except OSError:  # a full disk, or nobody reads it
        return
    finally:
        os.close(descriptor)
