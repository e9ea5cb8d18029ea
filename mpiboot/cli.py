"""The command line: reads flags, hands them to a role, and is the one place where errors end.

A role's own modules are loaded when that role runs: a worker's start is everybody's wait.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn

import click

from mpiboot import __version__, log
from mpiboot.errors import MpibootError, error
from mpiboot.model import Role, Source
from mpiboot.settings import ROWS, Resolved, Row, resolve

Words = tuple[str, ...]
_BOTH = (Role.LAUNCHER, Role.WORKER)
_ENTRY = "(program)"
# Commands that look at PATH as the pod has it, shims and all.
_AS_IT_IS: Final = ("doctor", "shims")
# Seconds that a look at every host takes at most, unless a flag says otherwise: the variable is
# the deadline of a launcher that waits.
_PLAN_LOOK: Final = 5.0
_DOCTOR_LOOK: Final = 10.0
_PASS_ON = {"ignore_unknown_options": False, "allow_interspersed_args": False}


class _State:
    """What the boundary needs to know of the settings, once they are read."""

    termination_log = os.environ.get("MPIBOOT_TERMINATION_LOG") or "/dev/termination-log"


class Group(click.Group):
    """A group whose unknown command is the entrypoint form: ``mpiboot PROGRAM ARGS...``."""

    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        """Show the first sentence of a command's help in the list; click would cut it off."""
        cmd.short_help = " ".join((cmd.help or "").partition("\n\n")[0].split())
        super().add_command(cmd, name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Take a program's name for the hidden command that decides by the pod's role."""
        if args and args[0] not in self.commands:
            entry = self.commands[_ENTRY]
            return entry.name, entry, args
        return super().resolve_command(ctx, args)


def _option(row: Row) -> click.Option:
    shown = row.default if row.default not in (None, "", ()) else None
    text = f"{row.help}  [{row.variable}"
    if row.older:
        text += ", older: " + ", ".join(row.older)
    if isinstance(shown, bool):
        shown = str(shown).lower()
    elif isinstance(shown, float):
        shown = f"{shown:g}"
    text += f"; default: {shown}]" if shown is not None else "]"
    if row.is_flag:
        flags = f"{row.flag}/--no-{row.flag[2:]}"
        return click.Option([flags, row.name], default=None, help=text)
    metavar = row.kind if "|" in row.kind else row.kind.upper()
    return click.Option([row.flag, row.name], default=None, metavar=metavar, help=text)


def settings_of(*roles: Role) -> Callable[[click.Command], click.Command]:
    """Give a command the flags of its roles."""

    def add(command: click.Command) -> click.Command:
        command.params += [_option(row) for row in ROWS if set(row.roles) & set(roles)]
        return command

    return add


def _resolved(flags: Mapping[str, Any], role: str = "", *, quiet: bool = False) -> Resolved:
    """Resolve this run's settings, set the log up by them and say what is odd."""
    given = {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in flags.items()
        if value is not None
    }
    resolved = resolve(given, os.environ)
    settings = resolved.settings
    _State.termination_log = settings.termination_log
    log.configure(level=settings.log_level, form=settings.log_format, role=role)
    if not quiet:
        for item in resolved.warnings:
            log.finding(item)
    return resolved


def _looking(resolved: Resolved, seconds: float) -> Resolved:
    """Give a look its own deadline, unless a flag has given one."""
    if resolved.given["timeout"].source is Source.FLAG:
        return resolved
    settings = dataclasses.replace(resolved.settings, timeout=seconds)
    return dataclasses.replace(resolved, settings=settings)


@click.group(
    cls=Group,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    invoke_without_command=True,
    epilog="As an image's ENTRYPOINT: `mpiboot ./train` or `mpiboot mpirun -n 8 ./train` starts "
    "the job on the launcher; `mpiboot worker` or START_SSHD=true serves it on a worker.",
)
@click.version_option(__version__, prog_name="mpiboot")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Start MPI jobs on Kubernetes the first time, on the right network, and say why if not."""
    if ctx.invoked_subcommand is None:
        ctx.invoke(entrypoint, program=())


# Its name can't be a program's; options and a bare `--` behind the program are the program's own.
@cli.command(
    _ENTRY,
    hidden=True,
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.argument("program", nargs=-1, type=click.UNPROCESSED)
def entrypoint(program: Words) -> None:
    """Do what this pod's role asks for."""
    from mpiboot import entry

    resolved = _resolved({})
    try:
        code = entry.run(resolved, program, os.environ)
    except MpibootError as wrong:
        raise _mistyped(wrong, program) from None
    sys.exit(code)


@settings_of(Role.LAUNCHER)
@cli.command(context_settings=_PASS_ON)
@click.argument("program", nargs=-1, type=click.UNPROCESSED, required=True)
def launcher(program: Words, **flags: str | None) -> None:
    """Wait for every host, decide, and start mpirun.

    PROGRAM is the MPI program, or a whole line that starts with mpirun.

    \b
    Examples:
      mpiboot launcher -- ./train --epochs 3
      mpiboot launcher --timeout 20m -- mpirun -n 16 ./train
    """  # noqa: D301 - click's mark for lines that are kept as they are
    from mpiboot.launcher import role

    sys.exit(role.run(_resolved(flags, "launcher"), program, os.environ))


@settings_of(Role.WORKER)
@cli.command(context_settings=_PASS_ON)
@click.argument("program", nargs=-1, type=click.UNPROCESSED)
def worker(program: Words, **flags: str | None) -> None:
    """Serve the job over SSH, in the foreground.

    With a PROGRAM the SSH server runs beside it, and the program's exit status is the
    container's.

    \b
    Examples:
      mpiboot worker
      mpiboot worker --sshd embedded --ssh-port 2222
    """  # noqa: D301 - click's mark for lines that are kept as they are
    from mpiboot.job import platforms
    from mpiboot.worker import role

    beside = () if platforms.is_sshd(program) else program
    sys.exit(role.run(_resolved(flags, "worker"), beside, os.environ))


@settings_of(Role.LAUNCHER)
@cli.command()
def wait(**flags: str | None) -> None:
    """Wait until every host of the hostfile resolves and answers over SSH; nothing more.

    For init containers and scripts. Exit 0 when all are ready, 68 or 69 when the deadline
    passes, 77 when a worker refuses the key.

    \b
    Examples:
      mpiboot wait
      mpiboot wait --hostfile /etc/mpi/hostfile --timeout 5m
    """  # noqa: D301 - click's mark for lines that are kept as they are
    from mpiboot.launcher import role

    sys.exit(role.wait(_resolved(flags, "wait"), os.environ))


@settings_of(Role.LAUNCHER)
@cli.command(context_settings=_PASS_ON)
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON.")
@click.argument("program", nargs=-1, type=click.UNPROCESSED, required=True)
def plan(program: Words, as_json: bool, **flags: str | None) -> None:  # noqa: FBT001 - click's
    """Print what `launcher` would do with PROGRAM, each value with its source and reason.

    Hosts are looked at once (5 s at most, unless --timeout says otherwise); nothing is started.

    \b
    Examples:
      mpiboot plan -- ./train --epochs 3
      mpiboot plan --json -- mpirun -n 16 ./train
    """  # noqa: D301 - click's mark for lines that are kept as they are
    from mpiboot.launcher import role

    resolved = _looking(_resolved(flags, "plan"), _PLAN_LOOK)
    sys.exit(role.show_plan(resolved, program, os.environ, as_json=as_json))


@settings_of(*_BOTH)
@cli.command()
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def doctor(as_json: bool, **flags: str | None) -> None:  # noqa: FBT001 - click's
    """Check this pod and, on a launcher, every host of the hostfile; say what to mend.

    Exit 0 when nothing fails, else the code of the first failure.

    \b
    Examples:
      mpiboot doctor
      kubectl exec my-job-launcher -- mpiboot doctor --json
    """  # noqa: D301 - click's mark for lines that are kept as they are
    from mpiboot import doctor as role

    resolved = _looking(_resolved(flags, "doctor"), _DOCTOR_LOOK)
    sys.exit(role.run(resolved, os.environ, as_json=as_json))


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="Print the facts as JSON.")
@click.option("--write", metavar="PATH", help="Write the JSON to a private file instead.")
def facts(as_json: bool, write: str | None) -> None:  # noqa: FBT001 - click's
    """Print what is observed in this pod: identity, addresses, links, MPI, limits.

    \b
    Examples:
      mpiboot facts
      kubectl exec my-job-worker-0 -- mpiboot facts --json
    """  # noqa: D301 - click's mark for lines that are kept as they are
    from mpiboot import facts as role

    sys.exit(role.run(_resolved({}, quiet=True), os.environ, as_json=as_json, path=write))


