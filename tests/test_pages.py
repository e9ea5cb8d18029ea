from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from mpiboot.core.checks import WARNINGS
from mpiboot.core.facts import facts_to_json
from mpiboot.core.model import Finding, Level, Role
from mpiboot.core.settings import ROWS
from mpiboot.doctor import role
from tests.fakes import workers
from tests.pages import OWNER, ROOT, copied

PAGES = ROOT / "docs" / "reference"


def pages(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, str(folder / "scripts/pages"), *words]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


def test_the_owner_is_named_in_one_place(tmp_path: Path) -> None:
    """Filled in there, and once more, it is in every file that users read."""
    folder = copied(tmp_path)
    owner = folder / "docs/owner.toml"
    before = OWNER
    for number in "12":
        now = {name: f"https://{name}{number}.test/x" for name in OWNER}
        own, line, rest = owner.read_text().partition("[written]")
        for name, value in before.items():
            own = own.replace(f'{name} = "{value}"', f'{name} = "{now[name]}"')
        owner.write_text(own + line + rest)
        assert pages(folder, "--check").stderr.startswith("stale: docs/owner.toml, ")
        assert pages(folder).returncode == 0
        assert pages(folder, "--check").returncode == 0
        files = [path for path in folder.rglob("*") if path.suffix not in (".py", ".pyc")]
        texts = {
            str(path.relative_to(folder)): path.read_text(errors="replace")
            for path in files
            if path.is_file() and path.relative_to(folder).parts[0] not in ("tests", "scripts")
        }
        for name, value in before.items():
            assert [file for file, text in texts.items() if value in text] == [], name
        named = {
            name: {file for file, text in texts.items() if value in text}
            for name, value in now.items()
        }
        assert {"README.md", "SECURITY.md"} <= named["contact"]
        assert {"pyproject.toml", "docs/releasing.md"} <= named["repository"]
        assert {"docs/how-to/images.md", "container/mpiboot.Containerfile"} <= named["registry"]
        assert "examples/mpi-operator/unchanged-image.yaml" in named["registry"]
        before = now


def test_every_setting_is_on_its_page() -> None:
    text = (PAGES / "settings.md").read_text()
    assert [row.variable for row in ROWS if f"`{row.variable}`" not in text] == []


def test_what_is_called_a_warning_never_ends_a_job() -> None:
    calls = r"\b(?:failed|error|fail|problem)\(\s*\"([a-z-]+)\""
    ends = re.compile(calls + r"(?!.*level=Level\.WARN)")
    sources = "".join(path.read_text() for path in (ROOT / "mpiboot").rglob("*.py"))
    assert not WARNINGS.intersection(ends.findall(sources))


def test_the_page_of_checks_has_every_field_of_their_json() -> None:
    page = (PAGES / "errors.md").read_text()
    printed = json.loads(role.report((Finding("shm", Level.OK, ""),), Role.WORKER))
    (finding,) = printed["findings"]
    fields = {*printed, *finding}
    assert [name for name in fields if not re.search(rf"`(findings\[\])?\.?{name}`", page)] == []


def keys(value: object) -> set[str]:
    """The names of a JSON text's fields, at any depth."""
    if isinstance(value, dict):
        return set(value).union(*map(keys, value.values()))
    return set().union(*map(keys, value)) if isinstance(value, list) else set()


def test_the_page_of_facts_has_every_field_of_their_json() -> None:
    """Those of pods with RDMA: there every record is in use."""
    page = (PAGES / "facts.md").read_text()
    for worker in (workers.sriov(), workers.efa()):
        assert worker.facts
        printed = json.loads(facts_to_json(worker.facts))
        assert {"gids", "devices", "identity"} <= keys(printed)
        assert [name for name in keys(printed) if f"`{name}`" not in page] == []
