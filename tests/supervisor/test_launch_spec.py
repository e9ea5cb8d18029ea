from __future__ import annotations

from dataclasses import replace

import pytest

from mpiboot.core.launch_spec import NOT_FOR_RANKS, LaunchSpec

ARGV = ("mpirun", "./a")
SPEC = LaunchSpec(ARGV, "openmpi4", ("w-1",), 2, 4, 30.0, 20.0, "/launch")


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
