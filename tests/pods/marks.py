"""Which images a test runs on, and how long their programs live at least."""

from __future__ import annotations

import pytest

from tests.pods.images import NAMES

# A program that is no MPI program and ends within milliseconds now and then hangs Open MPI 5.0's
# mpirun, with mpiboot or without (openpmix/prrte#2711, #2713): those of the tests stay a moment.
MOMENT = "sleep 0.3; "

_OTHERS = [pytest.param(name, marks=pytest.mark.full) for name in NAMES[:-1]]
# For a test in which the version of MPI has no part: gates, SSH, names, users, what a worker does.
# The quick gate runs it on one image, the whole matrix on each.
ONE_IMAGE = pytest.mark.parametrize("image", [NAMES[-1], *_OTHERS], indirect=True)

# For a test in which it matters who carries the launch agents' sessions: an ssh for each host, or
# the process with the gate's logins. A `client` of these is each launcher's MPIBOOT_SSH_CLIENT.
EACH_CLIENT = pytest.mark.parametrize(
    "client", ["auto", pytest.param("embedded", marks=pytest.mark.full)], indirect=True
)
