"""IBM Spectrum MPI, which can't be had here: what it would get, by what is known of it. Not run.

Its plan on each platform is in ``tests/data/plans``.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from mpiboot.core.model import MpiFamily, Source
from mpiboot.job.mpirun_line import read
from tests.fakes.plans import OPERATOR, POD, failing, observed, planned, reason
from tests.fakes.platform_plans import KNOWN

MPI = KNOWN["spectrum"]
ENVIRON = {**POD, **OPERATOR}
SEEN = replace(observed(environ=ENVIRON, worker_mpi=MPI), mpi=MPI)


def test_it_is_known_by_a_setting_and_its_messages_are_its_own_matter() -> None:
    assert reason(planned(seen=SEEN, flags={"mpi": "spectrum"}), "mpi")[1] is Source.FLAG
    moved = planned(seen=SEEN, flags={"mpi_network": "data"})
    assert (failing(moved), "OMPI_MCA_pml" in moved.set_env) == ([], False)


@pytest.mark.parametrize("word", ["-tcp", "-TCP", "-pami", "-PAMI"])
def test_its_own_options_hide_nothing_of_a_line(word: str) -> None:
    words = f"mpirun {word} -n 4 -x A ./train --epochs 3".split()
    found = read(words, MpiFamily.SPECTRUM)
    assert (found.unknown, found.np, found.program) == ("", 4, "./train")
    plan = planned(words, SEEN)
    assert failing(plan) == []
    assert [*plan.argv[-len(words) + 1 :]] == words[1:]
    assert read(words, MpiFamily.OPENMPI4).unknown == word
