"""On what terms pods run: a line of the plan each, and none where all is as usual."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mpiboot.core.model import Level, Source
from mpiboot.core.settings import resolve
from mpiboot.job.plan import make
from mpiboot.job.plan_input import LaunchPaths
from tests.fakes.plans import POD, observed, planned, reason

both = pytest.mark.parametrize("family", ["openmpi4", "openmpi5"])


@both
def test_workers_with_the_embedded_ssh_server_are_told_with_the_reason(family: str) -> None:
    seen = observed(family)
    assert "ssh-server" not in [item.name for item in planned("./train", seen).decisions]
    first = seen.workers[0]
    assert first.facts is not None
    odd = replace(first.facts, sshd="embedded", sshd_reason="uid 7 has no passwd entry")
    workers = (replace(first, facts=odd), *seen.workers[1:])
    plan = planned("./train", replace(seen, workers=workers))
    message = f"uid 7 has no passwd entry: {first.host.name}"
    assert reason(plan, "ssh-server") == ("embedded", Source.DETECTED, message)


def test_a_port_of_sshd_that_is_not_the_usual_one_is_told_with_its_hosts() -> None:
    seen = observed()
    first, second = seen.workers
    plan = planned("./train", replace(seen, workers=(replace(first, port=2222), second)))
    message = f"the job's sshd answers there: {first.host.name}"
    assert reason(plan, "ssh-port") == ("2222", Source.DETECTED, message)


@pytest.mark.parametrize(
    ("folder", "environ", "rows"),
    [
        ("/run/mpiboot/launcher", {}, []),
        ("/run/x", {"MPIBOOT_RUNTIME_DIR": "/run"}, ["private-folder environment"]),
        ("/tmp/mpiboot-7", {}, ["private-folder detected"]),
        ("/run/mpiboot/launcher", {"HOME": "/run/mpiboot/launcher"}, ["home detected"]),
        ("/x", {"TMPDIR": "/x/tmp"}, ["tmpdir detected", "private-folder detected"]),
    ],
)
def test_folders_of_the_launcher_that_are_not_the_usual_ones_are_shown(
    folder: str, environ: dict[str, str], rows: list[str]
) -> None:
    seen = observed(environ={**POD, **environ})
    plan = make(seen, resolve({}, seen.environ), LaunchPaths(f"{folder}/launch-17", "/opt/agent"))
    names = ("home", "tmpdir", "private-folder")
    found = [f"{item.name} {item.source.value}" for item in plan.decisions if item.name in names]
    assert found == rows


@pytest.mark.parametrize(
    ("family", "name", "level"),
    [
        ("openmpi4", "OMPI_UNIVERSE_SIZE", Level.FAIL),
        ("openmpi4", "OMPI_COMM_WORLD_LOCAL_RANK", Level.WARN),
        ("openmpi4", "PMIX_RANK", Level.WARN),
        ("openmpi5", "OMPI_UNIVERSE_SIZE", Level.WARN),
        ("mpich", "OMPI_UNIVERSE_SIZE", Level.WARN),
    ],
)
def test_a_ranks_variables_in_the_pod_are_told(family: str, name: str, level: Level) -> None:
    """Of each that was tried mpirun 4.1 alone refuses, and over one of them."""
    plan = planned("mpirun -n 2 ./a", observed(family, environ={**POD, name: "1"}))
    (only,) = [item for item in plan.findings if item.message.startswith(f"{name} in this pod's")]
    assert (only.check, only.level) == ("usage", level)
