"""A support bundle as bytes: texts in, one tar.gz of a bounded size out. No file is touched."""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from mpiboot.core.wording import first_few, size_of
from mpiboot.job import masking
from mpiboot.job.forward import ALLOWED, matches

# Bytes before they are packed: of one part, and of all. Compressed it is about a tenth.
PART: Final = 1 << 20
WHOLE: Final = 16 << 20
# A shorter value may stand in any text without being that secret.
_SHORTEST: Final = 6
# Variables whose values are shown beside those of forward's table. Of others the name alone is: any
# of them may hold a connection string, a registry's login or a webhook's address.
_SHOWN: Final = (
    "OMPI_* PMIX_* PRTE_* PMI_* MPIR_* HYDRA_* MPIEXEC_* MPIBOOT_* K_MPI_JOB_ROLE "
    "NVIDIA_VISIBLE_DEVICES NVIDIA_DRIVER_CAPABILITIES KUBERNETES_* LD_PRELOAD "
    "HOME HOSTNAME USER LOGNAME SHELL PWD TERM TMPDIR LANG LC_* TZ"
)
# What such a value looks like; a plain word may stand anywhere without coming from a variable.
_CONNECTION: Final = re.compile(r"://.{4}|=.+;|\{.+:")
_FOLDER: Final = "mpiboot-bundle/"


@dataclass(frozen=True, slots=True)
class Part:
    """A file of the bundle."""

    name: str
    text: str


def environment(environ: Mapping[str, str]) -> str:
    """Write an environment, a variable a line, with the values of those that are known alone."""
    lines = []
    for name, value in sorted(environ.items()):
        known = not value or _is_shown(name)
        shown = masking.mask_within(name, value) if known else masking.HIDDEN
        lines.append(f"{name}={shown}\n")
    return "".join(lines)


def _is_shown(name: str) -> bool:
    patterns = (*_SHOWN.split(), *(pattern for pattern, _ in ALLOWED))
    return any(matches(name, pattern) for pattern in patterns)


def _is_secret(name: str, value: str) -> bool:
    """Tell whether a value may stand nowhere: `args` have those of variables as `$(NAME)`."""
    if masking.mask(name, value) == masking.HIDDEN:
        return len(value) >= _SHORTEST
    return bool(_CONNECTION.search(value)) and not _is_shown(name)


def without_secrets(parts: Iterable[Part], environ: Mapping[str, str]) -> tuple[Part, ...]:
    """Hide values of secret and of unknown variables, also where no name is beside them.

    Args:
        parts: what is known already to name no secret's value where it names the secret.
        environ: where the values are.
    """
    values = sorted(
        (value for name, value in environ.items() if _is_secret(name, value)),
        key=len,
        reverse=True,
    )
    made = []
    for part in parts:
        text = part.text
        for value in values:
            text = text.replace(value, masking.HIDDEN)
        made.append(replace(part, text=text))
    return tuple(made)


def pack(
    parts: Sequence[Part], about: str, *, most: int = PART, whole: int = WHOLE
) -> tuple[bytes, str]:
    """Pack the parts; what is too long is cut at its end, what is too much is left out.

    Args:
        parts: the most wanted first.
        about: what the file README.txt begins with.
        most: bytes of one part.
        whole: bytes of all.

    Returns:
        The archive, and what was cut or left out in one line (empty: nothing).
    """
    kept: list[tuple[str, bytes]] = []
    cut: list[str] = []
    out: list[str] = []
    left = whole
    for part in parts:
        data = part.text.encode("utf-8", "replace")
        if len(data) > most:
            cut.append(part.name)
            note = f"\n[cut here: {size_of(len(data))} in all]\n".encode()
            data = data[:most].decode("utf-8", "ignore").encode() + note
        if len(data) > left:
            out.append(part.name)
            continue
        left -= len(data)
        kept.append((part.name, data))
    message = "; ".join(
        f"{what}: {first_few(names, 8)}"
        for what, names in (
            (f"cut to {size_of(most)}", cut),
            (f"left out, as all may have {size_of(whole)}", out),
        )
        if names
    )
    listed = "".join(f"  {name}\n" for name, _ in kept)
    text = f"{about}\n{listed}" + (f"\n{message}\n" if message else "")
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, data in (("README.txt", text.encode()), *kept):
            entry = tarfile.TarInfo(_FOLDER + name)
            entry.size, entry.mode = len(data), 0o600
            archive.addfile(entry, io.BytesIO(data))
    return packed.getvalue(), message
