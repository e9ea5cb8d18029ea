"""How mpirun calls the launch agent."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from mpiboot.core.errors import error

_AGENT: Final = Path(__file__).resolve().parent.parent / "libexec" / "agent"


def words() -> str:
    """Give the agent's command line; mpirun and the agent's users split it at blanks.

    Raises:
        MpibootError: ``runtime-folder``; mpiboot's own folder has a blank in its path.
    """
    if any(char.isspace() for char in str(_AGENT)):
        raise error(
            "runtime-folder",
            f"mpiboot's own folder {str(_AGENT)!r} has a blank in its path, and mpirun splits it "
            "there",
            hint="install mpiboot in a folder without blanks",
        )
    # Its execute bit may be lost, or count for nothing on a noexec mount; Open MPI takes words.
    return str(_AGENT) if os.access(_AGENT, os.X_OK) else f"/bin/sh {_AGENT}"
