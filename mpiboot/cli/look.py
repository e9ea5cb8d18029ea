"""The commands that look and start nothing: doctor, facts, settings."""

from __future__ import annotations

import os
import sys
from typing import Final

import click
from click.core import ParameterSource

from mpiboot.cli.options import Command, CommandGroup, settings_of
from mpiboot.cli.run import looking, resolved
from mpiboot.core.model import Role
from mpiboot.core.settings import ROWS, Section

# Seconds; as for the plan.
_DOCTOR_LOOK: Final = 10.0
_END: Final = tuple(row.name for row in ROWS if row.section is Section.END)


@settings_of(Role.LAUNCHER, Role.WORKER, without=_END, looks=_DOCTOR_LOOK)
@click.group(cls=CommandGroup, invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@click.option("--check", "checks", multiple=True, metavar="NAME", help="This check; repeatable.")
@click.option("--host", "hosts", multiple=True, metavar="NAME", help="This host; repeatable.")
@click.option("--network", is_flag=True, help="The ways between workers are measured too.")
@click.option("--env", "env", is_flag=True, help="A pod's, a session's, a rank's environment.")
@click.option("--image", is_flag=True, help="The image alone, as when it is built.")
@click.option("--list", "list_", is_flag=True, help="List the checks.")
@click.option(
    "--bundle",
    metavar="FILE",
    help="Write what a support ticket needs, of all pods, as a tar.gz; -: standard output.",
)
@click.option("--login/--no-login", default=True, hidden=True)
@click.pass_context
def doctor(
    ctx: click.Context,
    /,
    *,
    as_json: bool,
    checks: tuple[str, ...],
    hosts: tuple[str, ...],
    network: bool,
    env: bool,
    image: bool,
    list_: bool,
    bundle: str | None,
    login: bool,
    **flags: str | None,
) -> None:
    """Check this pod and, on a launcher, every host of the hostfile; say what to mend.

    Exit 0 when nothing fails, 1 when something does, 2 when it is called in a wrong way.

    \b
    Examples:
      mpiboot doctor
      mpiboot doctor ranks        (why does my job hang?)
      mpiboot doctor --env        (why has a rank another environment?)
      kubectl exec my-job-launcher -- mpiboot doctor --json
      kubectl exec my-job-launcher -- mpiboot doctor --bundle - > bundle.tar.gz
      RUN mpiboot doctor --image
    """  # noqa: D301 - click's mark for lines that are kept as they are
    if ctx.invoked_subcommand:
        given = [name for name in ctx.params if _is_given(ctx, name)]
        if given:
            said = f"options stand behind `{ctx.invoked_subcommand}`"
            raise click.UsageError(f"{said}: mpiboot doctor {ctx.invoked_subcommand} OPTIONS", ctx)
        return
    if list_:
        from mpiboot.core import log
        from mpiboot.doctor import text

        sys.stdout.write(text.listed(log.width(1)))
        return
    from mpiboot.doctor import role

    if env and (checks or network or image or bundle is not None):
        raise click.UsageError("--env goes with --host and --json alone", ctx)
    found = looking(resolved(flags, "doctor"), _DOCTOR_LOOK)
    if env:
        from mpiboot.doctor.environment import role as environment

        environment.run(found, os.environ, hosts, as_json=as_json)
        return
    if bundle is not None:
        from mpiboot.doctor import bundle as archive

        archive.write(found, os.environ, flags, bundle)
        return
    asked = role.Asked(checks, hosts, image=image, as_json=as_json, login=login, network=network)
    role.run(found, os.environ, asked)


def _is_given(ctx: click.Context, name: str) -> bool:
    return ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE


@settings_of(Role.LAUNCHER, Role.WORKER, without=_END, looks=_DOCTOR_LOOK)
@doctor.command(cls=Command)
@click.option("--json", "as_json", is_flag=True, help="Print the ranks as JSON.")
@click.option(
    "--seconds",
    metavar="N",
    type=click.IntRange(1, 60),
    default=1,
    help="Between the two looks at each rank.  [default: 1]",
)
def ranks(*, as_json: bool, seconds: int, **flags: str | None) -> None:
    """Say what every rank of the running job does, the odd one first: why does it hang?

    On a launcher of every host of the hostfile, in any other pod of its own. Run it as the
    ranks' user. Exit 0 when no rank stands out, 1 when one does, 2 when the call is wrong.

    \b
    Examples:
      mpiboot doctor ranks
      kubectl exec my-job-launcher -- mpiboot doctor ranks --seconds 10
      kubectl exec my-job-worker-0 -- mpiboot doctor ranks --json
    """  # noqa: D301 - click's mark for lines that are kept as they are
    from mpiboot.doctor.ranks import role

    found = looking(resolved(flags, "doctor"), _DOCTOR_LOOK)
    role.run(found, os.environ, seconds=seconds, as_json=as_json)


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
    from mpiboot.worker import facts as role

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
    from mpiboot.core import log
    from mpiboot.job import render

    found = resolved(flags)
    if as_json:
        sys.stdout.write(render.as_json(render.settings_record(found, ROWS)))
    else:
        sys.stdout.write(render.settings(found, ROWS, log.width(1)))
