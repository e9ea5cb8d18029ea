"""What images are made from: locked packages, and what the recipes say of a base that won't do."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.fakes.programs import program
from tests.pages import ROOT, copied

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
def test_the_locks_have_what_the_project_asks_for(python: str) -> None:
    """Run scripts/lock --keep where they don't; the wheel is built with the newest."""
    project = [Requirement(line) for line in metadata.requires("mpiboot") or ()]
    wanted = [item for item in project if "extra" not in str(item.marker or "")]
    assert len(wanted) >= 4
    lock = ROOT / "container/locks/mpiboot.lock"
    assert [str(item) for item in wanted if not satisfied(item, lock, python)] == []
    for absent in ("click>=9999", "unheard-of"):
        assert not satisfied(Requirement(absent), lock, python)
    text = (ROOT / "pyproject.toml").read_text()
    section = re.search(r"^requires = \[(.*?)\]", text, re.MULTILINE | re.DOTALL)
    assert section
    builds = [Requirement(item) for item in re.findall(r'"(.+?)"', section[1])]
    assert builds
    lock = ROOT / "container/locks/build.lock"
    assert [str(item) for item in builds if not satisfied(item, lock, "3.13")] == []


def test_the_bases_are_named_by_digest_and_each_image_has_one() -> None:
    lines = (ROOT / "container/locks/bases").read_text().splitlines()[1:]
    named = dict(line.split(" ") for line in lines)
    assert all(re.fullmatch(r"\S+/debian@sha256:[0-9a-f]{64}", base) for base in named.values())
    recipes = "".join(path.read_text() for path in (ROOT / "container").glob("*.Containerfile"))
    suites = re.findall(r"^ARG BASE=.*:(.*)-slim$", recipes, re.MULTILINE)
    assert set(suites) == set(named)


def test_the_bases_are_renewed_where_a_registry_answers(tmp_path: Path) -> None:
    """In a copy, by what skopeo says of the registry, which is not within reach here."""
    env = programs(tmp_path, skopeo='echo "sha256:$(echo "$4" | sha256sum | cut -c1-64)"')
    env = {**os.environ, "PATH": f"{env['PATH']}:{os.environ['PATH']}"}
    folder = copied(tmp_path / "copy")
    subprocess.run([str(folder / "scripts/lock"), "--bases"], env=env, check=True)
    names = [f"docker://docker.io/library/debian:{suite}-slim" for suite in ("bookworm", "trixie")]
    digests = [hashlib.sha256(f"{name}\n".encode()).hexdigest() for name in names]
    made = (folder / "container/locks/bases").read_text()
    assert [line.rpartition(":")[2] for line in made.splitlines()[1:]] == digests


def programs(folder: Path, **scripts: str) -> dict[str, str]:
    for name in ("dirname", "sed", "sh", "cat"):
        (folder / name).symlink_to(f"/bin/{name}")
    for name, script in scripts.items():
        program(folder, name, script)
    return {"PATH": str(folder)}


@pytest.mark.parametrize(
    ("scripts", "message"),
    [
        ({}, "this base has no apt-get: "),
        (
            {"apt-get": ":", "python3": '[ "$1" = -m ] || echo 3.9'},
            "this base has Python 3.9, and mpiboot needs 3.10: ",
        ),
    ],
)
def test_a_base_that_will_not_do(tmp_path: Path, scripts: dict[str, str], message: str) -> None:
    argv, env = ["/bin/sh", str(ROOT / "container/install"), "pip"], programs(tmp_path, **scripts)
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert done.stderr.startswith(f"install: {message}")
    assert done.stderr.count("\n") == 1


def images(*words: str, before: Sequence[str] = (), **env: str) -> subprocess.CompletedProcess[str]:
    argv = [*before, str(ROOT / "scripts/images"), *words, "mpiboot"]
    environ = {**os.environ, **env}
    return subprocess.run(argv, env=environ, capture_output=True, text=True, check=False)


def test_images_without_root(tmp_path: Path) -> None:
    # In a user namespace without a map nobody is root.
    before = ["unshare", "--user"] * (os.getuid() == 0)
    done = images(before=before, MPIBOOT_CACHE=str(tmp_path))
    if "unshare failed" in done.stderr:
        pytest.skip("no user namespace can be made here")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("images: needs root, ")
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


