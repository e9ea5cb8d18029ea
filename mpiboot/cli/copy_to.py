"""``mpiboot copy-to``: mpiboot into a volume, for a pod whose image has none."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from mpiboot.cli.options import Command


@click.command("copy-to", cls=Command)
@click.argument("folder")
def copy_to(folder: str) -> None:
    """Copy mpiboot into FOLDER, with a Python and libraries of its own.

    For an init container and an emptyDir, so that a pod's own image can stay as it is. Its
    containers then start FOLDER/bin/mpiboot.

    \b
    Examples:
      mpiboot copy-to /mpiboot
    """  # noqa: D301 - click's mark for lines that are kept as they are
    from mpiboot.cli import copying as copy

    sys.stdout.write(copy.copy_to(folder, Path(sys.prefix)) + "\n")
