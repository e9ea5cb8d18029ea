"""The job's key as asyncssh has it; what is wrong with one is said in one line."""

from __future__ import annotations

import re
from pathlib import Path

import asyncssh

from mpiboot.core.errors import error


def read_private(path: Path) -> asyncssh.SSHKey:
    """Read the job's key.

    Raises:
        MpibootError: ``ssh-key``; it can't be read, is none, or has a passphrase.
    """
    try:
        return asyncssh.read_private_key(path)
    except OSError as why:
        raise error("ssh-key", f"the job's key {path} can't be read: {why.strerror}") from None
    except ValueError as why:
        # asyncssh has no exception of its own for this, and without bcrypt another text.
        if not re.search("passphrase|encrypt", str(why), re.IGNORECASE):
            raise error("ssh-key", f"the job's key {path} is no private SSH key: {why}") from None
        raise error(
            "ssh-key",
            f"the job's key {path} has a passphrase, and nobody is there to type it",
            hint="make a key without one: ssh-keygen -N ''",
        ) from None


def read_public(line: str) -> asyncssh.SSHKey:
    """Read the pinned host key, a line as in a .pub file.

    Raises:
        MpibootError: ``ssh-key``; it is none.
    """
    try:
        return asyncssh.import_public_key(line)
    except ValueError as why:
        raise error("ssh-key", f"the pinned host key is no public SSH key: {why}") from None
