"""mpiboot's own code as a layer of an image: what pip installs, without its seconds."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from tests.pods.cache import CACHE, REPOSITORY, folders, hash_of, once

_HOME = "opt/mpiboot"


def code_layer(root: Path) -> Path:
    """What `pip install --no-deps .` adds to an image, without its seconds.

    A test compares it with an image that pip really made.
    """
    package, project = REPOSITORY / "mpiboot", REPOSITORY / "pyproject.toml"
    # A virtual environment's, or that of a Python of its own.
    site = next((root / _HOME / "lib").glob("python3.*/*-packages")).relative_to(root)
    environment = site.name == "site-packages"

    def make(layer: Path) -> None:
        folders(layer, layer / site)
        shutil.copytree(
            package, layer / site / "mpiboot", ignore=shutil.ignore_patterns("__pycache__")
        )
        for path in (layer / site / "mpiboot").rglob("*"):
            path.chmod(0o755 if path.is_dir() or os.access(path, os.X_OK) else 0o644)
        scripts = _scripts(project.read_text())
        version = _version(package)
        about = layer / site / f"mpiboot-{version}.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(
            f"Metadata-Version: 2.4\nName: mpiboot\nVersion: {version}\n"
        )
        (about / "entry_points.txt").write_text(
            "".join(["[console_scripts]\n", *(f"{n} = {m}:{f}\n" for n, m, f in scripts)])
        )
        for name, module, function in scripts if environment else ():
            folders(layer, layer / _HOME / "bin")
            script = layer / _HOME / "bin" / name
            script.write_text(_SCRIPT.format(module=module, function=function))
            script.chmod(0o755)
        if environment:
            _byte_compile(root, layer, site / "mpiboot")
        else:
            _byte_compile_by_the_folder(root, layer, site / "mpiboot")

    key = hash_of(package, project, Path(__file__))
    return once(CACHE / "code" / f"{root.parent.name}-{key}", make)


# pip's own text.
_SCRIPT = r"""#!/opt/mpiboot/bin/python3
# -*- coding: utf-8 -*-
import re
import sys
from {module} import {function}
if __name__ == '__main__':
    sys.argv[0] = re.sub(r'(-script\.pyw|\.exe)?$', '', sys.argv[0])
    sys.exit({function}())
"""


def _scripts(project: str) -> list[tuple[str, str, str]]:
    section = project.partition("\n[project.scripts]\n")[2].partition("\n[")[0]
    return re.findall(r'^(\S+)\s*=\s*"([\w.]+):(\w+)"', section, re.MULTILINE)


def _version(package: Path) -> str:
    found = re.search(r'__version__.*=\s*"(.+?)"', (package / "__init__.py").read_text())
    return found[1] if found else "0"


def _byte_compile(root: Path, layer: Path, package: Path) -> None:
    """Compiles with the image's own Python, which alone knows its format."""
    script = (
        'mount --bind "$2" "$1/mnt"\n'
        'chroot "$1" /opt/mpiboot/bin/python3 -m compileall -q -s /mnt -p / "/mnt/$3"'
    )
    alone = ("unshare", "--mount", "--propagation", "private")
    argv = [*alone, "sh", "-ec", script, "sh", str(root), str(layer), str(package)]
    subprocess.run(argv, check=True)


def _byte_compile_by_the_folder(root: Path, layer: Path, package: Path) -> None:
    """Compiles with a folder's own Python, which needs nothing of an image."""
    python = str(root / _HOME / "libexec/python3")
    argv = ["-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", "-s", str(layer)]
    subprocess.run([python, *argv, "-p", "/", str(layer / package)], check=True)
