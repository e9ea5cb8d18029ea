"""The commands: jobs and pods; doctor, validate, facts, settings; shims and copy-to.

Settings are the commands' options, which their help lists by section.

A role's modules are loaded when that role runs: all hosts wait for a worker's start.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from click.core import ParameterSource

from mpiboot import __version__
from mpiboot.cli import main
from mpiboot.cli.main import Words, resolved, with_timeout
from mpiboot.core import checks
from mpiboot.core.checks import MpibootError
from mpiboot.core.model import Role
from mpiboot.core.settings import (
    PREFIX,
    REMOVED,
    ROWS,
    Resolved,
    Section,
    Setting,
    shown,
    some_seconds,
)

if TYPE_CHECKING:
    from mpiboot.validate.nccl_tests import ToolOptions

# Options behind the program belong to the program.
PASS_ON: Final = {"ignore_unknown_options": False, "allow_interspersed_args": False}


# In a context's meta: the help that is written has every setting.
_WHOLE: Final = "mpiboot.help-all"
_WORD: Final = 34  # columns in which no word of the help is broken, such as a variable's name
_COMMON: Final = "Common settings"


class SettingOption(click.Option):
    """An option that is a row of the settings; ``section`` is the heading it stands under.

    `--help` shows it where it has a ``brief`` text, `--help-all` in any case.
    """

    def __init__(
        self,
        names: Sequence[str],
        section: Section,
        brief: str = "",
        **given: Any,  # noqa: ANN401 - click's
    ) -> None:
        super().__init__(list(names), **given)
        self.section = section
        self.brief = brief


class Command(click.Command):
    """A command whose help shows its options in sections, or the settings that people use."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the command's own options, then its settings."""
        whole, times = ctx.meta.get(_WHOLE, False), False
        sections: dict[str, list[tuple[str, str]]] = {"Options": []}
        for item in self.get_params(ctx):
            if isinstance(item, click.Argument):  # the line of usage has it
                continue
            record, title = item.get_help_record(ctx), "Options"
            if isinstance(item, SettingOption):
                if not (whole or item.brief):
                    continue
                title = item.section.value if whole else _COMMON
                record = record if whole or record is None else (record[0], item.brief)
                times = times or item.metavar == "TIME"
            if record:
                sections.setdefault(title, []).append(record)
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records, col_max=min(30, formatter.width - _WORD))
        if times:
            formatter.write_paragraph()
            formatter.write_text("TIME is a number of seconds, or a value such as 90s, 10m or 2h.")


