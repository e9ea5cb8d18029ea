"""Containerfiles, carried out one instruction after another on an image that is there already."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from tests.pages import OWNER, ROOT
from tests.pods import images
from tests.pods.images import Image

RECIPES = ROOT / "examples/images"
MPIBOOT = ("/opt/mpiboot", "/usr/local/bin/mpiboot")
_COPY = f"--from={OWNER['registry']}/mpiboot /opt/mpiboot /opt/mpiboot"
# So that a RUN finds packages as this machine does, also where Debian's package writes that file.
_CERTIFICATES = ("/etc/ssl/certs/ca-certificates.crt", "/usr/local/share/ca-certificates/all.crt")
_MACHINE = ("/etc/resolv.conf", "/etc/pip.conf", _CERTIFICATES[0])


def online(name: str) -> Image:
    """An image of container/ without mpiboot, with this machine's ways to packages."""
    whole = images.image(name)
    below = replace(whole, layers=whole.layers[-1:], entrypoint=())
    files = {name: Path(name).read_text() for name in _MACHINE if Path(name).is_file()}
    if _CERTIFICATES[0] in files:
        files[_CERTIFICATES[1]] = files[_CERTIFICATES[0]]
    return below.without(*MPIBOOT).with_files(files)


def instructions(text: str) -> Iterator[tuple[str, str]]:
    """Each instruction with what follows it; comments are left out."""
    whole = re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ")
    for line in filter(None, map(str.strip, whole.splitlines())):
        word, _, rest = line.partition(" ")
        yield word, rest.strip()


def built(text: str, base: Image, *passed_over: str, **args: str) -> Image:
    """The image of a Containerfile, or of some lines of one.

    Args:
        text: the lines.
        base: stands for what its FROM names.
        passed_over: how what follows RUN begins where the base stands for its result, too.
        args: as `--build-arg`.
    """
    made, given = base, {}
    for word, rest in instructions(text):
        if word == "ARG":
            name, _, value = rest.partition("=")
            given[name] = args.get(name, value.strip('"'))
        elif word == "RUN":
            if not any(map(rest.startswith, passed_over)):
                words = [f"{name}={value}" for name, value in given.items()]
                made = made.after("env", *words, "sh", "-ec", rest)
        elif word == "ENV":
            name, _, value = rest.partition("=")
            value = value.replace(f"${name}", made.env[name])
            made = replace(made, env={**made.env, name: value})
        elif word == "ENTRYPOINT":
            made = replace(made, entrypoint=tuple(json.loads(rest)))
        elif word == "COPY":
            assert rest == _COPY
            folder = images.image("mpiboot", programs=False)
            made = replace(made, layers=(*folder.layers, *made.layers))
        else:
            assert (word, rest) == ("FROM", "${BASE}")
            given.clear()
    return made
