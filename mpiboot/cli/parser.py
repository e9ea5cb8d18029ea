"""Command lines with options: read by click, and its errors as lines like any other."""

from __future__ import annotations

import click

from mpiboot.cli.root import cli
from mpiboot.core.errors import MpibootError, error


def run(argv: list[str]) -> int:
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
