"""What is wrong with a manifest: fields that its kind lacks, values of another type, settings.

Built-in kinds, and pods inside custom resources, are held against Kubernetes' own schemas; custom
resources against `shapes`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import kubernetes_validate  # type: ignore[import-untyped]
import yaml  # type: ignore[import-untyped]

from tests.manifests.shapes import ANYTHING, CUSTOM, Each, Embedded, Shape

# The oldest release with resource.k8s.io/v1, and the newest that the package knows.
OLDEST: Final = "1.34"
NEWEST: Final = kubernetes_validate.latest_version()
# It would read a megabyte of JSON for each object.
kubernetes_validate.utils.schema_contents = cache(kubernetes_validate.utils.schema_contents)
_COMMON: Final = frozenset(("apiVersion", "kind", "metadata"))
_CALLED: Final = {str: "a text", int: "a whole number", bool: "true or false"}


class ManifestError(Exception):
    """A file that holds no manifests; the text is one line for its user."""


def read(path: Path) -> list[dict[str, Any]]:
    """The documents of a file.

    Raises:
        ManifestError: it can't be read, isn't YAML, or a document is no object of Kubernetes.
    """
    try:
        made = [document for document in yaml.safe_load_all(path.read_text()) if document]
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ManifestError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    if not made or not all(isinstance(item, dict) and "kind" in item for item in made):
        raise ManifestError(f"{path} has a document without a kind: it is no manifest")
    return made


def below(value: object) -> Iterator[dict[str, Any]]:
    """Every mapping in a document."""
    if isinstance(value, dict):
        yield value
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for item in items:
        yield from below(item)


def wrong(document: dict[str, Any], version: str = NEWEST) -> list[str]:
    """What is wrong with one document, a line each; empty where nothing is."""
    key = document["apiVersion"], document["kind"]
    if key not in CUSTOM:
        return _builtin(document, version, key[1], known=False)
    name = document["kind"]
    shape = {**dict.fromkeys(_COMMON, ANYTHING), **CUSTOM[key]}
    found = [f"{name}: {line}" for line in _differs(document, shape, "", version)]
    pattern = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": document.get("metadata", {})}
    return found + _builtin(pattern, version, name)


def _differs(value: object, shape: Shape, where: str, version: str) -> Iterator[str]:
    if isinstance(shape, Embedded):
        yield from _embedded(value, shape, where, version)
    elif isinstance(shape, (dict, Each)):
        yield from _fields(value, shape, where, version)
    elif isinstance(shape, list):
        if not isinstance(value, list):
            yield f"{where}: {value!r} is no list"
            return
        for number, item in enumerate(value):
            yield from _differs(item, shape[0], f"{where}[{number}]", version)
    elif isinstance(shape, frozenset):
        if value not in shape:
            yield f"{where}: {value!r} is none of {', '.join(sorted(shape))}"
    elif shape is not ANYTHING and type(value) is not shape:
        yield f"{where}: {value!r} is not {_CALLED[shape]}"


def _fields(value: object, shape: dict[str, Any] | Each, where: str, version: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{where}: {value!r} is no mapping of fields"
        return
    for name, item in value.items():
        place = f"{where}.{name}".lstrip(".")
        if isinstance(shape, Each):
            yield from _differs(item, shape.value, place, version)
        elif name in shape:
            yield from _differs(item, shape[name], place, version)
        else:
            yield f"{place}: there is no such field"


def _embedded(value: object, shape: Embedded, where: str, version: str) -> Iterator[str]:
    """A pod template in an otherwise complete Job, which has all that may stand in one."""
    given = {"template": value} if shape is Embedded.POD_TEMPLATE else value
    if not isinstance(given, dict):
        yield f"{where}: {value!r} is no mapping of fields"
        return
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "job"}, "spec": given}
    under = "spec.template" if shape is Embedded.POD_TEMPLATE else "spec"
    for line in _builtin(job, version, ""):
        yield where + line.removeprefix(under)


def _builtin(document: dict[str, Any], version: str, name: str, *, known: bool = True) -> list[str]:
    """What Kubernetes' own schema finds first."""
    try:
        kubernetes_validate.validate(document, version, strict=True)
    except kubernetes_validate.ValidationError as error:
        place = "".join(
            f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.absolute_path
        ).lstrip(".")
        return [f"{name}: {place}: {error.message}" if name else f"{place}: {error.message}"]
    except kubernetes_validate.SchemaNotFoundError:
        assert not known
        return [f"{name}: {document['apiVersion']} has no schema here"]
    return []
