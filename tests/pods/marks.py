"""Which images a test runs on, and how long their programs live at least."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.pods.images import NAMES

# A program that is no MPI program and ends within milliseconds now and then hangs Open MPI 5.0's
# mpirun, with mpiboot or without (openpmix/prrte#2711, #2713): those of the tests stay a moment.
MOMENT = "sleep 0.3; "

OLD, NEW = NAMES


def _one(quick: str) -> pytest.MarkDecorator:
    rows = [pytest.param(name, marks=() if name == quick else pytest.mark.full) for name in NAMES]
    return pytest.mark.parametrize("image", rows, indirect=True)


# For a test in which MPI has no part: gates, SSH, names, users, what a worker does.
NO_MPI = pytest.mark.parametrize("image", [NEW], indirect=True)
# For one whose differences between MPIs are rows of tables that other tests hold, too. The quick
# gate runs it on one image, the whole matrix on each.
ONE_IMAGE, OLD_IMAGE = _one(NEW), _one(OLD)


def each(quick: str, *others: str) -> pytest.MarkDecorator:
    """The `name` of each of these images; the quick gate has the first alone."""
    more = [pytest.param(name, marks=pytest.mark.full) for name in others]
    return pytest.mark.parametrize("name", [quick, *more])


def crossed(name: str, values: Sequence[object], ids: Sequence[str] = ()) -> pytest.MarkDecorator:
    """Each image with each value; the quick gate has each value once, on the images in turn."""
    return pytest.mark.parametrize(
        ("image", name),
        [
            pytest.param(
                image,
                value,
                marks=() if at % 2 == NAMES.index(image) else pytest.mark.full,
                id=f"{image}-{ids[at] if ids else value}",
            )
            for image in NAMES
            for at, value in enumerate(values)
        ],
        indirect=["image"],
    )
