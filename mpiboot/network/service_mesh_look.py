"""Whether a service mesh's proxy stands in front of this pod: listening ports, annotations."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from mpiboot.core.model import Mesh
from mpiboot.network import service_mesh
from mpiboot.network.platform_hints import ANNOTATIONS

TABLES: Final = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LISTEN: Final = "0A"  # the kernel's tcp_states.h
_LARGEST: Final = 1 << 20


def look(
    tables: tuple[Path, ...] = TABLES, annotations: tuple[Path, ...] = ANNOTATIONS
) -> Mesh | None:
    """Look at the pod's own network, which its containers share with the proxy."""
    return service_mesh.recognise(_listening(tables), _annotated(annotations))


def _listening(tables: tuple[Path, ...]) -> set[int]:
    found = set()
    for table in tables:
        try:
            lines = table.read_text("ascii", "replace").splitlines()[1:]
        except OSError:  # a kernel without IPv6
            continue
        for words in map(str.split, lines):
            if len(words) > 3 and words[3] == _LISTEN:  # noqa: PLR2004 - the state's column
                found.add(int(words[1].rpartition(":")[2], 16))
    return found


def _annotated(paths: tuple[Path, ...]) -> set[str]:
    """Names of the pod's annotations, where a downwardAPI volume has them: name="value" lines."""
    found = set()
    for path in paths:
        try:
            with path.open(encoding="utf-8", errors="replace") as file:
                text = file.read(_LARGEST)
        except OSError:
            continue
        found |= {line.partition("=")[0] for line in text.splitlines()}
    return found
