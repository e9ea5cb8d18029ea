from __future__ import annotations

from dataclasses import replace

import pytest

from mpiboot.core.launch_names import NOT_FOR_RANKS, outside_launch
from mpiboot.core.launch_spec import (
    Failure,
    LaunchSpec,
    ParentOptions,
    RemoteHost,
    Result,
    from_line,
    to_line,
)
from mpiboot.core.setting_types import LogFormat, LogLevel

SPEC = LaunchSpec(
    argv=("mpirun", "./a"),
    family="openmpi4",
    remote_hosts=(RemoteHost("w-1", "10.0.0.1", 22),),
    hosts=2,
    ranks=4,
    launch_timeout=30.0,
    grace=20.0,
    folder="/launch",
)


@pytest.mark.parametrize(
    "result",
    [
        SPEC,
        Failure(68, "names-unresolved", "names-unresolved: w-1\n"),
        Failure(143, "signal", "", held=False),
    ],
)
def test_each_result_of_the_child_is_read_back_as_it_was_written(result: Result) -> None:
    line = to_line(result)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert from_line(line) == result


@pytest.mark.parametrize(
    "line",
    [b"{}\n", b'{"LaunchSpec": {}}\n', b'{"Failure": {"x": 1}}', b"x\n"],
)
def test_what_is_no_result_is_refused(line: bytes) -> None:
    with pytest.raises((TypeError, KeyError, ValueError)):
        from_line(line)


@pytest.mark.parametrize(
    "options",
    [
        ParentOptions(),
        ParentOptions(
            LogLevel.DEBUG, LogFormat.JSON, "/dev/termination-log", 5.0, 20.0, "/launches", 2
        ),
    ],
)
def test_options_are_read_back_as_they_were_written(options: ParentOptions) -> None:
    read = ParentOptions.from_json(options.to_json())
    assert read == options
    assert (type(read.log_level), type(read.log_format)) == (LogLevel, LogFormat)


def test_where_nothing_is_asked_for_little_is_said_and_nothing_is_held() -> None:
    assert ParentOptions() == ParentOptions(LogLevel.INFO, LogFormat.HUMAN, "", 0.0, 0.0, "")
    with pytest.raises(TypeError):
        ParentOptions.from_json(ParentOptions().to_json().replace("grace", "colour"))


@pytest.mark.parametrize(
    ("hosts", "argv", "local"),
    [
        (2, ("mpirun",), True),
        (1, ("mpirun",), False),
        (2, ("mpirun", NOT_FOR_RANKS), False),  # its ranks don't get the variable
    ],
)
def test_ranks_on_the_launcher_would_get_what_is_mpiruns(
    hosts: int, argv: tuple[str, ...], *, local: bool
) -> None:
    assert replace(SPEC, hosts=hosts, argv=argv).local == local


@pytest.mark.parametrize(
    ("ports", "listed"), [("", [0]), ("7000-7002", [7002, 7001, 7000]), ("7000-7000", [7000])]
)
def test_ports_are_tried_from_the_last_on(ports: str, listed: list[int]) -> None:
    assert list(replace(SPEC, ports=ports).free_ports) == listed


def test_mpiruns_environment_is_the_parents_with_what_the_plan_changes() -> None:
    spec = replace(SPEC, set_env={"A": "2", "N": "1"}, unset_env=("GONE", "N"))
    environ = {"A": "1", "GONE": "x", "N": "0", "KEPT": "y"}
    assert spec.environment(environ) == {"A": "2", "N": "1", "KEPT": "y"}
    assert environ["A"] == "1"


def test_who_has_no_mark_is_not_ended_with_the_launch() -> None:
    marks = {"MPIBOOT_LAUNCH_DIR": "/x", "MPIBOOT_LAUNCH_ID": "y", "MPIBOOT_NOTICE": "1", "A": "b"}
    assert outside_launch(marks) == {"MPIBOOT_NOTICE": "1", "A": "b"}
