"""Where a program of one's own meets its like: on its line, in variables; and why no name comes."""

from __future__ import annotations

import pytest

from mpiboot.job import program_words
from mpiboot.job.program_words import Rendezvous

NOT_INDEXED = "a Job that is not indexed has no pod named trainer-0"
INDEXED = {"JOB_COMPLETION_INDEX": "1"}


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


@pytest.mark.parametrize(
    ("host", "own", "names", "environ", "message", "hint"),
    [
        ("trainer-0", "trainer-x7k2p", (), {}, NOT_INDEXED, "completionMode: Indexed"),
        ("trainer-0.trainer", "trainer-x7k2p", (), {}, NOT_INDEXED, "completionMode: Indexed"),
        # Another object's pod, an indexed one, or one whose name tells nothing.
        ("head-0", "trainer-x7k2p", (), {}, "", ""),
        ("trainer-0.trainer", "trainer-1", (), INDEXED, "", ""),
        ("trainer-0", "trainer-1", (), {}, "", ""),
        ("trainer-0", "trainer", (), {}, "", ""),
        ("trainer", "trainer-x7k2p", (), {}, "", ""),
        ("10.0.0.7", "trainer-x7k2p", (), {}, "", ""),
        # A short name is known nowhere.
        (
            "trainer-0",
            "trainer-1",
            ("trainer-1", "trainer-1.svc-a.ns.svc.cluster.local"),
            INDEXED,
            "known below its Service alone",
            "write trainer-0.svc-a",
        ),
        (
            "trainer-0",
            "trainer-1",
            (),
            INDEXED,
            "known below its Service alone",
            "write trainer-0.SERVICE, with `subdomain: SERVICE`",
        ),
    ],
)
def test_a_name_that_no_pod_has_is_told(
    host: str, own: str, names: tuple[str, ...], environ: dict[str, str], message: str, hint: str
) -> None:
    found = program_words.why_no_name(host, own, names, environ)
    assert message in found[0]
    assert hint in found[1]
    assert bool(found[0]) == bool(message)
