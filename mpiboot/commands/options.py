"""Settings as options of a command: their help in sections, their values resolved."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

import click

from mpiboot import __version__, log
from mpiboot.choices import AUTO
from mpiboot.model import Finding, Level, Role, Source
from mpiboot.setting_rows import ROWS, Setting
from mpiboot.setting_sources import Resolved, resolve
from mpiboot.setting_types import shown
from mpiboot.settings import Section
from mpiboot.wording import lasting

ENTRY: Final = "(program)"
# Options behind the program are the program's own.
PASS_ON: Final = {"ignore_unknown_options": False, "allow_interspersed_args": False}


class ErrorSettings:
    """What the place where errors end needs to know of the settings, once they are read."""

    termination_log = os.environ.get("MPIBOOT_TERMINATION_LOG") or "/dev/termination-log"


class SettingOption(click.Option):
    """An option that is a row of the settings; ``section`` is the heading it stands under."""

    def __init__(self, names: Sequence[str], section: Section, **given: Any) -> None:  # noqa: ANN401 - click's
        super().__init__(list(names), **given)
        self.section = section


class Command(click.Command):
    """A command whose help shows its options in sections."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the command's own options, then a section for each group of settings."""
        sections: dict[str, list[tuple[str, str]]] = {"Options": []}
        for item in self.get_params(ctx):
            if isinstance(item, click.Argument):  # the line of usage has it
                continue
            section = getattr(item, "section", None)
            record = item.get_help_record(ctx)
            if record:
                sections.setdefault(section.value if section else "Options", []).append(record)
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)
        if any(item.metavar == "TIME" for item in self.params if isinstance(item, SettingOption)):
            formatter.write_paragraph()
            formatter.write_text("TIME is a number of seconds, or such as 90s, 10m and 2h.")


class Group(click.Group):
    """A group whose list of commands has whole sentences; click would cut them off."""

    command_class = Command

    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        """Show the first sentence of a command's help in the list."""
        cmd.short_help = " ".join((cmd.help or "").partition("\n\n")[0].split())
        super().add_command(cmd, name)


def _choices(kind: str) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    def complete(_ctx: click.Context, _param: click.Parameter, part: str) -> list[str]:
        return [word for word in kind.split("|") if word.startswith(part)]

    return complete


def option(row: Setting) -> click.Option:
    """Make the option of a setting."""
    text = f"{row.help}  [{row.variable}"
    if row.older:
        text += ", older: " + ", ".join(row.older)
    value = row.default
    default = lasting(value) if isinstance(value, float) else shown(value)
    text += f"; default: {default}]" if default else "]"
    if row.is_flag:
        names = [f"{row.flag}/--no-{row.flag[2:]}", row.name]
        return SettingOption(names, row.section, default=None, help=text)
    names = [*([row.short] if row.short else []), row.flag, row.name]
    given: dict[str, Any] = {"default": None, "help": text}
    if row.kind == "path":
        given["type"] = click.Path()  # completes files; whether one is there is checked later
    if "|" in row.kind:
        given["shell_complete"] = _choices(row.kind)
    metavar = row.kind if "|" in row.kind else row.kind.upper()
    return SettingOption(names, row.section, metavar=metavar, **given)


def settings_of(
    *roles: Role, without: Collection[str] = ()
) -> Callable[[click.Command], click.Command]:
    """Give a command the flags of its roles.

    Args:
        roles: whose settings the command uses.
        without: names of settings that this command does not use.
    """

    def add(command: click.Command) -> click.Command:
        command.params += [
            option(row) for row in ROWS if set(row.roles) & set(roles) and row.name not in without
        ]
        loud = "Say more: --log-level debug."
        command.params += [
            SettingOption(["-v", "--verbose"], Section.LOG, is_flag=True, help=loud),
            SettingOption(
                ["-q", "--quiet"],
                Section.LOG,
                is_flag=True,
                help="Say less: --log-level warning.",
            ),
        ]
        return command

    return add


def resolved(flags: Mapping[str, Any], role: str = "", *, quiet: bool = False) -> Resolved:
    """Resolve this run's settings, set the log up by them and say what is odd.

    Args:
        flags: the command's options by their names; None where not given.
        role: what JSON lines name as the role.
        quiet: say nothing of what is odd.

    Raises:
        MpibootError: ``usage``; a value can't be read.
    """
    given = {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in flags.items()
        if value is not None and name not in ("verbose", "quiet")
    }
    if flags.get("quiet"):
        given.setdefault("log_level", "warning")
    if flags.get("verbose"):
        given.setdefault("log_level", "debug")
    found = resolve(given, os.environ)
    settings = found.settings
    ErrorSettings.termination_log = settings.termination_log
    log.configure(level=settings.log_level, form=settings.log_format, role=role)
    if not quiet:
        for item in found.warnings:
            log.finding(item)
    return found


def as_role(found: Resolved, role: Role) -> Resolved:
    """Say which role runs, and where the variable for it contradicts the command."""
    because = f"the command `mpiboot {role.value}`"
    said = f"mpiboot {__version__}, role {role.value} ({because})"
    log.info("role", said, version=__version__, because=because)
    wanted = found.settings.role
    if wanted not in (AUTO, role):
        said = (
            f"{found.given['role']}={wanted.value} is not used: `mpiboot {role.value}` comes first"
        )
        log.finding(Finding("usage", Level.WARN, said))
    return found


def looking(found: Resolved, seconds: float) -> Resolved:
    """Give a look its own deadline, unless a flag has given one."""
    if found.given["timeout"].source is Source.FLAG:
        return found
    settings = dataclasses.replace(found.settings, timeout=seconds)
    return dataclasses.replace(found, settings=settings)
