"""Lines of output that name their rank; the user's own line comes first."""

from __future__ import annotations

import pytest

from mpiboot.core.model import Source
from mpiboot.job.plan import RANK_OUTPUT
from tests.fakes.plans import HYDRAS, MPIS, observed, planned, reason, warned

ON = {"tag_output": "on"}
OPTIONS = {
    "openmpi4": ["--tag-output"],
    "openmpi5": ["--output", "tag"],
    **{family: ["-prepend-rank"] for family in HYDRAS},
}
each = pytest.mark.parametrize("family", [*MPIS, *HYDRAS])


@each
@pytest.mark.parametrize("line", ["./train -l", "mpirun -n 2 ./train --tag-output : -n 2 ./b"])
def test_each_mpis_own_option_stands_first(family: str, line: str) -> None:
    plan = planned(line, observed(family), ON)
    own = OPTIONS[family]
    assert plan.argv[1 : 1 + len(own)] == (*own,)
    assert reason(plan, RANK_OUTPUT)[:2] == (" ".join(own), Source.FLAG)
    assert [item for item in warned(plan) if "cuts off" in item] or family != "openmpi4"
    assert RANK_OUTPUT not in {item.name for item in planned(line, observed(family)).decisions}


@pytest.mark.parametrize(
    ("family", "words"),
    [
        ("openmpi4", "--tag-output"),
        ("openmpi5", "--output timestamp"),
        ("openmpi5", "--output=dir=/logs"),
        ("openmpi5", "--tag-output"),
        *((family, word) for family in HYDRAS for word in ("-l", "-prepend-pattern %h:")),
        *((family, "-never-heard-of 1 -prepend-rank") for family in HYDRAS),
    ],
)
def test_what_the_line_says_comes_first(family: str, words: str) -> None:
    """Hydra's mpirun ends over an option that is given twice; 5.0 takes the first of two."""
    plan = planned(f"mpirun {words} -n 2 ./train", observed(family), ON)
    assert plan.argv.count(OPTIONS[family][0]) == words.split().count(OPTIONS[family][0])
    assert reason(plan, RANK_OUTPUT)[1:] == (Source.FLAG, "given on the mpirun line")
