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
    return str(path.relative_to(FOLDER))


def read(name: str) -> list[dict[str, Any]]:
    return check.read(FOLDER / name)
