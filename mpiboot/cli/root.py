"""``mpiboot`` itself: its commands, and the entrypoint form for everything that is none of them."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from typing import Final

import click

from mpiboot import __version__
from mpiboot.cli import commands, run
from mpiboot.cli.options import Command, Group
from mpiboot.cli.run import ENTRY, Words
from mpiboot.core.errors import MpibootError, error

# mpirun's own ways to write a number of ranks.
_RANKS: Final = {"-np": "-n", "--n": "-n", "-c": "-n"}


class Root(Group):
    """Where an unknown command is the entrypoint form: ``mpiboot PROGRAM ARGS...``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read mpiboot's own options; those of a command are met with the line to write."""
        words = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as wrong:
            line = corrected_line(self, words)
            if line:
                message = f"options stand behind a command: write `{line}`"
                raise click.UsageError(f"no option {wrong.option_name}: {message}", ctx) from None
            raise

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Take a program's name for the hidden command that decides by the pod's role."""
        if args and args[0] not in self.commands:
            entry = self.commands[ENTRY]
            return entry.name, entry, args
        return super().resolve_command(ctx, args)


def corrected_line(root: click.Group, words: Sequence[str]) -> str:
    """Write the line that was meant where a command's options came without the command.

    Returns:
        Such as ``mpiboot launcher --timeout 3 -- ./train``; empty where it can't be told.
    """
    from mpiboot.job.masking import masked_words

    first = next((word for word in words if word in root.commands), "")
    names = [first] if first else ["launcher", "worker"]
    for name in names:
        command = root.commands[name]
        takes = {
            flag: not getattr(item, "is_flag", False)
            for item in command.params
            for flag in (*item.opts, *item.secondary_opts)
        }
        options, rest = _split(words, takes)
        if options is None:
            continue
        if rest and rest[0] == name:
            return shlex.join(masked_words(["mpiboot", name, *options, *rest[1:]]))
        rest = rest[1:] if rest[:1] == ["--"] else rest
        if name == "launcher" and not rest:
            rest = ["PROGRAM"]
        rest = ["--", *rest] if rest else []
        return shlex.join(masked_words(["mpiboot", name, *options, *rest]))
    return ""


def _split(words: Sequence[str], takes: dict[str, bool]) -> tuple[list[str] | None, list[str]]:
    """Split a line at its first word that is no option; None where an option is unknown."""
    options: list[str] = []
    left = list(words)
    while left and left[0].startswith("-") and left[0] != "--":
        word = left.pop(0)
        flag, equals, _ = word.partition("=")
        flag = _RANKS.get(flag, flag)
        if flag not in takes:
            return None, []
        options.append(flag + word[len(word.partition("=")[0]) :])
        if takes[flag] and not equals and left:
            options.append(left.pop(0))
    return options, left


@click.group(
    cls=Root,
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
    ENTRY,
    hidden=True,
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.argument("program", nargs=-1, type=click.UNPROCESSED)
def entrypoint(program: Words) -> None:
    """Do what this pod's role asks for."""
    sys.exit(run.entrypoint(program))


for _command in (
    *(commands.launcher, commands.worker, commands.rank, commands.execute, commands.wait),
    *(commands.plan, commands.doctor, commands.facts, commands.settings, commands.shims),
    commands.copy_to,
):
    cli.add_command(_command)


@cli.command("help", cls=Command)
@click.argument("command", nargs=-1)
@click.pass_context
def help_(ctx: click.Context, command: Words) -> None:
    """Show this help, or that of a command: `mpiboot help wait`."""
    shown: click.Command = cli
    above = ctx.parent or ctx
    for name in command:
        found = shown.get_command(above, name) if isinstance(shown, click.Group) else None
        if found is None:
            raise click.UsageError(f"no command {' '.join(command)}", ctx.parent)
        above = click.Context(found, info_name=name, parent=above)
        shown = found
    click.echo(shown.get_help(above))


@cli.command("version", cls=Command)
def version() -> None:
    """Print the version."""
    click.echo(f"mpiboot, version {__version__}")


def run_line(argv: list[str]) -> int:
    """Run one command line; the code that it ends with.

    Not by click's ``main``, which ends with 1 when nobody reads stdout.

    Raises:
        MpibootError: ``usage``; or what the command raises.
        SystemExit: a role has ended, and told so.
    """
    try:
        with cli.make_context("mpiboot", list(argv)) as context:
            cli.invoke(context)
    except click.exceptions.Exit as done:  # --help, --version
        return done.exit_code
    except click.ClickException as wrong:
        raise _misused(wrong) from None
    except click.exceptions.Abort:
        raise KeyboardInterrupt from None
    return 0


def complete(asked: str) -> int:
    """Answer a shell that completes a line."""
    from click.shell_completion import shell_complete

    return shell_complete(cli, {}, "mpiboot", "_MPIBOOT_COMPLETE", asked)


def _misused(wrong: click.ClickException) -> MpibootError:
    """Turn what click found wrong into one line like any other."""
    context = getattr(wrong, "ctx", None)
    command = context.command_path if context else "mpiboot"
    hint = f"see `{command} --help` and `mpiboot settings`"
    if isinstance(wrong, click.MissingParameter) and isinstance(wrong.param, click.Argument):
        lacks = wrong.param.human_readable_name
        hint = f"write `{command} {'-- PROGRAM' if lacks == 'PROGRAM' else lacks}`; {hint}"
    below = context.command if context else None
    if isinstance(below, click.Group) and below is not cli:
        lines = " or ".join(f"`{command} {name}`" for name in below.commands)
        hint = f"write {lines}; see `{command} --help`"
    return error("usage", wrong.format_message(), hint=hint)
