"""Image roots for pods: what scripts/images built, mpiboot's code on top, and cheap variants."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from tests.pods.cache import CACHE, REPOSITORY, folders, hash_of, once
from tests.pods.code_layer import code_layer

PROGRAMS = Path(__file__).parent / "programs"
PYTHON = "/opt/mpiboot/bin/python3"
NAMES = ("openmpi-4.1", "openmpi-5.0")
# Test programs for these are compiled elsewhere: all MPIs of MPICH's ABI have a libmpi.so.12.
_ABI = ("mpich-5.0", "intel-mpi")
_MPICH_HEADERS = "/usr/include/x86_64-linux-gnu/mpich"

# The packages whose files a variant lacks.
_VARIANTS = {
    "-nosshd": ("openssh-server",),
    "-nossh": ("openssh-server", "openssh-client", "openssh-sftp-server"),
}


@dataclass(frozen=True)
class Image:
    """An image as overlay layers (uppermost first), with its configuration."""

    name: str
    layers: tuple[Path, ...]
    entrypoint: tuple[str, ...]
    env: Mapping[str, str]
    programs: Path | None = None

    def read_text(self, path: str) -> str:
        """A file of the image; a pod's own changes are not in it."""
        for layer in self.layers:
            found = layer / path.lstrip("/")
            if found.is_file():
                return found.read_text()
        raise FileNotFoundError(path)

    def without(self, *paths: str) -> Image:
        def whiteouts(layer: Path) -> None:
            for path in paths:
                target = layer / path.lstrip("/")
                folders(layer, target.parent)
                os.mknod(target, 0o020000, os.makedev(0, 0))

        return self._with_layer(("without", *paths), whiteouts)

    def with_files(self, files: Mapping[str, str | bytes], mode: int = 0o644) -> Image:
        """The same image with these files added or replaced, as a user's own image has them."""

        def write(layer: Path) -> None:
            for path, content in files.items():
                target = layer / path.lstrip("/")
                folders(layer, target.parent)
                target.write_bytes(content.encode() if isinstance(content, str) else content)
                target.chmod(mode)

        return self._with_layer(("with", oct(mode), *map(str, files.items())), write)

    def with_packages(self, *requirements: str, python: str = "3.11") -> Image:
        """The same image with Python packages in /opt/packages, as wheels with what they need."""
        options = ["--only-binary", ":all:", "--python-version", python, *requirements]
        return self._with_pip("/opt/packages", "--target", *options)

    def with_wheel(self, prefix: str, requirement: str) -> Image:
        """The same image with a wheel's programs and libraries in a folder's bin and lib."""
        options = ("--only-binary", ":all:", "--no-deps", "--ignore-installed", requirement)
        return self._with_pip(prefix, "--prefix", *options)

    def _with_pip(self, folder: str, how: str, *options: str) -> Image:
        def install(layer: Path) -> None:
            target = layer / folder.lstrip("/")
            folders(layer, target)
            pip = [sys.executable, "-m", "pip", "install", "--quiet", how, str(target)]
            subprocess.run([*pip, *options], check=True)

        return self._with_layer(("pip", folder, how, *options), install)

    def with_source(self, requirement: str) -> Image:
        def download(layer: Path) -> None:
            target = layer / "usr/src"
            folders(layer, target)
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-binary", ":all:"]
            pip += ["--no-deps", "--no-build-isolation", "--dest", str(target), requirement]
            subprocess.run(pip, check=True)
            shutil.unpack_archive(next(target.iterdir()), target)

        return self._with_layer(("source", requirement), download)

    def with_debian(self, *packages: str) -> Image:
        """The same image after apt-get; mpiboot's code stays above, and may change."""
        code = tuple(layer for layer in self.layers if layer.parent == CACHE / "code")
        below = tuple(layer for layer in self.layers if layer not in code)
        nameserver = {"/etc/resolv.conf": Path("/etc/resolv.conf").read_text()}
        install = (
            f"apt-get -qq update && apt-get -qq install --yes --no-install-recommends"
            f" {' '.join(packages)} >/dev/null && rm -rf /var/lib/apt/lists/* /var/cache/apt/*"
        )
        made = replace(self, layers=below).with_files(nameserver).after("sh", "-ec", install)
        return replace(made, layers=(*code, *made.layers))

    def after(self, *command: str) -> Image:
        def run(layer: Path) -> None:
            script = (
                'mkdir "$1/work" "$1/root"; '
                'mount -t overlay -o "lowerdir=$2,upperdir=$3,workdir=$1/work" image "$1/root"; '
                'root=$1/root; shift 3; exec chroot "$root" "$@"'
            )
            below = ":".join(map(str, self.layers))
            with tempfile.TemporaryDirectory(dir=layer.parent) as scratch:
                argv = ["unshare", "--mount", "--propagation", "private", "sh", "-ec", script, "sh"]
                env = {**os.environ, **self.env}
                argv += [scratch, below, str(layer), *command]
                # A benchmark's own output is JSON.
                subprocess.run(argv, env=env, stdout=2, check=True)

        return self._with_layer(("after", *map(str, self.layers), *command), run)

    def _with_layer(self, what: tuple[str, ...], make: Callable[[Path], None]) -> Image:
        key = hashlib.sha256("\0".join(what).encode()).hexdigest()[:12]
        layer = once(CACHE / "layers" / key, make)
        return replace(self, name=f"{self.name}+{key}", layers=(layer, *self.layers))


