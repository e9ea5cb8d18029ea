"""The commands that look and start nothing: doctor, facts, settings."""

from __future__ import annotations

import os
import sys
from typing import Final

import click

from mpiboot.commands.options import Command, settings_of
from mpiboot.commands.run import looking, resolved
from mpiboot.model import Role
from mpiboot.setting_rows import ROWS
from mpiboot.settings import Section

# Seconds; as for the plan.
_DOCTOR_LOOK: Final = 10.0
_END: Final = tuple(row.name for row in ROWS if row.section is Section.END)


@settings_of(Role.LAUNCHER, Role.WORKER, without=_END)
@click.command(cls=Command)
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@click.option("--check", "checks", multiple=True, metavar="NAME", help="This check; repeatable.")
@click.option("--host", "hosts", multiple=True, metavar="NAME", help="This host; repeatable.")
@click.option("--image", is_flag=True, help="The image alone, as when it is built.")
@click.option("--list", "list_", is_flag=True, help="List the checks.")
@click.option("--login/--no-login", default=True, hidden=True)
def doctor(
    *,
    as_json: bool,
    checks: tuple[str, ...],
    hosts: tuple[str, ...],
    image: bool,
    list_: bool,
    login: bool,
    **flags: str | None,
) -> None:
    """Check this pod and, on a launcher, every host of the hostfile; say what to mend.

    Exit 0 when nothing fails, 1 when something does, 2 when it is called in a wrong way.

    \b
    Examples:
      mpiboot doctor
      kubectl exec my-job-launcher -- mpiboot doctor --json
      RUN mpiboot doctor --image
    """  # noqa: D301 - click's mark for lines that are kept as they are
    if list_:
        from mpiboot import log
        from mpiboot.doctor import text

        sys.stdout.write(text.listed(log.width(1)))
        return
    from mpiboot.doctor import role

    found = looking(resolved(flags, "doctor"), _DOCTOR_LOOK)
    asked = role.Asked(checks, hosts, image=image, as_json=as_json, login=login)
    role.run(found, os.environ, asked)


@click.command(cls=Command)
@click.option("--json", "as_json", is_flag=True, help="Print the facts as JSON.")
@click.option("--write", metavar="PATH", hidden=True)
def facts(*, as_json: bool, write: str | None) -> None:
    """Print what is observed in this pod: identity, addresses, links, MPI, limits.

    \b
    Examples:
      mpiboot facts
      kubectl exec my-job-worker-0 -- mpiboot facts --json
    """  # noqa: D301 - click's mark for lines that are kept as they are
    from mpiboot import facts as role

    role.run(resolved({}, quiet=True), os.environ, as_json=as_json, path=write)


@settings_of(Role.LAUNCHER, Role.WORKER)
@click.command(cls=Command)
@click.option("--json", "as_json", is_flag=True, help="Print the settings as JSON.")
def settings(*, as_json: bool, **flags: str | None) -> None:
    """Print every setting, its value and where the value came from.

    \b
    Examples:
      mpiboot settings
      mpiboot settings --json
    """  # noqa: D301 - click's mark for lines that are kept as they are
    from mpiboot import log, render

    found = resolved(flags)
    if as_json:
        sys.stdout.write(render.as_json(render.settings_record(found, ROWS)))
    else:
        sys.stdout.write(render.settings(found, ROWS, log.width(1)))
