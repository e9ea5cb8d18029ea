"""What the OpenSSH servers that run here go by: ``sshd -T`` with the options of each."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from mpiboot.core.model import Identity
from mpiboot.doctor.look import servers
from mpiboot.doctor.report import SshdSettings, SshdSettingsPart
from mpiboot.network.sysfs import text
from mpiboot.system import programs

PROC: Final = Path("/proc")
# Before its command line, which it writes anew as it starts to listen: setproctitle() of sshd.c.
_TITLE: Final = "sshd: "
_LISTENER: Final = " [listener]"
# Options of sshd(8) that change what it goes by, each with a value.
_OPTIONS: Final = ("-f", "-o", "-p", "-h")
_PATIENCE: Final = 5.0  # seconds


def settings(ports: Iterable[int], who: Identity, proc: Path = PROC) -> SshdSettingsPart:
    """Ask each server that listens on one of these ports and is a process of this user's."""
    found = []
    for port in ports:
        pid = servers.process_of(port, proc)
        argv = arguments(text(proc / str(pid) / "cmdline")) if pid else ()
        if argv:
            found.append(_asked(port, argv, who))
    return SshdSettingsPart(tuple(found))


def arguments(cmdline: str) -> tuple[str, ...]:
    """Give the command line of a server out of its process's; empty where it is no sshd."""
    if cmdline.startswith(_TITLE):
        words = cmdline.removeprefix(_TITLE).partition(_LISTENER)[0].split()
    else:
        words = cmdline.rstrip("\0").split("\0")
    return tuple(words) if os.path.basename(words[0] if words else "") == "sshd" else ()  # noqa: PTH119 - of a text


def _asked(port: int, argv: Sequence[str], who: Identity) -> SshdSettings:
    program = argv[0]
    whose = f"user={who.user},host=localhost,addr=127.0.0.1"
    try:
        done = programs.run((program, "-T", "-C", whose, *_kept(argv[1:])), _PATIENCE)
    except OSError as wrong:
        return SshdSettings(port, program, {}, wrong=f"{type(wrong).__name__}: {wrong}")
    if done is None:
        return SshdSettings(port, program, {}, wrong=f"it took longer than {_PATIENCE:g} s")
    values = parsed(done.text)
    if done.status or not values:
        said = done.said.strip().rpartition("\n")[2]
        return SshdSettings(port, program, {}, wrong=said or f"it ended with {done.status}")
    return SshdSettings(port, program, values, tuple(_keys(values, who)))


def _kept(words: Sequence[str]) -> Iterator[str]:
    """Leave the options that count, also those that are written in one word with their value."""
    rest = iter(words)
    for word in rest:
        if word in _OPTIONS:
            yield from (word, next(rest, ""))
        elif word[:2] in _OPTIONS:
            yield word


def parsed(said: str) -> dict[str, tuple[str, ...]]:
    """Read what ``sshd -T`` prints: a name and its value a line, some of them several times."""
    found: dict[str, tuple[str, ...]] = {}
    for line in said.splitlines():
        name, _, value = line.partition(" ")
        found[name.lower()] = (*found.get(name.lower(), ()), value.strip())
    return found


def _keys(values: dict[str, tuple[str, ...]], who: Identity) -> Iterator[tuple[str, int, int]]:
    """Give what StrictModes looks at: safe_path() of misc.c, up to the home or the root."""
    for name in " ".join(values.get("authorizedkeysfile", ())).split():
        place = name.replace("%h", who.home).replace("%u", who.user).replace("%U", str(who.uid))
        path = os.path.realpath(Path(who.home, place))
        if not os.path.exists(path):  # noqa: PTH110
            continue
        home = os.path.realpath(who.home)
        while path != "/":
            about = os.stat(path)  # noqa: PTH116
            yield path, about.st_mode & 0o7777, about.st_uid
            if path == home:
                return
            path = os.path.dirname(path)  # noqa: PTH120
        return
