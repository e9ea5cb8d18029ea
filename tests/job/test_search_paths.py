"""Workers of another image than the launcher's keep their own PATH and its like."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from mpiboot.core.model import Source
from mpiboot.job.forward import extends
from tests.fakes.plans import POD, both, observed, planned, reason

OTHER = "/opt/conda/bin:/usr/bin:/bin"
BOTH = "w-0.job.ns.svc, w-1.job.ns.svc has another one of its own"
LIBRARIES = "LD_LIBRARY_PATH"


@both
@pytest.mark.parametrize(
    ("name", "here", "there", "line", "forward", "handed_on"),
    [
        *((name, "/usr/bin", OTHER, "", "", False) for name in ("PATH", LIBRARIES, "PYTHONPATH")),
        # Where that is wanted the launcher's goes all the same.
        ("PATH", "/usr/bin", OTHER, "-x PATH", "", True),
        ("PATH", "/usr/bin", OTHER, "", "PATH", True),
        # Folders that a script has added are for the job.
        ("PATH", f"/opt/job/bin:{OTHER}", OTHER, "", "", True),
        # Workers that have none, or whose facts are not known.
        (LIBRARIES, "/opt/lib", "", "", "", True),
        ("PATH", "/usr/bin", None, "", "", True),
    ],
)
def test_which_search_path_ranks_get(
    family: str,
    name: str,
    here: str,
    there: str | None,
    line: str,
    forward: str,
    *,
    handed_on: bool,
) -> None:
    seen = observed(family, {**POD, name: here})
    workers = (
        replace(
            item,
            facts=item.facts
            and (None if there is None else replace(item.facts, search_paths=((name, there),))),
        )
        for item in seen.workers
    )
    plan = planned(
        f"mpirun {line} ./train", replace(seen, workers=tuple(workers)), {"forward": forward}
    )
    assert (("-x", name) in pairwise(plan.argv)) == handed_on
    if handed_on:
        assert name not in {item.name for item in plan.decisions}
    else:
        message = f"{BOTH}; MPIBOOT_FORWARD={name} or -x hands on the launcher's"
        assert reason(plan, name) == ("the workers' own", Source.DETECTED, message)


@pytest.mark.parametrize(
    ("path", "other", "does"),
    [
        ("/a:/b", "/a:/b", True),
        ("/x:/a:/y:/b:/z", "/a:/b", True),
        ("/a", "", True),
        ("/a", "/a:", True),
        ("/b:/a", "/a:/b", False),
        ("/a", "/a:/b", False),
        ("/a/b", "/a", False),
    ],
)
def test_a_path_that_has_all_of_another_one(path: str, other: str, *, does: bool) -> None:
    assert extends(path, other) is does