class Group(Command, click.Group):
    """A group whose list of commands has whole sentences; click would cut them off."""

    command_class = Command
    group_class = type

    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        """Show the first sentence of a command's help in the list."""
        cmd.short_help = " ".join((cmd.help or "").partition("\n\n")[0].split())
        super().add_command(cmd, name)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options in sections, then the commands."""
        super().format_options(ctx, formatter)
        self.format_commands(ctx, formatter)


def option(
    row: Setting, default_here: float | None = None, *, common: bool = False
) -> click.Option:
    """Make the option of a setting; ``default_here`` is the command's, which no variable changes.

    Such is the timeout of a check: the variable is the deadline of a launcher that waits.
    """
    value = row.default
    default = f"; default: {shown(value)}" if shown(value) else ""
    older = ", older: " + ", ".join(row.older) if row.older else ""
    text, brief = f"{row.variable}{older}{default}", f"{row.variable}{default}"
    if default_here is not None:
        text = brief = f"default: {shown(default_here)}"
    given: dict[str, Any] = {"default": None, "help": f"{row.help}  [{text}]"}
    if common:
        given["brief"] = f"{row.help.partition(';')[0].rstrip('.')}.  [{brief}]"
    if row.parse.kind == "path":
        # For completion; the file is checked where it is read, as one that a variable names is.
        given["type"] = click.Path(readable=False)
    no = f"/--no-{row.flag[2:]}" if isinstance(row.default, bool) else ""
    names = [f"{row.flag}{no}", row.name]
    metavar = row.parse.kind if "|" in row.parse.kind else row.parse.kind.upper()
    return SettingOption(names, row.section, metavar=metavar, **given)


AMOUNT: Final = click.FloatRange(min=0, min_open=True)
FRACTION: Final = click.FloatRange(min=0, max=1, min_open=True)  # no percentage


def duration(text: str) -> float:
    """Read a length of time as the settings do."""
    try:
        value: float = some_seconds.read(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r}: expected {error}") from None
    return value


_Made = TypeVar("_Made", bound=click.Command)


def _help_all(ctx: click.Context, _param: click.Parameter, value: bool) -> None:  # noqa: FBT001 - click's
    if value and not ctx.resilient_parsing:
        ctx.meta[_WHOLE] = True
        click.echo(ctx.get_help())
        ctx.exit()


def settings_of(
    *roles: Role,
    sections: Collection[Section] = tuple(Section),
    also: Collection[str] = (),
    without: Collection[str] = (),
    timeout: float | None = None,
    common: Collection[Section] = tuple(Section),
) -> Callable[[_Made], _Made]:
    """Give a command the flags of its roles.

    Args:
        roles: whose settings the command uses.
        sections: those of which it uses the settings.
        also: names of more settings that it uses.
        without: names of settings that it does not use.
        timeout: the command's timeout in seconds, where it checks hosts and does not wait for them.
        common: the sections of which its `--help` shows the settings that people use.
    """

    def add(command: _Made) -> _Made:
        command.params += [
            option(
                row,
                timeout if row.name == "timeout" else None,
                common=row.common and row.section in common,
            )
            for row in ROWS
            if set(row.roles) & set(roles)
            and (row.section in sections or row.name in also)
            and row.name not in without
        ]
        loud, low = "Log more: --log-level debug.", "Log less: --log-level warning."
        command.params += [
            SettingOption(["-v", "--verbose"], Section.LOG, is_flag=True, help=loud),
            SettingOption(["-q", "--quiet"], Section.LOG, is_flag=True, help=low),
            click.Option(
                ["--help-all"],
                is_flag=True,
                is_eager=True,
                expose_value=False,
                callback=_help_all,
                help="Show this message with all settings.",
            ),
        ]
        return command

    return add


# Seconds in which all hosts are checked, unless a flag says otherwise: the variable is the deadline
# of a launcher that waits.
_PLAN_TIMEOUT: Final = 5.0
_NAMED: Final = ("role", "start_sshd")  # the command's name is the role
# What a command reads that waits for hosts and starts no mpirun.
_WAITING: Final = (Section.HOSTS, Section.SSH, Section.LOG)
_DIALS: Final = ("control_ifname", "port_range", "pair_check")
# Hosts measure by the ports that a job would use.
_MEASURED_BY: Final = ("data_network", "data_ifname", "rdma_device")
# `exec` waits for one name, and observes this pod alone.
_FOR_EXEC: Final = (
    *("timeout", "dns_wait", "control_ifname", "nccl_socket", "nccl_version"),
    *_MEASURED_BY,
)
# `validate` sets these itself.
_NOT_FOR_TOOLS: Final = (*_NAMED, "job_record", "hold_on_failure")


@click.group(
    cls=Group,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="As an image's ENTRYPOINT: on the launcher `mpiboot mpirun ./train` starts the job, and "
    "any other command runs once; `mpiboot worker` or START_SSHD=true serves it on a worker.",
)
@click.version_option(__version__, prog_name="mpiboot")
def cli() -> None:
    """Start MPI jobs on Kubernetes on the first try, on the right network, or report why not."""


@settings_of(Role.LAUNCHER, without=_NAMED)
@cli.command(context_settings=PASS_ON)
@click.argument("program", nargs=-1, type=click.UNPROCESSED, required=True)
def launcher(program: Words, **flags: str | None) -> None:
    """Wait for every host, decide, and start mpirun; run any other program once.

    A PROGRAM that is no mpirun starts at once, in this pod. Each mpirun that it calls is a launch
    that waits for the hosts, and its ssh waits for the host that it names.

    \b
    Examples:
      mpiboot launcher -- mpirun ./train --epochs 3
      mpiboot launcher --timeout 20m -- mpirun -n 16 ./train
      mpiboot launcher -- bash run.sh
    """  # noqa: D301 - click's mark for lines that are kept as they are
    sys.exit(main.launcher(program, flags))


@settings_of(Role.WORKER, without=_NAMED)
@cli.command(context_settings=PASS_ON)
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
    sys.exit(main.worker(program, flags))


@cli.command(context_settings=PASS_ON)
@click.argument("program", nargs=-1, type=click.UNPROCESSED, required=True)
def rank(program: Words) -> None:
    """Set the variables that torchrun would for one rank, and become PROGRAM.

    RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT, from what
    Open MPI, MPICH or Intel MPI set for this rank.

    \b
    Examples:
      mpiboot launcher -- mpirun -n 8 mpiboot rank -- python train.py
      mpiboot launcher --rank-env -- mpirun python train.py
    """  # noqa: D301 - click's mark for lines that are kept as they are
    from mpiboot.cli import rank as ranks
    from mpiboot.system import process

    try:
        found = ranks.variables(os.environ)
    except ValueError as error:
        raise checks.error("usage", f"mpiboot rank: {error}", hint="") from None
    process.replace(program, {**os.environ, **found})


@settings_of(Role.LAUNCHER, sections=(Section.LOG,), also=_FOR_EXEC)
@cli.command("exec", context_settings=PASS_ON)
@click.argument("program", nargs=-1, type=click.UNPROCESSED, required=True)
def execute(program: Words, **flags: str | None) -> None:
    """Wait for the rendezvous host's name, set this pod's network variables, become PROGRAM.

    For programs that every pod starts on its own, such as torchrun in an indexed Job. The name is
    that of --rdzv-endpoint or --master-addr on PROGRAM's line, or of PET_RDZV_ENDPOINT,
    PET_MASTER_ADDR or MASTER_ADDR. Exit 68 when it does not resolve in time.

    \b
    Examples:
      mpiboot exec -- torchrun --nnodes 2 --rdzv-endpoint trainer-0.trainer:29500 train.py
      mpiboot exec --timeout 20m --data-network require -- python train.py
    """  # noqa: D301 - click's mark for lines that are kept as they are
    from mpiboot.launcher import look

    look.execute(resolved(flags, "exec"), program, os.environ)


@settings_of(Role.LAUNCHER, sections=_WAITING, also=_DIALS)
@cli.command()
@click.option("--json", "as_json", is_flag=True, help="Print the hosts, or why not, as JSON.")
def wait(*, as_json: bool, **flags: str | None) -> None:
    """Wait until every host of the hostfile resolves and answers over SSH; nothing more.

    For init containers and scripts. Exit 0 when all are ready, 68 or 69 when the deadline
    passes, 77 when a worker refuses the key.

    \b
    Examples:
      mpiboot wait
      mpiboot wait --hostfile /etc/mpi/hostfile --timeout 5m
      mpiboot wait --json --timeout 10s
    """  # noqa: D301 - click's mark for lines that are kept as they are
    from mpiboot.launcher import look

    look.wait(resolved(flags, "wait"), os.environ, as_json=as_json)


@settings_of(Role.LAUNCHER, without=_NAMED, timeout=_PLAN_TIMEOUT)
@cli.command(context_settings=PASS_ON)
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON.")
@click.option(
    "--offline", is_flag=True, help="Contact no host and read no key: for a laptop or CI."
)
@click.argument("program", nargs=-1, type=click.UNPROCESSED, required=True)
def plan(program: Words, *, as_json: bool, offline: bool, **flags: str | None) -> None:
    """Print what `launcher` would do with PROGRAM, each value with its source and reason.

    It takes the options of `launcher`. Hosts are checked once (for at most 5 s, or --timeout);
    nothing is started. A PROGRAM that is no mpirun has no plan.

    \b
    Examples:
      mpiboot plan -- mpirun ./train --epochs 3
      mpiboot plan --json -- mpirun -n 16 ./train
      mpiboot plan --offline --mpi openmpi5 --hostfile hostfile -- mpirun ./train
    """  # noqa: D301 - click's mark for lines that are kept as they are
    from mpiboot.launcher import look

    found = with_timeout(resolved(flags, "plan"), _PLAN_TIMEOUT)
    look.show_plan(found, program, os.environ, as_json=as_json, offline=offline)


_DOCTOR_TIMEOUT: Final = 10.0  # seconds, as for the plan
_CHECKING: Final = settings_of(
    *(Role.LAUNCHER, Role.WORKER),
    sections=tuple(section for section in Section if section is not Section.END),
    timeout=_DOCTOR_TIMEOUT,
    common=(Section.HOSTS,),
)


@_CHECKING
@cli.group(invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@click.option(
    *("--check", "only"),
    type=click.Choice([*checks.BY_REFERENCE]),
    multiple=True,
    metavar="NAME",
    help="Run this check only; repeatable.",
)
@click.option("--image", is_flag=True, help="Check the image only, as in its build.")
@click.pass_context
def doctor(
    ctx: click.Context,
    /,
    *,
    as_json: bool,
    only: tuple[str, ...],
    image: bool,
    **flags: str | None,
) -> None:
    """Check this pod and, on a launcher, every host of the hostfile; name what to fix.

    Exit 0 when nothing fails, 1 when something does, 2 on wrong usage.

    \b
    Examples:
      mpiboot doctor
      mpiboot doctor ranks        (why does my job hang?)
      kubectl exec my-job-launcher -- mpiboot doctor --json
      RUN mpiboot doctor --image
    """  # noqa: D301 - click's mark for lines that are kept as they are
    if ctx.invoked_subcommand:
        by_line = ParameterSource.COMMANDLINE
        given = [name for name in ctx.params if ctx.get_parameter_source(name) is by_line]
        if given:
            command = ctx.invoked_subcommand
            message = f"options go after `{command}`: mpiboot doctor {command} OPTIONS"
            raise click.UsageError(message, ctx)
        return
    from mpiboot.doctor import role

    found = with_timeout(resolved(flags, "doctor"), _DOCTOR_TIMEOUT)
    role.run(found, os.environ, only=only, image=image, as_json=as_json)


@_CHECKING
@doctor.command()
@click.option("--json", "as_json", is_flag=True, help="Print the ranks as JSON.")
@click.option(
    "--seconds",
    metavar="N",
    type=click.IntRange(1, 60),
    default=1,
    help="Seconds between the two samples of each rank.  [default: 1]",
)
@click.option(
    "--gdb", is_flag=True, help="Show C stacks too, by gdb, which halts each rank briefly."
)
def ranks(*, as_json: bool, seconds: int, gdb: bool, **flags: str | None) -> None:
    """Show the state of every rank of the running job, outliers first: why does it hang?

    On a launcher it queries every host of the hostfile; in any other pod it shows that pod's
    ranks. Run it as the ranks' user. Exit 1 when a rank is stopped, traced, in uninterruptible
    sleep or missing, 2 on wrong usage, else 0.

    \b
    Examples:
      mpiboot doctor ranks
      kubectl exec my-job-launcher -- mpiboot doctor ranks --seconds 10
      kubectl exec my-job-worker-0 -- mpiboot doctor ranks --json
    """  # noqa: D301 - click's mark for lines that are kept as they are
    from mpiboot.doctor import ranks as command

    found = with_timeout(resolved(flags, "doctor"), _DOCTOR_TIMEOUT)
    command.run(found, os.environ, seconds=seconds, gdb=gdb, as_json=as_json)


@cli.group(no_args_is_help=False)
def validate() -> None:
    """Measure the network with a tool, and judge whether it is fit to train on.

    Exit 0 when it is, 1 when it is too slow or results are wrong, 76 when the data went over
    another network than planned.

    \b
    Examples:
      mpiboot validate job
      mpiboot validate pairs
    """  # noqa: D301 - click's mark for lines that are kept as they are


_BY_TOOL: Final = {
    "tool": "nccl-tests, or one of its programs.  [default: nccl-tests]",
    "seconds": "How long the tool may take; what it has measured by then is judged.  [default: 1m]",
    "busbw": "Fail below this bus bandwidth of the largest messages.",
    "fraction": "Fail below this fraction of what a host's ports carry.  [default: 0.8]",
}
_BY_PAIRS: Final = {
    "tool": "ib_write_bw or tcp.  [default: ib_write_bw where all have it, else tcp]",
    "seconds": "How long it may take, once all hosts are ready.  [default: 1m]",
    "fraction": "Fail below this fraction of what is usual, and of a port's rate.  [default: 0.8]",
}


def _measuring(helps: Mapping[str, str]) -> list[click.Parameter]:
    """Make the options of a command that measures, each with its help."""
    kinds: dict[str, dict[str, Any]] = {
        "tool": {"metavar": "NAME", "default": ""},
        "seconds": {"metavar": "TIME", "type": duration, "default": "60"},
        "busbw": {"metavar": "GB/S", "type": AMOUNT},
        "fraction": {"metavar": "FRACTION", "type": FRACTION},
    }
    flags = {"seconds": "--time", "busbw": "--min-busbw", "fraction": "--min-fraction"}
    made = [
        click.Option([flags.get(name, f"--{name}"), name], help=text, **kinds[name])
        for name, text in helps.items()
    ]
    as_json = click.Option(["--json", "as_json"], is_flag=True, help="Print the result as JSON.")
    return [*made, as_json]


def _measured_by(given: dict[str, Any]) -> tuple[Resolved, Mapping[str, str], ToolOptions]:
    """Split the tool's options from the settings."""
    from mpiboot.validate.nccl_tests import ToolOptions

    names = [item.name for item in fields(ToolOptions) if item.name in given]
    options = ToolOptions(**{name: given.pop(name) for name in names})
    return resolved(given, "validate"), os.environ, options


