from __future__ import annotations

import pytest

from mpiboot.core.launch_spec import NOT_FOR_RANKS
from tests.fakes.launches import spec


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
    assert spec(hosts=hosts, argv=argv, remote_hosts=("w-1",)).local == local


@pytest.mark.parametrize(
    ("ports", "listed"), [("", [0]), ("7000-7002", [7002, 7001, 7000]), ("7000-7000", [7000])]
)
def test_ports_are_tried_from_the_last_on(ports: str, listed: list[int]) -> None:
    flags = {"port_range": ports} if ports else {}
    assert list(spec(flags=flags).free_ports) == listed
