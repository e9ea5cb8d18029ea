"""How command lines are parsed: settings as options, help in sections."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, TypeVar

import click

from mpiboot.core.model import Role
from mpiboot.core.settings import ROWS, Section, Setting, shown, some_seconds

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
    if row.kind == "path":
        # For completion; the file is checked where it is read, as one that a variable names is.
        given["type"] = click.Path(readable=False)
    choice = "|" in row.kind
    if choice:
        given["shell_complete"] = _choices(row.kind)
    names = [f"{row.flag}/--no-{row.flag[2:]}" if row.is_flag else row.flag, row.name]
    metavar = row.kind if choice else row.kind.upper()
    return SettingOption(names, row.section, metavar=metavar, **given)


AMOUNT: Final = click.FloatRange(min=0, min_open=True)
FRACTION: Final = click.FloatRange(min=0, max=1, min_open=True)  # no percentage


def duration(text: str) -> float:
    """Read a length of time as the settings do."""
    try:
        value: float = some_seconds(text)
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