@settings_of(Role.LAUNCHER, without=_NOT_FOR_TOOLS, common=(Section.HOSTS,))
@validate.command(context_settings=PASS_ON, params=_measuring(_BY_TOOL))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def job(**given: Any) -> None:  # noqa: ANN401 - the options above, and the settings' texts
    """Measure across all hosts of the hostfile, as a job on them.

    It waits for the hosts and starts nccl-tests as `launcher` does, with the same options, and
    judges what they and NCCL print. ARGUMENTS replace the default arguments of nccl-tests.

    \b
    Examples:
      mpiboot validate job
      mpiboot validate job --tool alltoall_perf --min-busbw 350
      mpiboot validate job --time 30 --json
      mpiboot validate job -- -b 8M -e 1G -f 2 -n 50
    """  # noqa: D301 - click's mark for lines that are kept as they are
    from mpiboot.validate import role

    role.job(*_measured_by(given))


@settings_of(
    Role.LAUNCHER, sections=_WAITING, also=(*_DIALS, *_MEASURED_BY), common=(Section.HOSTS,)
)
@validate.command(params=_measuring(_BY_PAIRS))
def pairs(**given: Any) -> None:  # noqa: ANN401 - as above
    """Measure from every host to every other one, and name those that are slow.

    It waits for the hosts as `launcher` does, and starts no MPI. Exit 0 when nothing is slow, 1
    when something is, or could not be measured. A host that can't be measured is only named.

    \b
    Examples:
      mpiboot validate pairs
      mpiboot validate pairs --time 30 --min-fraction 0.9
      mpiboot validate pairs --tool tcp
      kubectl exec my-job-launcher -- mpiboot validate pairs --json
    """  # noqa: D301 - click's mark for lines that are kept as they are
    from mpiboot.validate import role

    role.measure_pairs(*_measured_by(given))


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="Print them on one line.")
def facts(*, as_json: bool) -> None:
    """Print what is observed in this pod as JSON: identity, addresses, links, MPI, limits.

    \b
    Examples:
      mpiboot facts
      kubectl exec my-job-worker-0 -- mpiboot facts --json
    """  # noqa: D301 - click's mark for lines that are kept as they are
    from mpiboot.worker import facts as role

    role.run(resolved({}), os.environ, as_json=as_json)