NEEDS_ROOT = pytest.mark.skipif(os.getuid() != 0, reason="needs root")
BUILDERS = ("buildah", "podman", "docker")
# A program that builds images, but for the building: it notes what it is called with, has no
# image yet, reaches no registry, and leaves the files that it is told to write.
BUILDER = """
echo "$0 $*" >>"$CALLS"
case " $* " in
*" pull "*) exit 1 ;;
*" inspect "*) echo "{}" ;;
*" save "*) : >"$3" ;;
*" docker-archive:"*) file=${*##*docker-archive:}; : >"${file%%:*}" ;;
*" --output "*) file=${*#*dest=}; tar --create --file "${file%% *}" --files-from /dev/null ;;
esac
"""


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of a machine that has nothing to build images with, and no apt."""
    folder = tmp_path_factory.mktemp("bare")
    for path in Path("/usr/bin").iterdir():
        if path.name not in {*BUILDERS, "mmdebstrap", "apt-get"}:
            (folder / path.name).symlink_to(path)
    return folder


@pytest.fixture
def machine(tmp_path: Path, bare: Path) -> Callable[..., dict[str, str]]:
    """The environment of a machine that has these of the programs that build."""

    def make(*builders: str, script: str = BUILDER) -> dict[str, str]:
        folder = tmp_path / "bin"
        program(folder, "mmdebstrap", 'for last; do :; done; : >"$last"')
        for name in builders:
            program(folder, name, script)
        cache, calls = str(tmp_path / "cache"), str(tmp_path / "calls")
        return {"PATH": f"{folder}:{bare}", "CALLS": calls, "MPIBOOT_CACHE": cache}

    return make


@NEEDS_ROOT
@pytest.mark.parametrize("stage", ["--whole", "--archive"])
@pytest.mark.parametrize("builder", BUILDERS)
def test_each_builder_is_called_in_its_own_way(
    machine: Callable[..., dict[str, str]], builder: str, stage: str
) -> None:
    """They have less in common than it seems: each of these words fails with another of them."""
    env = machine(*BUILDERS)
    done = images("--with", builder, stage, **env)
    assert done.returncode == 0, done.stderr
    (folder,) = (Path(line.split()[1]) for line in done.stdout.splitlines())
    made = {"--whole": {"root", "image.json"}, "--archive": {"image.tar"}}[stage]
    assert {file.name for file in folder.iterdir()} == made | {"bytes", "seconds"}
    calls = [line.split()[1:] for line in Path(env["CALLS"]).read_text().splitlines()]
    (pulled,) = (call[-1] for call in calls if "pull" in call)
    assert f" {pulled}\n" in (ROOT / "container/locks/bases").read_text()
    own_store = builder != "docker"
    assert {call[0] == "--root" for call in calls} == {own_store}
    builds = [call for call in calls if "build" in call and "--help" not in call]
    assert len(builds) == {"--whole": 4, "--archive": 3}[stage]  # a base, two stages, the files
    assert {"--isolation" in call for call in builds} == {own_store}
    assert {"--network" in call for call in builds} == {not own_store}
    assert {"--format" in call for call in calls if "inspect" in call} <= {builder != "buildah"}
    assert any("save" in call for call in calls) == (stage == "--archive" and not own_store)


@NEEDS_ROOT
@pytest.mark.parametrize(
    ("words", "builders", "code", "message"),
    [
        ((), (), 1, "needs buildah, podman or docker: there is no buildah, and no apt-get to"),
        (("--with", "rkt"), (), 2, "--with names a program that builds images: buildah, podman"),
        (("--with", "docker"), (), 1, "there is no docker on PATH, which --with names"),
        (("no-such-mpi",), (), 2, "no container/no-such-mpi.Containerfile; there are intel-mpi"),
        (("--whole", "--plain"), (), 2, "no option --plain; --help has them all"),
        # It is told before minutes go into a base; the one that is there is taken.
        ((), ("docker",), 1, "docker does not work here: Cannot connect to the Docker daemon\n"),
    ],
)
def test_images_without_the_builder(
    machine: Callable[..., dict[str, str]],
    words: Sequence[str],
    builders: Sequence[str],
    code: int,
    message: str,
) -> None:
    script = "echo connecting; echo Cannot connect to the Docker daemon >&2; exit 1"
    done = images(*words, **machine(*builders, script=script))
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith(f"images: {message}")
    assert done.stderr.count("\n") == 1
