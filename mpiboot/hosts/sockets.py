"""How many sockets a gate has open at once: logins' and look-ups', within the pod's limit. Pure."""

from __future__ import annotations

from typing import Final

_CONNECTIONS: Final = 128
# A login has its socket and a duplicate of it; so many files are open beside logins, and so many
# of these are no look-ups' sockets.
_FILES_EACH: Final = 2
_FILES: Final = 64
_FILES_OF_OTHERS: Final = 32


def connections(files: int) -> int:
    """Say how many connections may be open at once; ``files`` is how many files."""
    return max(1, min(_CONNECTIONS, (files - _FILES) // _FILES_EACH))


def of_look_ups(files: int) -> int:
    """Say how many sockets look-ups may have beside so many connections."""
    return max(1, files - _FILES_OF_OTHERS - connections(files) * _FILES_EACH)
