"""mpiboot's own code as a layer of an image: what pip installs, without its seconds."""

from __future__ import annotations

import os
import shutil
import subprocess
from importlib.metadata import entry_points
from pathlib import Path

from mpiboot import __version__
from tests.pods.cache import CACHE, REPOSITORY, folders, hash_of, once

_HOME = "opt/mpiboot"
# pip's own text.
_SCRIPT = r"""#!/opt/mpiboot/bin/python3
# -*- coding: utf-8 -*-
import re
import sys
from {0.module} import {0.attr}
if __name__ == '__main__':
    sys.argv[0] = re.sub(r'(-script\.pyw|\.exe)?$', '', sys.argv[0])
    sys.exit({0.attr}())
"""


def code_layer(root: Path) -> Path:
    """What `pip install --no-deps .` adds to an image, without its seconds.

    A test compares it with an image that pip really made.
    """
    package = REPOSITORY / "mpiboot"
    # A virtual environment's, or that of a Python of its own.
    site = next((root / _HOME / "lib").glob("python3.*/*-packages")).relative_to(root)
    (script,) = entry_points(group="console_scripts", name="mpiboot")

    def make(layer: Path) -> None:
        folders(layer, layer / site)
        code = layer / site / "mpiboot"
        shutil.copytree(package, code, ignore=shutil.ignore_patterns("__pycache__"))
        for path in code.rglob("*"):
            path.chmod(0o755 if path.is_dir() or os.access(path, os.X_OK) else 0o644)
        about = layer / site / f"mpiboot-{__version__}.dist-info"
        about.mkdir()
        text = f"Metadata-Version: 2.4\nName: mpiboot\nVersion: {__version__}\n"
        (about / "METADATA").write_text(text)
        entry = f"[console_scripts]\n{script.name} = {script.value}\n"
        (about / "entry_points.txt").write_text(entry)
        # Each Python alone knows its format: an environment's needs the image, the folder's none.
        if site.name == "site-packages":
            folders(layer, layer / _HOME / "bin")
            (layer / _HOME / "bin/mpiboot").write_text(_SCRIPT.format(script))
            (layer / _HOME / "bin/mpiboot").chmod(0o755)
            words = f"chroot {root} /{_HOME}/bin/python3 -m compileall -q -s /mnt -p / /mnt/{site}"
            inside = f"mount --bind {layer} {root}/mnt; exec {words}/mpiboot"
            alone = ("unshare", "--mount", "--propagation", "private")
            subprocess.run([*alone, "sh", "-ec", inside], check=True)
        else:
            argv = ["-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash"]
            argv += ["-s", str(layer), "-p", "/", str(code)]
            subprocess.run([root / _HOME / "libexec/python3", *argv], check=True)

    key = hash_of(package, REPOSITORY / "pyproject.toml", Path(__file__))
    return once(CACHE / "code" / f"{root.parent.name}-{key}", make)
