"""What a release hands out: an archive and a wheel, as docs/releasing.md makes them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from mpiboot import __version__
from tests.pages import ROOT, copied, named
from tests.test_container import PYTHONS, pins

PROJECT = ROOT / "pyproject.toml"
# Of the project's own environment, and as somebody who may commit.
_NOBODY = {"NAME": "nobody", "EMAIL": "nobody@example.org"}
ENVIRON = {
    **os.environ,
    "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    **{f"GIT_{who}_{what}": _NOBODY[what] for who in ("AUTHOR", "COMMITTER") for what in _NOBODY},
}


def git(folder: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", *words], cwd=folder, env=ENVIRON, capture_output=True, text=True, check=True
    )
    return done.stdout


def other_tags(folder: Path) -> list[str]:
    """Tags of releases that the commit has and its version isn't; a plain archive has none."""
    if not (folder / ".git").exists():
        return []
    version = re.search(
        r'^__version__ = "(.*)"', (folder / "mpiboot/__init__.py").read_text(), re.MULTILINE
    )
    assert version
    tags = git(folder, "tag", "--points-at", "HEAD", "--list", "v*").split()
    return [tag for tag in tags if tag != f"v{version[1]}"]


def unfilled(folder: Path) -> list[str]:
    """What docs/owner.toml lacks on a commit that is a release."""
    if not (folder / ".git").exists() or not git(folder, "tag", "--points-at", "HEAD", "v*"):
        return []
    about = (folder / "docs/owner.toml").read_text().partition("[written]")[0]
    return re.findall(r'^(\w+) = "(?:.*\.example\b.*|my-registry)"$', about, re.MULTILINE)


def test_a_release_is_built_and_tagged_as_its_page_says(tmp_path: Path) -> None:
    """Up to the upload; what is built from the archive is the wheel that is tried."""
    folder = copied(tmp_path)
    package = [path for path in (folder / "mpiboot").rglob("*") if path.is_file()]
    ours = {str(path.relative_to(folder)) for path in package}
    version = __version__.removesuffix(".dev0")
    code = folder / "mpiboot/__init__.py"
    code.write_text(code.read_text().replace(f'"{__version__}"', f'"{version}"'))
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "all")
    done = subprocess.run(
        ["bash", "-ec", named("release")],
        cwd=folder,
        env=ENVIRON,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert git(folder, "tag").split() == [f"v{version}"]
    assert other_tags(folder) == []
    (folder / "docs/owner.toml").write_text('contact = "a@b.example"\nrepository = "b.org"\n')
    assert unfilled(folder) == ["contact"]
    git(folder, "tag", "v9.9.9")
    assert other_tags(folder) == ["v9.9.9"]
    (wheel,) = (folder / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as made:
        modes = {item.filename: item.external_attr >> 16 & 0o777 for item in made.infolist()}
        about = made.read(f"mpiboot-{version}.dist-info/METADATA").decode()
    assert {name for name in modes if ".dist-info/" not in name} == ours
    assert "mpiboot/py.typed" in ours
    assert f"mpiboot-{version}.dist-info/licenses/LICENSE" in modes
    assert "\nLicense-Expression: Apache-2.0\n" in about
    # What is run by its name there; the rest goes to a host's shell as text.
    programs = {name for name in ours if "/libexec/" in name and os.access(folder / name, os.X_OK)}
    assert {"mpiboot/libexec/agent", "mpiboot/libexec/ssh"} <= programs
    assert {modes[name] for name in programs} == {0o755}
    for lock in ("mpiboot", "mpich-5.0", "intel-mpi"):
        text = (folder / f"sbom/{lock}.cdx.json").read_text()
        assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
        listed = {(item["name"], item["version"]) for item in json.loads(text)["components"]}
        locked = [pin for pin, _ in pins(ROOT / f"container/locks/{lock}.lock")]
        assert listed == {(pin.name, next(iter(pin.specifier)).version) for pin in locked}
    (archive,) = (folder / "dist").glob("*.tar.gz")
    with tarfile.open(archive) as made_archive:
        names = {name.partition("/")[2] for name in made_archive.getnames()}
    pages = {"README.md", "LICENSE", "CHANGELOG.md", "SECURITY.md", "docs/architecture.md"}
    assert pages | {"examples/mpi-operator/openmpi.yaml"} <= names
    assert not [name for name in names if name.startswith(("tests", ".venv"))]


def test_the_tag_of_this_commit_is_its_version_and_its_owner_is_named() -> None:
    assert other_tags(ROOT) == []
    assert unfilled(ROOT) == []


def test_the_image_of_the_page_has_the_next_releases_version() -> None:
    page = (ROOT / "docs/how-to/images.md").read_text()
    assert re.findall(r"VERSION=(\d\S*)", page) == [__version__.removesuffix(".dev0")]


def interpreter(version: str) -> str:
    """A Python of this version that is not this one's environment: PATH's, else pyenv's."""
    built = sorted((Path.home() / ".pyenv/versions").glob(f"{version}.*/bin/python3"))
    found = shutil.which(f"python{version}", path="/usr/local/bin:/usr/bin")
    return found or (str(built[-1]) if built else "")


@pytest.mark.full
@pytest.mark.parametrize("version", [one for one in PYTHONS if interpreter(one)])
def test_the_wheel_runs_with_each_python_that_is_here(tmp_path: Path, version: str) -> None:
    """In an environment of its own, with the packages that the index has for it today."""
    wheel = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    source = copied(tmp_path / "source")
    subprocess.run([*wheel, "--wheel-dir", tmp_path, source], check=True)
    subprocess.run([interpreter(version), "-m", "venv", tmp_path / "venv"], check=True)
    own = tmp_path / "venv/bin"
    install = ["install", "--quiet", "--only-binary", ":all:"]
    subprocess.run([own / "pip", *install, *tmp_path.glob("*.whl")], check=True)
    (tmp_path / "hostfile").write_text("w-0.x.default.svc slots=8\n")

    def runs(*words: str | Path, codes: tuple[int, ...] = (0,)) -> str:
        argv = [own / words[0], *words[1:]]
        done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=tmp_path)
        assert done.returncode in codes, done.stdout + done.stderr
        return done.stdout

    every = (
        "import importlib as i, mpiboot, pkgutil; found = pkgutil.walk_packages(mpiboot.__path__, "
    )
    every += "'mpiboot.'); [i.import_module(m.name) for m in found if '__main__' not in m.name]"
    runs("python", "-W", "error", "-c", every)
    assert __version__ in runs("mpiboot", "--version")
    hostfile = tmp_path / "hostfile"
    plan = ("plan", "--offline", "--mpi", "openmpi5", "--hostfile", hostfile, "mpirun", "./train")
    assert "w-0.x.default.svc" in runs("mpiboot", *plan)
    assert json.loads(runs("mpiboot", "facts", "--json"))["links"]
    codes = (0, 1)  # there may be no MPI
    checked = json.loads(runs("mpiboot", "doctor", "--image", "--json", codes=codes))
    assert checked["findings"]


def test_the_forges_workflow_runs_the_gate_with_each_python_that_the_package_names() -> None:
    made = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text())
    for job in made["jobs"].values():
        assert "scripts/test" in [step.get("run") for step in job["steps"]]
    message = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', PROJECT.read_text())
    assert made["jobs"]["user"]["strategy"]["matrix"]["python"] == message
