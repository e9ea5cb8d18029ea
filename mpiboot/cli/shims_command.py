"""``mpiboot shims``: names such as mpirun and sshd that lead to mpiboot."""

from __future__ import annotations

import os
import sys

import click

from mpiboot.cli.options import Command, Group


@click.group(cls=Group, no_args_is_help=False)
def shims() -> None:
    """Make or take away names such as mpirun and sshd that lead to mpiboot.

    For images whose manifests are written for plain ones.
    """


def _told(lines: tuple[str, ...]) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))


_FOLDER = click.option(
    "--folder",
    default="/usr/local/bin",
    show_default=True,
    type=click.Path(),
    metavar="PATH",
    help="Folder for these names.",
)


@shims.command(cls=Command)
@_FOLDER
@click.option(
    "--replace", is_flag=True, help="Put them in the place of the real programs, which move."
)
def install(folder: str, *, replace: bool) -> None:
    """Make mpirun, mpiexec and sshd lead to mpiboot.

    The folder must come before the real programs' folder on PATH. The real ones are left as they
    are; with --replace they move to /usr/local/lib/mpiboot/real, so that a call by absolute path
    starts mpiboot too.

    \b
    Examples:
      mpiboot shims install
      mpiboot shims install --replace
    """  # noqa: D301 - click's mark for lines that are kept as they are
    from mpiboot.launcher import shims as names

    _told(names.replace(os.environ) if replace else names.install(folder, os.environ))


@shims.command(cls=Command)
@_FOLDER
def remove(folder: str) -> None:
    """Take the shims away and put the real programs back.

    \b
    Examples:
      mpiboot shims remove
      mpiboot shims remove --folder /opt/shims
    """  # noqa: D301 - click's mark for lines that are kept as they are
    from mpiboot.launcher import shims as names

    _told(names.remove(folder))