@settings_of(Role.LAUNCHER, Role.WORKER)
@cli.command()
@click.option("--json", "as_json", is_flag=True, help="Print the settings as JSON.")
def settings(*, as_json: bool, **flags: str | None) -> None:
    """Print every setting, its value and where the value came from.

    \b
    Examples:
      mpiboot settings
      mpiboot settings --json
    """  # noqa: D301 - click's mark for lines that are kept as they are
    from mpiboot.job import render

    found = resolved(flags, "settings")
    if as_json:
        sys.stdout.write(render.as_json(render.settings_record(found, ROWS)))
    else:
        sys.stdout.write(render.settings(found, ROWS))


@cli.group(no_args_is_help=False)
def shims() -> None:
    """Install shims: names such as mpirun and sshd that start mpiboot.

    For manifests that call mpirun or sshd themselves.
    """


@shims.command()
@click.option(
    "--folder",
    default="/usr/local/bin",
    show_default=True,
    type=click.Path(readable=False),
    metavar="PATH",
    help="Folder for the shims.",
)
def install(folder: str) -> None:
    """Make mpirun, mpiexec and sshd start mpiboot.

    The folder must come before that of the real programs on PATH; those are left unchanged.

    \b
    Examples:
      mpiboot shims install
      mpiboot shims install --folder /opt/shims
    """  # noqa: D301 - click's mark for lines that are kept as they are
    from mpiboot.launcher import shims as names

    sys.stdout.write("".join(f"{line}\n" for line in names.install(folder, os.environ)))


