"""Workers of another image than the launcher's keep their own PATH and its like."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from mpiboot.core.model import Source
from mpiboot.job.forward import extends
from mpiboot.job.plan import Plan
from mpiboot.job.plan_input import Observed
from tests.fakes.plans import POD, both, observed, planned, reason

OTHER = "/opt/conda/bin:/usr/bin:/bin"
BOTH = "w-0.job.ns.svc, w-1.job.ns.svc has another one of its own"


def two_images(seen: Observed, **paths: str) -> Observed:
    """The same, with workers that have these values of their own."""
    found = tuple(
        replace(worker, facts=replace(worker.facts, search_paths=tuple(paths.items())))
        for worker in seen.workers
        if worker.facts
    )
    return replace(seen, workers=found)


def handed_on(plan: Plan, name: str) -> bool:
    return ("-x", name) in pairwise(plan.argv)


@both
@pytest.mark.parametrize("name", ["PATH", "LD_LIBRARY_PATH", "PYTHONPATH"])
def test_workers_of_another_image_keep_their_own(family: str, name: str) -> None:
    seen = two_images(observed(family, {**POD, name: "/usr/bin:/bin"}), **{name: OTHER})
    plan = planned("mpirun ./train", seen)
    assert not handed_on(plan, name)
    message = f"{BOTH}; MPIBOOT_FORWARD={name} or -x hands on the launcher's"
    assert reason(plan, name) == ("the workers' own", Source.DETECTED, message)


@both
def test_the_launchers_goes_where_that_is_asked_for(family: str) -> None:
    seen = two_images(observed(family), PATH=OTHER)
    plan = planned("mpirun -x PATH ./train", seen)
    assert handed_on(plan, "PATH")
    asked = planned("./train", seen, {"forward": "PATH"})
    assert handed_on(asked, "PATH")


@both
def test_folders_that_a_script_has_added_are_for_the_job(family: str) -> None:
    environ = {**POD, "PATH": f"/opt/job/bin:{OTHER}"}
    plan = planned("mpirun ./train", two_images(observed(family, environ), PATH=OTHER))
    assert handed_on(plan, "PATH")
    assert not [item for item in plan.decisions if item.name == "PATH"]


@both
def test_workers_that_have_none_or_tell_none_get_the_launchers(family: str) -> None:
    environ = {**POD, "LD_LIBRARY_PATH": "/opt/lib"}
    assert handed_on(planned("./train", two_images(observed(family, environ))), "LD_LIBRARY_PATH")
    plain = observed(family)
    unknown = tuple(replace(worker, facts=None) for worker in plain.workers)
    assert handed_on(planned("./train", replace(plain, workers=unknown)), "PATH")


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