@settings_of(*_BOTH)
@cli.command()
@click.option("--json", "as_json", is_flag=True, help="Print the settings as JSON.")
def settings(as_json: bool, **flags: str | None) -> None:  # noqa: FBT001 - click's
    """Print every setting, its value and where the value came from.

    \b
    Examples:
      mpiboot settings
      mpiboot settings --json
    """  # noqa: D301 - click's mark for lines that are kept as they are
    from mpiboot import render

    resolved = _resolved(flags)
    if as_json:
        sys.stdout.write(render.as_json(render.settings_record(resolved, ROWS)))
    else:
        sys.stdout.write(render.settings(resolved, ROWS))


@cli.command()
@click.argument("what", type=click.Choice(["install", "remove"]))
@click.option("--folder", default="/usr/local/bin", show_default=True, help="Where they stand.")
@click.option("--replace", is_flag=True, help="In the place of the real programs, which move.")
def shims(what: str, folder: str, *, replace: bool) -> None:
    """Make or take away names such as mpirun and sshd that lead to mpiboot.

    For images whose manifests are written for plain ones: FOLDER must come before the real
    programs' folder on PATH. The real ones are left as they are; with --replace they move to
    /usr/local/lib/mpiboot/real, so that a call by absolute path enters mpiboot too.
    """
    from mpiboot import shims as names

    if what == "remove":
        lines = names.remove(folder)
    else:
        lines = names.replace(os.environ) if replace else names.install(folder, os.environ)
    sys.stdout.write("".join(f"{line}\n" for line in lines))