@cli.command("copy-to")
@click.argument("folder")
def copy_to(folder: str) -> None:
    """Copy mpiboot into FOLDER, with a Python and libraries of its own.

    For an init container and an emptyDir, so that a pod's own image can stay as it is. Its
    containers then start FOLDER/bin/mpiboot.

    \b
    Examples:
      mpiboot copy-to /mpiboot
    """  # noqa: D301 - click's mark for lines that are kept as they are
    sys.stdout.write(main.copy_to(folder, Path(sys.prefix)) + "\n")


def run_line(argv: list[str]) -> int:
    """Run one command line and return its exit code.

    Not by click's ``main``, which ends with 1 when stdout is closed.

    Raises:
        MpibootError: ``usage``; or what the command raises.
        SystemExit: a role has ended, and has logged it.
    """
    try:
        with cli.make_context("mpiboot", list(argv)) as context:
            cli.invoke(context)
    except click.exceptions.Exit as done:  # --help, --version
        return done.exit_code
    except click.ClickException as error:
        raise _misused(error) from None
    except click.exceptions.Abort:
        raise KeyboardInterrupt from None
    return 0


def complete(instruction: str) -> int:
    """Complete a line for a shell."""
    from click.shell_completion import shell_complete

    return shell_complete(cli, {}, "mpiboot", "_MPIBOOT_COMPLETE", instruction)


def _misused(error: click.ClickException) -> MpibootError:
    """Turn click's error into mpiboot's."""
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "mpiboot"
    hint = f"see `{command} --help` and `mpiboot settings`"
    if isinstance(error, click.MissingParameter) and isinstance(error.param, click.Argument):
        lacks = error.param.human_readable_name
        hint = f"write `{command} {'-- PROGRAM' if lacks == 'PROGRAM' else lacks}`; {hint}"
    if isinstance(error, click.NoSuchOption):
        option = error.option_name
        if error.possibilities:
            hint = f"did you mean {error.possibilities[0]}? {hint}"
        elif command == "mpiboot":
            hint = f"options go after a command: `mpiboot launcher {option} ... -- PROGRAM`; {hint}"
        setting = PREFIX + option.strip("-").replace("-", "_").upper()
        hint = REMOVED.get(option) or REMOVED.get(setting, hint)
        return checks.error("usage", f"{command} has no option {option}", hint=hint)
    below = context.command if context else None
    if isinstance(below, click.Group) and below is not cli and not below.invoke_without_command:
        lines = " or ".join(f"`{command} {name}`" for name in below.commands)
        hint = f"write {lines}; see `{command} --help`"
    return checks.error("usage", error.format_message(), hint=hint)
