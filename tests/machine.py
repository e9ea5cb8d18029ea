"""What tests leave as it is: this machine's programs, its configuration, its user's own files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

# How deep each is looked into. Of the user's home only what ssh reads: shells and toolchains write
# their own files there all the time.
PLACES = {"/usr": 99, "/etc": 99, str(Path.home() / ".ssh"): 99}
# What Python and pip write wherever they are used, and a cache is no one's setting.
PASSED_OVER = {"__pycache__", ".cache"}

# The change time tells of a file that was moved away and came back; a folder's tells too much.
State = tuple[int, ...]


def seen(places: Mapping[str, int], but: Path) -> dict[str, State]:
    """The state of every file and folder in these places, except below `but`."""
    found: dict[str, State] = {}
    for place, depth in places.items():
        found.update(_below(place, depth, str(but)))
    return found


def changed(before: Mapping[str, State], after: Mapping[str, State]) -> list[str]:
    """One line for each file that came, went, or was touched."""
    words = {(False, True): "is new", (True, False): "is gone", (True, True): "was changed"}
    return [
        f"{path} {words[path in before, path in after]}"
        for path in sorted({*before, *after})
        if before.get(path) != after.get(path)
    ]


def _below(folder: str, depth: int, but: str) -> Iterator[tuple[str, State]]:
    try:
        entries = list(os.scandir(folder))
    except OSError:  # closed to this user, who then can't change it either
        return
    for entry in entries:
        if entry.name in PASSED_OVER or entry.path == but:
            continue
        stat = entry.stat(follow_symlinks=False)
        state = (stat.st_mode, stat.st_uid, stat.st_gid)
        if entry.is_dir(follow_symlinks=False):
            yield entry.path, state
            if depth > 1:
                yield from _below(entry.path, depth - 1, but)
        else:
            yield entry.path, (*state, stat.st_size, stat.st_ctime_ns)
