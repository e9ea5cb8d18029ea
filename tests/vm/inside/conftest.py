from __future__ import annotations

from collections.abc import Iterator

import pytest

from mpiboot.network import libraries
from tests.vm.inside.machine import clean, run, wait_for


@pytest.fixture(scope="session", autouse=True)
def modules() -> None:
    run("modprobe ib_uverbs")
    run("modprobe rdma_rxe")
    run("modprobe e1000")


@pytest.fixture(scope="session", autouse=True)
def time_for_the_library() -> Iterator[None]:
    """A program that takes milliseconds elsewhere takes seconds in this emulated machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(libraries, "TIMEOUT_S", 120.0)
        patch.setattr(libraries, "find", lambda _: {})
        yield


@pytest.fixture(autouse=True)
def tidy() -> Iterator[None]:
    yield
    clean()


@pytest.fixture
def exclusive() -> Iterator[None]:
    """Exclusive network namespace mode, which can be set while no other namespace is alive."""

    def switch(mode: str) -> bool:
        try:
            run(f"rdma system set netns {mode}")
        except AssertionError as error:
            # A namespace that was deleted lives on until the kernel has taken it down.
            if "busy" not in str(error):
                raise
            return False
        return True

    wait_for(lambda: switch("exclusive"))
    yield
    clean()
    wait_for(lambda: switch("shared"))
