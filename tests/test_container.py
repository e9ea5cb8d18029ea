"""What images are made from: locked packages, and what the recipes say of a base that won't do."""

from __future__ import annotations

import os
import re
import subprocess
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.pages import ROOT

LOCKS = sorted((ROOT / "container/locks").glob("*.lock"))
# Those that mpiboot supports, and the images' own.
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")


def pins(lock: Path) -> list[tuple[Requirement, int]]:
    """Each requirement of a lock, and how many hashes it has."""
    text = lock.read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.lstrip().startswith("#")]
    return [
        (Requirement(line.partition("--hash")[0].strip()), line.count("--hash=sha256:"))
        for line in lines
    ]


def satisfied(wanted: Requirement, lock: Path, python: str) -> bool:
    """Whether pip, without looking for dependencies, would install what is wanted."""
    environment = {"python_version": python, "python_full_version": f"{python}.0"}
    versions = [
        next(iter(pin.specifier)).version
        for pin, _ in pins(lock)
        if canonicalize_name(pin.name) == canonicalize_name(wanted.name)
        and (pin.marker is None or pin.marker.evaluate(environment))
    ]
    return len(versions) == 1 and versions[0] in wanted.specifier


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: str(lock.stem))
def test_a_lock_names_one_version_of_each_package_with_its_hashes(lock: Path) -> None:
    assert pins(lock)
    for pin, hashes in pins(lock):
        assert re.fullmatch(r"==[\w.]+", str(pin.specifier)), pin
        assert hashes > 0, pin


@pytest.mark.parametrize("python", PYTHONS)
def test_the_lock_has_what_the_project_asks_for(python: str) -> None:
    """Run scripts/lock --keep where it doesn't."""
    project = [Requirement(line) for line in metadata.requires("mpiboot") or ()]
    wanted = [item for item in project if "extra" not in str(item.marker or "")]
    assert len(wanted) >= 4
    lock = ROOT / "container/locks/mpiboot.lock"
    assert [str(item) for item in wanted if not satisfied(item, lock, python)] == []


def test_the_lock_has_what_the_wheel_is_built_with() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    section = re.search(r"^requires = \[(.*?)\]", text, re.MULTILINE | re.DOTALL)
    assert section
    wanted = [Requirement(item) for item in re.findall(r'"(.+?)"', section[1])]
    assert wanted
    lock = ROOT / "container/locks/build.lock"
    assert [str(item) for item in wanted if not satisfied(item, lock, "3.13")] == []


def test_a_version_that_the_project_does_not_allow_is_seen() -> None:
    lock = ROOT / "container/locks/mpiboot.lock"
    assert not satisfied(Requirement("rich>=9999"), lock, "3.13")
    assert not satisfied(Requirement("unheard-of"), lock, "3.13")


def programs(folder: Path, **scripts: str) -> dict[str, str]:
    """An environment whose PATH has the shell's own programs, and these."""
    for name in ("dirname", "sed", "sh", "cat"):
        (folder / name).symlink_to(f"/bin/{name}")
    for name, script in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    return {"PATH": str(folder)}


def install(step: str, env: dict[str, str]) -> str:
    argv = ["/bin/sh", str(ROOT / "container/install"), step]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    return done.stderr


@pytest.mark.parametrize("step", ["packages", "pip"])
def test_a_base_that_is_not_debians(tmp_path: Path, step: str) -> None:
    said = install(step, programs(tmp_path))
    assert said.startswith("install: this base has no apt-get: ")
    assert said.count("\n") == 1


def test_a_base_whose_python_is_too_old(tmp_path: Path) -> None:
    env = programs(tmp_path, **{"apt-get": ":", "python3": '[ "$1" = -m ] || echo 3.9'})
    said = install("pip", env)
    assert said.startswith("install: this base has Python 3.9, and mpiboot needs 3.10: ")


def images(*options: str, **env: str) -> subprocess.CompletedProcess[str]:
    argv = [*options, str(ROOT / "scripts/images"), "mpiboot"]
    environ = {**os.environ, **env}
    return subprocess.run(argv, env=environ, capture_output=True, text=True, check=False)


def test_images_without_root(tmp_path: Path) -> None:
    # In a user namespace without a map nobody is root.
    done = images(*["unshare", "--user"] * (os.getuid() == 0), MPIBOOT_CACHE=str(tmp_path))
    if "unshare failed" in done.stderr:
        pytest.skip("no user namespace can be made here")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("images: needs root, ")
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.getuid() != 0, reason="needs root")
def test_images_without_buildah_and_without_a_way_to_install_it(tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    for program in Path("/usr/bin").iterdir():
        if program.name not in {"buildah", "mmdebstrap", "apt-get"}:
            (folder / program.name).symlink_to(program)
    done = images(PATH=str(folder), MPIBOOT_CACHE=str(tmp_path / "cache"))
    assert done.returncode == 1
    said = done.stderr.splitlines()[-1]
    assert said.startswith("images: needs buildah and mmdebstrap, and there is no apt-get")
    assert "podman build --file container/mpiboot.Containerfile" in said


@pytest.mark.skipif(os.getuid() != 0, reason="needs root")
def test_images_of_a_processor_for_which_there_is_no_emulator(tmp_path: Path) -> None:
    argv = [str(ROOT / "scripts/images"), "--arch", "pdp11", "mpiboot"]
    env = {**os.environ, "MPIBOOT_CACHE": str(tmp_path)}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("images: no emulator for pdp11 is registered ")
    assert done.stderr.count("\n") == 1
