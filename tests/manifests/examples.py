"""The repository's own examples, as tests read them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from tests.manifests import check
from tests.pages import ROOT

FOLDER: Final = ROOT / "examples"
FILES: Final = sorted(FOLDER.rglob("*.yaml"))
RECIPES: Final = sorted(FOLDER.rglob("*.Containerfile"))


def name_of(path: Path) -> str:
    """A file's name below the folder: for tests' names and messages."""
    return str(path.relative_to(FOLDER))


def read(name: str) -> list[dict[str, Any]]:
    """The documents of an example, by its name below the folder."""
    return check.read(FOLDER / name)
