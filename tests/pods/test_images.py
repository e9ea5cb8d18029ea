"""The images of container/, their cheap variants, and mpiboot laid on top of them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from mpiboot import __version__
from tests.pods import images
from tests.pods.cluster import Cluster
from tests.pods.images import Image
from tests.pods.oci import PodSpec

SLEEP = ("sleep", "1000")


def test_variants_lack_what_they_say(cluster: Cluster, plain: Image) -> None:
    listing = "ls /usr/sbin/sshd /usr/bin/ssh 2>/dev/null || true"
    for name, expected in (
        ("openmpi-5.0", ["/usr/bin/ssh", "/usr/sbin/sshd"]),
        ("openmpi-5.0-nosshd", ["/usr/bin/ssh"]),
        ("openmpi-5.0-nossh", []),
    ):
        variant = images.image(name, programs=False)
        pod = cluster.pod(PodSpec(name="a", image=variant, command=SLEEP)).start()
        assert pod.shell(listing).split() == expected
    own = plain.with_files({"/etc/ssh/ssh_config.d/own.conf": "Port 2222\n"})
    pod = cluster.pod(PodSpec(name="a", image=own, command=SLEEP)).start()
    assert "port 2222" in pod.shell("ssh -G host")


def test_images_hold_no_keys_and_no_secrets_of_the_build(plain: Image) -> None:
    root = plain.layers[-1]
    assert not list((root / "etc/ssh").glob("ssh_host_*"))
    assert not (root / "etc/pip.conf").exists()
    assert "mpiuser:*:" in (root / "etc/shadow").read_text()


def test_images_hold_nothing_of_what_made_them(plain: Image) -> None:
    """No compiler, no pip, no lists of packages; and no module that each start would compile."""
    root = plain.layers[-1]
    made_with = ("gcc", "cc", "c++", "ld", "make", "pip", "pip3")
    folders = [root / folder for folder in ("usr/bin", "usr/local/bin", "opt/mpiboot/bin")]
    assert [name for folder in folders for name in made_with if (folder / name).exists()] == []
    assert list((root / "var/lib/apt/lists").glob("*Packages*")) == []
    assert list((root / "var/cache/apt/archives").glob("*.deb")) == []
    sources = [
        *(root / "usr/lib").glob("python3.*/*.py"),
        *(root / "opt/mpiboot/lib").glob("python3.*/site-packages/asyncssh/*.py"),
    ]
    assert len(sources) > 200
    not_compiled = [
        path for path in sources if not list(path.parent.glob(f"__pycache__/{path.stem}.*.pyc"))
    ]
    assert not_compiled == []


@pytest.mark.full
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", images.NAMES)
def test_code_layer_is_what_pip_installs(rig: None, name: str) -> None:
    whole = images.built(name, "--whole") / "root/opt/mpiboot"
    layer = images.image(name, programs=False).layers[0] / "opt/mpiboot"
    site = next(layer.glob("lib/python3.*/site-packages")).relative_to(layer)

    def state(venv: Path) -> dict[str, tuple[int, bytes]]:
        files = [*(venv / site / "mpiboot").rglob("*"), venv / "bin/mpiboot"]
        return {
            str(file.relative_to(venv)): (
                file.stat().st_mode,
                b"" if file.suffix == ".pyc" else file.read_bytes(),
            )
            for file in files
            if file.is_file()
        }

    assert state(layer) == state(whole)
    about = json.loads((whole.parents[2] / "image.json").read_text())["OCIv1"]["config"]
    labels = {name.rpartition(".")[2]: text for name, text in about["Labels"].items()}
    assert (labels["title"], labels["licenses"]) == (name, "Apache-2.0")
    assert labels["version"] == __version__
    assert re.fullmatch("[0-9a-f]{40}", labels["revision"])
    assert "mpiboot" in labels["description"]
    assert about["Entrypoint"] == ["mpiboot"]
    (ours,) = (layer / site).glob("mpiboot-*.dist-info")
    assert (whole / site / ours.name).is_dir()
    entries = "entry_points.txt"
    assert (ours / entries).read_text() == (whole / site / ours.name / entries).read_text()