def _mistyped(wrong: MpibootError, program: Words) -> MpibootError:
    """Hint at the command where a program that isn't there is called nearly so."""
    if wrong.finding.check != "program-missing" or not program:
        return wrong
    import difflib

    names = [name for name in cli.commands if name != _ENTRY]
    near = difflib.get_close_matches(program[0], names, n=1, cutoff=0.75)
    if near and wrong.finding.said.startswith(program[0]):
        hint = f"did you mean `mpiboot {near[0]}`? {wrong.finding.hint}"
        wrong.finding = dataclasses.replace(wrong.finding, hint=hint)
    return wrong


def _report(wrong: MpibootError) -> int:
    """Say an error where people look: the log, then the termination message."""
    from mpiboot import render
    from mpiboot.system import files

    told = frozenset(wrong.finding.evidence)
    log.finding(wrong.finding)
    for item in wrong.others:
        # Thousands of hosts may be missing: each is told once, as evidence.
        if f"{item.host}: {item.said}" not in told:
            log.finding(item)
    text = render.termination(wrong.finding, wrong.others)
    files.termination_message(_State.termination_log, text)
    if wrong.hold:
        _hold(wrong.hold)
    return wrong.code


def _hold(seconds: float) -> None:
    """Stay for a look inside, until the time is over or a signal ends it."""
    import time

    from mpiboot.parent import launch_spec
    from mpiboot.system import process

    # What these did while hosts were waited for would write another end over this one. Not
    # sigtimedwait: a thread that still waits for a nameserver may be the one that gets a signal.
    loop = process.Loop(launch_spec.ENDING)
    log.info("hold", f"held for {seconds:g} s; SIGTERM ends it")
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0 and not loop.wait(left):
        pass


def _bug(wrong: Exception) -> MpibootError:
    import platform
    import traceback

    versions = f"mpiboot {__version__}, Python {platform.python_version()}, {platform.platform()}"
    lines = "".join(traceback.format_exception(wrong)).rstrip().splitlines()
    return error("bug", f"{type(wrong).__name__}: {wrong}", evidence=(versions, *lines[-20:]))


def _misused(wrong: click.ClickException) -> MpibootError:
    """Turn what click found wrong into one line like any other."""
    context = getattr(wrong, "ctx", None)
    command = context.command_path if context else "mpiboot"
    return error(
        "usage", wrong.format_message(), hint=f"see `{command} --help` and `mpiboot settings`"
    )


def _run(argv: list[str]) -> int:
    """Run one command line; the code that it ends with.

    Not by click's ``main``, which ends with 1 when nobody reads stdout.
    """
    try:
        with cli.make_context("mpiboot", list(argv)) as context:
            cli.invoke(context)
    except click.exceptions.Exit as done:
        return done.exit_code
    except SystemExit as done:
        return done.code if isinstance(done.code, int) else 0
    return 0


def _behind_shim(argv: list[str]) -> list[str]:
    """Turn a call by a shim's name into the entrypoint form, with the real programs on PATH."""
    from mpiboot import shims as names

    name = os.path.basename(sys.argv[0])  # noqa: PTH119
    if name not in names.NAMES:
        if argv[:1] and argv[0] not in _AS_IT_IS:
            os.environ["PATH"] = names.cleared(os.environ)
        return argv
    found = names.enter(name, os.environ)
    os.environ["PATH"] = found["PATH"]
    return [_ENTRY, found["program"], *argv]


def run(argv: list[str]) -> int:
    """Run one command line and return the exit code; every error ends here."""
    try:
        code = _run(_behind_shim(argv))
        sys.stdout.flush()
    except MpibootError as wrong:
        code = _report(wrong)
    except click.ClickException as wrong:
        code = _report(_misused(wrong))
    except (KeyboardInterrupt, click.exceptions.Abort):
        code = 128 + signal.SIGINT
    except BrokenPipeError:
        # `mpiboot plan | head`: nobody reads any more; say nothing at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = 128 + signal.SIGPIPE
    except Exception as wrong:  # noqa: BLE001 - the one boundary
        code = _report(_bug(wrong))
    return code


def main() -> NoReturn:
    """Run the console script."""
    sys.exit(run(sys.argv[1:]))
