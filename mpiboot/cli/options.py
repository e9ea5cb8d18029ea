"""Settings as options of a command, their help in sections."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, TypeVar

import click

from mpiboot.core.model import Role
from mpiboot.core.setting_types import shown
from mpiboot.core.settings import ROWS, Section, Setting
from mpiboot.core.wording import lasting

# Options behind the program are the program's own.
PASS_ON: Final = {"ignore_unknown_options": False, "allow_interspersed_args": False}


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


class CommandGroup(Command, Group):
    """A command with settings of its own that has others below it: ``doctor``, ``doctor ranks``."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options in sections, then the commands."""
        super().format_options(ctx, formatter)
        self.format_commands(ctx, formatter)


def _choices(kind: str) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    def complete(_ctx: click.Context, _param: click.Parameter, part: str) -> list[str]:
        return [word for word in kind.split("|") if word.startswith(part)]

    return complete


def option(row: Setting, default_here: float | None = None) -> click.Option:
    """Make the option of a setting; ``default_here`` is a command's own, which no variable changes.

    Such is the time for a look: the variable is the deadline of a launcher that waits.
    """
    if default_here is not None:
        text = f"{row.help}  [default: {lasting(default_here)}]"
        return SettingOption(
            [row.flag, row.name], row.section, metavar=row.kind.upper(), default=None, help=text
        )
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


_Made = TypeVar("_Made", bound=click.Command)


def settings_of(
    *roles: Role, without: Collection[str] = (), looks: float | None = None
) -> Callable[[_Made], _Made]:
    """Give a command the flags of its roles.

    Args:
        roles: whose settings the command uses.
        without: names of settings that this command does not use.
        looks: the seconds that it looks at hosts, where it does not wait for them.
    """

    def add(command: _Made) -> _Made:
        command.params += [
            option(row, looks if row.name == "timeout" else None)
            for row in ROWS
            if set(row.roles) & set(roles) and row.name not in without
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
