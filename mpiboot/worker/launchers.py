"""Which launchers have been at this worker, how they ended, and since when there is none.

They tell it themselves: the gate's one command who is here, and a launcher that failed why. What is
kept outlives them, so that the next one can say which attempt it is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from mpiboot.system import files

# A file in the worker's folder, a line for each launcher: its name, and how it ended.
FILE: Final = "attempts"
_MOST: Final = 100  # lines
# "launcher NAME STAYS" and "ended NAME HOLD REASON"; the reason is quoted as in a URL. A script one
# of whose launches failed may go on: its HOLD is "-".
_CAME: Final = re.compile(rb"launcher ([\w.@:-]{1,200}) ([01])")
_ENDED: Final = re.compile(rb"ended ([\w.@:-]{1,200}) (\d{1,9}|-) ([\w.~%-]{0,3000})")


@dataclass(slots=True)
class Launchers:
    """What is known of this worker's launchers.

    Args:
        path: the file of earlier ones.
        away: seconds without a launcher after which this worker may end.
        waits: seconds that a launcher may wait for other hosts, without a word to this one.
    """

    path: Path
    away: float
    waits: float
    _seen: dict[str, str] = field(default_factory=dict)
    _silent_since: float | None = None  # None: none was here yet, or one is
    _may_disconnect: bool = False  # the last one may be there without a connection
    _hold: float | None = None  # the last one has told of its end, and is held for so long

    def __post_init__(self) -> None:
        """Read what an earlier start of this container has left."""
        if self.path.is_file():
            lines = self.path.read_text("ascii", "replace").splitlines()
            self._seen = {name: why for name, _, why in (line.partition(" ") for line in lines)}

    def hear(self, line: bytes, now: float) -> None:
        """Take in a line of a launcher's; any other is passed over.

        Args:
            line: what came by the worker's pipe.
            now: the monotonic clock.
        """
        if came := _CAME.fullmatch(line):
            name = came[1].decode("ascii", "replace")
            self._may_disconnect, self._hold = came[2] == b"1", None
            why = ""  # a script has gone on after what its last launch told
        elif ended := _ENDED.fullmatch(line):
            name = ended[1].decode("ascii", "replace")
            self._hold = None if ended[2] == b"-" else float(ended[2])
            why = ended[3].decode("ascii")
        else:
            return
        self._seen.pop(name, None)  # the latest is the last line
        self._silent_since = now
        self._seen[name] = why
        self._keep()

    def forget(self) -> None:
        """The job has ended well: the next launcher's is another one."""
        self._seen.clear()
        self._silent_since = None
        self._keep()

    def connected(self, now: float) -> None:
        """Somebody is connected, or was until now."""
        if self._silent_since is not None:
            self._silent_since = now

    @property
    def due(self) -> float | None:
        """When nobody will have been here for too long; None where none was, or one may be."""
        if self._silent_since is None or (self._may_disconnect and self._hold is None):
            return None
        return self._silent_since + self.patience

    @property
    def patience(self) -> float:
        """Seconds that the next word of a launcher is waited for."""
        return max(self.away, self.waits) if self._hold is None else self.away + self._hold

    def _keep(self) -> None:
        for name in list(self._seen)[:-_MOST]:
            del self._seen[name]
        lines = (f"{name} {why}\n" for name, why in self._seen.items())
        files.write_private(self.path, "".join(lines))
