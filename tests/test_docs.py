"""What the README and docs say is tried: their YAML, their commands, the names they use."""

from __future__ import annotations

import ast
import re
import shlex
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml  # type: ignore[import-untyped]

from mpiboot.checks import CHECKS
from mpiboot.commands.root import cli
from mpiboot.settings import INTERNAL, ROWS

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").rglob("*.md"))]
# What stands in documentation for a name that the reader has.
_STANDS_FOR = {"MPIBOOT_X", "MPIBOOT_THE_NAME"}


def blocks(page: Path, *kinds: str) -> list[str]:
    """The fenced blocks of a page, of these languages."""
    found = re.findall(r"^( *)```(\w*)\n(.*?)^ *```", page.read_text(), re.MULTILINE | re.DOTALL)
    return [textwrap.dedent(text) for _, kind, text in found if kind in kinds]


def documents() -> Iterator[tuple[str, Any]]:
    for page in PAGES:
        for block in blocks(page, "yaml"):
            for made in yaml.safe_load_all(block):
                yield page.name, made


def below(value: object) -> Iterator[dict[str, Any]]:
    """Every mapping in a document."""
    if isinstance(value, dict):
        yield value
    for item in (
        value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    ):
        yield from below(item)


def pods() -> Iterator[tuple[str, dict[str, Any]]]:
    for name, made in documents():
        for item in below(made):
            if "containers" in item:
                yield name, item


def test_pods_of_the_docs_mount_what_they_have_and_workers_have_shared_memory() -> None:
    found = list(pods())
    assert len(found) >= 6
    for name, pod in found:
        volumes = {item["name"] for item in pod.get("volumes", ())}
        for container in pod["containers"]:
            mounts = {item["name"]: item["mountPath"] for item in container.get("volumeMounts", ())}
            assert set(mounts) <= volumes, name
            assert "worker" not in container.get("args", ()) or "/dev/shm" in mounts.values(), name


def test_an_mpijob_of_the_docs_says_its_restarts_where_the_operator_reads_them() -> None:
    jobs = [
        made for _, made in documents() if isinstance(made, dict) and made.get("kind") == "MPIJob"
    ]
    assert jobs
    for job in jobs:
        assert "backoffLimit" in job["spec"]["runPolicy"]
        launcher = job["spec"]["mpiReplicaSpecs"]["Launcher"]
        assert launcher["restartPolicy"] == "Never"
        assert "restartPolicy" not in launcher["template"]["spec"]


def test_a_failure_policy_of_the_docs_can_work_and_lists_what_never_helps() -> None:
    never = {int(item.code) for item in CHECKS if not item.retry}
    again = {int(item.code) for item in CHECKS if item.retry}
    jobs = [item for _, made in documents() for item in below(made) if "podFailurePolicy" in item]
    assert jobs
    for job in jobs:
        assert job["backoffLimit"] > 0
        (rule,) = job["podFailurePolicy"]["rules"]
        listed = set(rule["onExitCodes"]["values"])
        # A device may come up later: a try is worth it.
        assert listed == never - again - {72}


def commands() -> Iterator[tuple[str, list[str]]]:
    for page in PAGES:
        text = "".join(blocks(page, "", "sh", "console", "dockerfile"))
        for line in re.findall(r"(?:^|RUN |-- )(mpiboot [^\n]*)", text, re.MULTILINE):
            words = re.split(r"\s{2,}", line.partition(" #")[0])[0]
            yield page.name, shlex.split(words)[1:]
    for name, pod in pods():
        for container in pod["containers"]:
            if container.get("command", [""])[0] == "mpiboot":
                yield name, container["command"][1:]


def parsed(words: list[str]) -> click.Context:
    """Read a command line to its last command, as it would be before it runs."""
    context = cli.make_context("mpiboot", list(words))
    while isinstance(context.command, click.Group):
        rest = (
            [*context.protected_args, *context.args] if hasattr(context, "protected_args") else []
        )
        name, command, left = context.command.resolve_command(context, rest)
        assert command is not None
        context = command.make_context(name, left, parent=context)
    return context


def refused(words: list[str]) -> str:
    """What is wrong with a command line; empty where nothing is."""
    try:
        parsed(words)
    except click.ClickException as wrong:
        return wrong.format_message()
    return ""


@pytest.mark.filterwarnings("ignore:.*protected_args.*:DeprecationWarning")
def test_every_command_of_the_docs_is_one() -> None:
    found = [(name, words) for name, words in commands() if words]
    assert len(found) >= 10
    for name, words in found:
        assert refused(words) == "", f"{name}: mpiboot {' '.join(words)}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_names_only_settings_that_there_are(page: Path) -> None:
    known = {row.variable for row in ROWS} | set(INTERNAL) | _STANDS_FOR
    named = set(re.findall(r"\bMPIBOOT_[A-Z][A-Z_]*[A-Z]\b", page.read_text()))
    assert named - known == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_pages_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]*)(?:#[^)]*)?\)", page.read_text()):
        assert not target or "://" in target or (page.parent / target).exists(), target


def test_every_event_of_the_log_is_in_its_page() -> None:
    page = (ROOT / "docs/reference/log.md").read_text()
    told = set(re.findall(r"`([a-z-]+)`", page))
    written = set()
    for path in (ROOT / "mpiboot").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            name = ast.unparse(node.func)
            place = {"log.info": 0, "log.debug": 0, "log.warning": 0, "log.error": 0, "Say": 1}
            place["Line"] = 0
            if name in place and isinstance(node.args[place[name]], ast.Constant):
                constant = node.args[place[name]]
                assert isinstance(constant, ast.Constant)
                written.add(str(constant.value))
    assert "ended" in written
    assert written - told - {item.reference for item in CHECKS} == set()
