"""What a script's process is started with, and what is read of the script."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NoReturn

import pytest

from mpiboot.core import log
from mpiboot.core.launch_spec import ParentOptions, ParentTask
from mpiboot.core.setting_types import LogFormat, LogLevel
from mpiboot.core.settings import resolve
from mpiboot.hosts import hostfiles
from mpiboot.hosts.hostfiles import HostfilePath
from mpiboot.job import program_words
from mpiboot.launcher import role
from mpiboot.launcher.role import RunsOnce
from mpiboot.system import control_groups

ONCE = RunsOnce("it calls mpirun", reaches_hosts=False)
REACHES = RunsOnce("it logs in to hosts", reaches_hosts=True)
Became = tuple[ParentTask, ParentOptions, list[str], Mapping[str, str]]


class Stays(Exception):  # noqa: N818 - nothing went wrong
    """This process would be the parent now."""


@pytest.fixture
def became(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Became]]:
    """What this process would have become."""
    found: list[Became] = []

    def parent(*given: object) -> NoReturn:
        found.append(given)  # type: ignore[arg-type]
        raise Stays

    monkeypatch.setattr(role, "become_parent", parent)
    monkeypatch.setattr(role, "start_child", lambda *given, **named: [repr((given[1:], named))])
    log.configure(form=LogFormat.JSON)
    yield found
    log.configure()


def run(
    folder: Path, found: RunsOnce, program: tuple[str, ...] = ("sh", "x"), /, **flags: str
) -> None:
    given = {"runtime_dir": str(folder / "run"), **flags}
    environ = {"PATH": os.environ["PATH"], "A": "b"}
    with pytest.raises(Stays):
        role._run_script(resolve(given, environ), program, environ, found)


@pytest.mark.parametrize("attempt", ["me@now@1", ""])
def test_a_script_has_its_settings_its_shims_and_its_name_for_workers(
    became: list[Became],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    attempt: str,
) -> None:
    monkeypatch.setattr(role, "new_attempt", lambda *_: attempt)
    monkeypatch.setattr(control_groups, "kills", lambda: 3)
    flags = {
        "log_level": "debug",
        "log_format": "json",
        "termination_log": "/t",
        "hold_on_failure": "60",
        "grace": "7",
    }
    run(tmp_path, ONCE, **flags)
    ((task, options, words, env),) = became
    folder, _, path = env["PATH"].partition(":")
    assert (task, words, path) == (ParentTask.SCRIPT, ["sh", "x"], os.environ["PATH"])
    assert (Path(folder).name, (Path(folder) / "mpirun").is_symlink()) == ("script", True)
    last = str(Path(folder).parent / "launcher") if attempt else ""
    wanted = ParentOptions(LogLevel.DEBUG, LogFormat.JSON, "/t", 60.0, 17.0, last, 3)
    assert options == wanted
    named = {"MPIBOOT_KEEP_KEY": "1", "MPIBOOT_ATTEMPT": attempt} if attempt else {}
    more = {name: value for name, value in env.items() if name not in {"PATH", "A", "MPIBOOT_ROLE"}}
    given = {f"MPIBOOT_{name.upper()}": value for name, value in flags.items()}
    assert more == {**given, "MPIBOOT_RUNTIME_DIR": str(tmp_path / "run"), **named}
    assert (env["A"], env["MPIBOOT_ROLE"]) == ("b", "launcher")
    told = json.loads(capfd.readouterr().err)
    assert told["event"] == "script"
    assert told["message"] == (
        "it calls mpirun: mpiboot checks the hosts and plans for each of its calls of mpirun; "
        "it starts at once"
    )


@pytest.mark.parametrize("source", ["setting", "platform", "file", "none", "closed"])
def test_hosts_are_waited_for_where_anything_names_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, source: str
) -> None:
    environ, resolved = {"A": "b"}, resolve({}, {})
    there = HostfilePath("x", "y")
    default = tmp_path / "hostfile"
    if source == "file":
        default.touch()

    def by_setting(*given: object) -> HostfilePath | None:
        assert given == (resolved, environ)
        return there if source == "setting" else None

    def by_platform(*given: object) -> HostfilePath | None:
        assert given == (environ, os.uname().nodename)
        return there if source == "platform" else None

    def candidates(*given: object) -> tuple[HostfilePath, ...]:
        assert given == ("", str(resolved.given["hostfile"]), environ)
        return (HostfilePath(str(default), "default"),)

    monkeypatch.setattr(hostfiles, "hosts_by_setting", by_setting)
    monkeypatch.setattr(hostfiles, "hosts_by_platform", by_platform)
    monkeypatch.setattr(hostfiles, "candidates", candidates)
    why = "" if source in {"setting", "platform", "file"} else "there is no hostfile"
    message = role._no_gate(resolved, environ, REACHES)
    assert message == (f"{why} ({default}), so it starts at once" if why else "")


@pytest.mark.parametrize(
    ("program", "flags", "found"),
    [
        (("mpirun", "./a"), {"script": "on"}, None),
        (("ssh", "w-0"), {"script": "off"}, None),
        (("./train",), {"script": "on"}, RunsOnce("--script", reaches_hosts=True)),
        (
            ("horovodrun", "x"),
            {},
            RunsOnce("horovodrun logs in to hosts itself", reaches_hosts=True),
        ),
        (
            ("sleep", "infinity"),
            {},
            RunsOnce("sleep infinity is for a look around", reaches_hosts=False),
        ),
        (("./train",), {}, None),
        (
            ("sh", "-c", "mpirun a; mpirun b; mpiexec c"),
            {},
            RunsOnce("its script calls mpirun and mpiexec", reaches_hosts=False),
        ),
        (
            ("sh", "-c", "mpirun a; ssh b"),
            {},
            RunsOnce("its script calls mpirun and ssh", reaches_hosts=True),
        ),
        (("sh", "-c", "echo"), {}, None),
    ],
)
def test_a_program_is_judged_by_what_it_is_or_calls(
    program: tuple[str, ...], flags: dict[str, str], found: RunsOnce | None
) -> None:
    assert role.runs_once(resolve(flags, {}), program, {}) == found


def test_a_script_is_found_as_a_shell_finds_it_and_its_beginning_is_read(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    for name, data in (
        ("run.sh", b"#!/bin/sh\n\xffmpirun a\n"),
        ("long.sh", b"#" * 65535 + b"\nmpirun a\n"),
        ("binary", b"mpirun\0a"),
    ):
        (tmp_path / "bin" / name).write_bytes(data)
        (tmp_path / "bin" / name).chmod(0o755)
    environ = {"PATH": str(tmp_path / "bin")}
    path = str(tmp_path / "bin" / "run.sh")

    def read(*program: str) -> tuple[str, str]:
        return role._script(program_words.script_of(program), environ)

    assert read("run.sh") == (path, "#!/bin/sh\n\ufffdmpirun a\n")
    assert read("sh", "-c", "mpirun a") == ("", "mpirun a")
    assert read("binary") == (str(tmp_path / "bin/binary"), "")
    assert read("gone.sh") == ("gone.sh", "")
    assert len(read("long.sh")[1]) == 65536
    # An interpreter takes its script's path as it is.
    assert read("python3", "run.sh") == ("run.sh", "")
    assert read("python3", path)[0] == path
