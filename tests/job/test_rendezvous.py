"""Where a program of one's own meets its like: on its line, in variables."""

from __future__ import annotations

import pytest

from mpiboot.job import program_words
from mpiboot.job.program_words import Rendezvous


@pytest.mark.parametrize(
    ("line", "environ", "host", "by"),
    [
        ("torchrun --rdzv_endpoint=trainer-0:29500 a.py", {}, "trainer-0", "--rdzv-endpoint"),
        ("torchrun --rdzv-endpoint trainer-0 a.py", {}, "trainer-0", "--rdzv-endpoint"),
        ("torchrun --rdzv-endpoint [fd00::1]:29500 a.py", {}, "fd00::1", "--rdzv-endpoint"),
        ("torchrun --rdzv-endpoint=fd00::1 a.py", {}, "fd00::1", "--rdzv-endpoint"),
        (
            "python -m torch.distributed.run --master_addr t-0.t --master_port 9 a.py",
            {},
            "t-0.t",
            "--master-addr",
        ),
        (
            "torchrun --master-addr b --rdzv-endpoint a:1 x.py",
            {"PET_RDZV_ENDPOINT": "c:1"},
            "a",
            "--rdzv-endpoint",
        ),
        ("torchrun x.py", {"PET_RDZV_ENDPOINT": "c:1"}, "c", "PET_RDZV_ENDPOINT"),
        (
            "torchrun --rdzv-endpoint= x.py",
            {"PET_RDZV_ENDPOINT": "c:1"},
            "c",
            "PET_RDZV_ENDPOINT",
        ),
        (
            "torchrun x.py",
            {"PET_MASTER_ADDR": "d", "MASTER_ADDR": "e"},
            "d",
            "PET_MASTER_ADDR",
        ),
        ("python x.py", {"MASTER_ADDR": " e ", "MASTER_PORT": "1"}, "e", "MASTER_ADDR"),
    ],
)
def test_the_host_to_meet_at_is_what_the_strongest_says(
    line: str, environ: dict[str, str], host: str, by: str
) -> None:
    assert program_words.find_rendezvous(line.split(), environ) == Rendezvous(host, by)


@pytest.mark.parametrize(
    ("line", "environ"),
    [
        ("torchrun --standalone x.py", {"MASTER_ADDR": "e"}),
        ("python x.py", {"MASTER_ADDR": ""}),
        ("torchrun --rdzv-endpoint", {}),
        ("torchrun --rdzv-endpoint=:29500", {}),
        ("torchrun --rdzv-endpoints=a x.py", {}),
    ],
)
def test_where_nothing_names_a_host_nobody_is_waited_for(
    line: str, environ: dict[str, str]
) -> None:
    assert program_words.find_rendezvous(line.split(), environ) is None