@cache
def image(name: str, *, programs: bool = True) -> Image:
    """An image of container/, or one of them with `-nosshd` or `-nossh`.

    Its pods find the compiled test programs in /opt/programs; without them no compiler is needed.
    """
    for suffix, packages in _VARIANTS.items():
        if name.endswith(suffix):
            whole = image(name.removesuffix(suffix), programs=programs)
            paths = [path for package in packages for path in _package_files(whole, package)]
            return replace(whole.without(*paths), name=name)
    if name == "mpich-4.0.3":  # PyPI's, whose default is ch4:ofi
        return image("mpich-5.0", programs=programs).with_wheel("/opt/mpi", "mpich==4.0.3")
    folder = built(name)
    about = json.loads((folder / "image.json").read_text())["OCIv1"]["config"]
    root = folder / "root"
    return Image(
        name=name,
        layers=(code_layer(root), root),
        entrypoint=tuple(about.get("Entrypoint", ())),
        env=dict(entry.split("=", 1) for entry in about.get("Env", ())),
        programs=_compiled(name) if programs else None,
    )


def built(name: str, *options: str) -> Path:
    """The folder that scripts/images has for an image, built first where it has to be."""
    argv = [str(REPOSITORY / "scripts/images"), *options, name]
    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True)
    return Path(done.stdout.split()[1])


def _package_files(whole: Image, package: str) -> Iterator[str]:
    root = whole.layers[-1]
    listing = root / f"var/lib/dpkg/info/{package}.list"
    for line in listing.read_text().splitlines():
        path = root / line.lstrip("/")
        # In a merged root /lib is a link to a folder: what lies there is named by its real path.
        if not path.is_dir() and (path.is_symlink() or path.is_file()):
            yield "/" + str((path.parent.resolve() / path.name).relative_to(root.resolve()))


def _compiled(name: str) -> Path:
    """The test programs, compiled against an image's own MPI; makes the compiler on first use."""
    abi = name in _ABI

    def make(folder: Path) -> None:
        root = built("mpich-4.0" if abi else name, "--dev") / "root"
        with tempfile.TemporaryDirectory(dir=root / "tmp") as build:
            inside = Path("/tmp") / Path(build).name
            compiler = ["mpicc"]
            if abi:
                shutil.copy(built(name) / "root/opt/mpi/lib/libmpi.so.12", build)
                compiler = ["gcc", f"-I{_MPICH_HEADERS}", f"-L{inside}"]
            for source in PROGRAMS.glob("*.c"):
                shutil.copy(source, build)
                program = inside / source.stem
                argv = [*compiler, "-O2", "-Wall", "-Werror", "-o", str(program), f"{program}.c"]
                # Intel's library finds its own neighbours where it is installed.
                argv += ["-l:libmpi.so.12", "-Wl,--unresolved-symbols=ignore-in-shared-libs"] * abi
                subprocess.run(["chroot", str(root), *argv], check=True)
                shutil.copy(Path(build) / source.stem, folder)

    key = hash_of(PROGRAMS, REPOSITORY / "container")
    return once(CACHE / "programs" / f"{name}-{key}", make)
