"""How many files a process may have open, whatever its limits are."""

from __future__ import annotations

import json
import resource
import subprocess
import sys

import pytest

from mpiboot.system import os_calls

NO_LIMIT = resource.RLIM_INFINITY
RAISE = """
import json, resource, sys
from mpiboot.system import os_calls
resource.setrlimit(resource.RLIMIT_NOFILE, tuple(map(int, sys.argv[1:])))
os_calls.raise_soft_limits()
print(json.dumps(resource.getrlimit(resource.RLIMIT_NOFILE)))
"""


@pytest.mark.parametrize(
    ("soft", "hard", "most"),
    [
        (1024, 4096, 4096),
        (1024, 1 << 20, 1 << 16),
        (1 << 18, 1 << 20, 1 << 18),  # never less than it was
        (1024, NO_LIMIT, 1 << 16),
        (NO_LIMIT, NO_LIMIT, 1 << 16),
    ],
)
def test_as_many_as_the_hard_limit_allows_and_no_job_needs_more(
    soft: int, hard: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    assert os_calls.most_open_files() == most


@pytest.mark.parametrize(("soft", "hard"), [(64, 512), (512, 512)])
def test_the_soft_limit_is_raised_to_that(soft: int, hard: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", RAISE, str(soft), str(hard)], capture_output=True, check=True
    )
    assert json.loads(done.stdout) == [hard, hard]
