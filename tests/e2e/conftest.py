"""A namespace per test; without a cluster all of these are skipped, with one line."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from functools import cache

import pytest

from tests.conftest import FAILED
from tests.e2e.cluster import KubectlError, Namespace, kubectl, kubectl_words


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "namespace" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.e2e)


@cache
def _missing() -> str:
    """Why there is no cluster to run in; empty where there is one."""
    program = kubectl_words()[0]
    if shutil.which(program) is None:
        return f"no {program} on PATH"
    if not os.environ.get("MPIBOOT_E2E_IMAGE"):
        return "no image is named: run these by scripts/e2e"
    try:
        kubectl("get", "crd", "mpijobs.kubeflow.org", "--request-timeout=10s")
    except KubectlError as wrong:
        return f"no cluster with the MPI Operator (KUBECONFIG): {str(wrong).splitlines()[-1]}"
    return ""


@pytest.fixture
def namespace(request: pytest.FixtureRequest) -> Iterator[Namespace]:
    """A namespace of its own; `indirect` parameters are its labels."""
    if missing := _missing():
        pytest.skip(missing)
    made = Namespace(getattr(request, "param", {}))
    try:
        yield made
        if request.node.stash[FAILED]:
            print(made.shown())  # noqa: T201 - pytest shows it with the failure
    finally:
        made.end()
