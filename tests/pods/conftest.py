"""Fixtures for tests on the rig; without root or runc they are skipped, or fail when required."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest

from tests.conftest import FAILED, REQUIRED
from tests.pods import images
from tests.pods.cluster import Cluster
from tests.pods.images import Image


def _missing() -> str | None:
    if os.geteuid() != 0:
        return "the rig needs root"
    absent = [tool for tool in ("runc", "ip", "nsenter", "unshare") if shutil.which(tool) is None]
    return f"the rig needs {', '.join(absent)}" if absent else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if {"cluster", "image"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.pods)


@pytest.fixture(scope="session")
def rig() -> None:
    """A machine that can make pods; MPIBOOT_RIG=required turns a skip into a failure."""
    reason = _missing()
    if reason and REQUIRED:
        pytest.fail(reason)
    if reason:
        pytest.skip(reason)


@pytest.fixture(params=images.NAMES)
def image(rig: None, request: pytest.FixtureRequest) -> Image:
    """Each of the images in turn; `indirect` parameters choose others."""
    return images.image(request.param)


@pytest.fixture
def one(rig: None) -> Image:
    """One image, for tests in which the MPI has no part."""
    return images.image(images.NAMES[0])


@pytest.fixture
def plain(rig: None) -> Image:
    """One image without the test programs: no compiler is needed for it."""
    return images.image(images.NAMES[-1], programs=False)


@pytest.fixture
def cluster(rig: None, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """An empty cluster; when the test fails, the output of its pods is shown."""
    with Cluster() as made:
        yield made
        if request.node.stash[FAILED]:
            for pod in (item for item in made.pods if item.restarts >= 0):  # it was started
                for stream, text in (("stdout", pod.stdout()), ("stderr", pod.stderr())):
                    if text:
                        print(f"--- {pod.spec.name} {stream}\n{text[-4000:]}")  # noqa: T201
