"""Reading sysfs: a file's text, a folder's entries, the PCI function behind a link or device."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

PCI_FUNCTION: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


def text(path: Path) -> str:
    """Content of a file without blanks around it; empty if it can't be read."""
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return ""


def number(path: Path) -> int | None:
    """The number at the beginning of a file, as of ``4: ACTIVE``; None if there is none."""
    found = re.match(r"[0-9]{1,9}", text(path))
    return int(found.group()) if found else None


def pci_function(device: Path) -> str:
    """PCI function of a ``device`` link: itself, or that of which it is a part; empty if none.

    A sub-function (mlx5_core.sf.4) and virtio's device are parts of the function above them.
    """
    try:
        parts = device.resolve(strict=True).parts
    except (OSError, RuntimeError):  # not there; a loop of links, before Python 3.13
        return ""
    return next((part for part in reversed(parts) if PCI_FUNCTION.fullmatch(part)), "")
