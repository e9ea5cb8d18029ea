"""What the README and docs say is tried: their YAML, their commands, the names they use."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from textwrap import dedent
from typing import Any

import click
import pytest
import yaml  # type: ignore[import-untyped]

from mpiboot import __version__
from mpiboot.cli.commands import cli
from mpiboot.core.checks import AGAIN, CHECKS
from mpiboot.core.facts import Gpus
from mpiboot.core.settings import INTERNAL, ROWS
from mpiboot.job import render
from tests.fakes import workers as w
from tests.fakes.plan_cases import kinds
from tests.fakes.plans import OPERATOR, POD, observed, planned
from tests.fakes.platform_plans import parts
from tests.manifests import check, examples
from tests.pages import PAGES, ROOT, UNTRIED, Block, blocks, copied, named, not_printed
from tests.pods import test_images

# What stands in documentation for a name that the reader has.
_STANDS_FOR = {"MPIBOOT_X", "MPIBOOT_THE_NAME"}
_PODS = ROOT / "tests" / "pods"
_OF_PAGES = ("docs", "doctor", "foreign", "images", "job", "users")
_TESTS = (
    Path(__file__),
    ROOT / "tests/test_packaging.py",
    *(_PODS / f"test_{name}.py" for name in _OF_PAGES),
)


def documents() -> Iterator[tuple[str, Any]]:
    """Those of the examples and of the pages' YAML blocks, each with its file's name."""
    for path in examples.FILES:
        for made in check.read(path):
            yield examples.name_of(path), made
    for block in blocks("yaml"):
        for made in yaml.safe_load_all(block.text):
            yield block.page.name, made


def pods() -> Iterator[tuple[str, dict[str, Any]]]:
    for name, made in documents():
        for item in check.below(made):
            if "containers" in item:
                yield name, item


@pytest.mark.parametrize("block", blocks(), ids=lambda block: block.message)
def test_a_block_of_the_docs_is_tried_or_says_that_it_is_not(block: Block) -> None:
    """A test names it, or it is called untried; a diagram has nothing to run."""
    assert block.kind in {"sh", "text", "yaml", "diff", "dockerfile", "diagram", "mermaid"}
    if block.kind not in {"diagram", "mermaid"} and block.name != UNTRIED:
        tests = "".join(path.read_text() for path in _TESTS)
        assert block.name
        assert f'"{block.name}"' in tests


def test_the_data_networks_page_shows_what_is_printed() -> None:
    seen = kinds("sriov", "sriov", gpus=Gpus(8)).apply(observed("openmpi5", {**POD, **OPERATOR}))
    other = replace(seen.workers[1], facts=w.changed(w.sriov(1, "mlx5_7"), gpus=Gpus(8)).facts)
    seen = replace(seen, workers=(seen.workers[0], other))
    made = planned("./train", seen)
    lines = (line.partition(" = ")[2] for line in parts(made, seen)["log"])
    message = "".join(f"mpiboot: {line}\n" for line in lines)
    assert not_printed(named("data-network-log"), message) == []
    assert not_printed(named("data-network-table"), dedent(render.workers(made.rows))) == []


@pytest.mark.full
def test_the_wheel_of_the_page_is_built_installed_and_makes_a_plan(tmp_path: Path) -> None:
    """It takes setuptools and mpiboot's dependencies from PyPI."""
    done = subprocess.run(
        ["bash", "-ec", named("wheel")],
        cwd=copied(tmp_path),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "16 (default: all slots of 2 hosts)" in " ".join(done.stdout.split())


def test_the_readmes_completion_completes() -> None:
    """`mpiboot wo<TAB>`, as bash asks for it."""
    asks = "COMP_WORDS=(mpiboot wo); COMP_CWORD=1; _mpiboot_completion mpiboot; echo $COMPREPLY"
    path = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
    done = subprocess.run(
        ["bash", "-ec", named("completion") + asks],
        env={"PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["worker"], done.stderr


def test_the_shims_of_the_docs_are_those_that_are_played() -> None:
    lines = re.findall(r"^RUN (.*?) *#", named("shims"), re.MULTILINE)
    assert lines == [" ".join(test_images.ON_PATH)]


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
    # With 1 only `mpiboot doctor` ends, and many programs.
    never = {item.code for item in CHECKS if item.code not in AGAIN} - {1}
    again = {item.code for item in CHECKS if item.code in AGAIN}
    jobs = [
        item for _, made in documents() for item in check.below(made) if "podFailurePolicy" in item
    ]
    assert jobs
    for job in jobs:
        assert job["backoffLimit"] > 0
        (rule,) = job["podFailurePolicy"]["rules"]
        listed = set(rule["onExitCodes"]["values"])
        # A device may come up later: a try is worth it.
        assert listed == never - again - {72}
    volcano = [
        [
            policy
            for policy in item["policies"]
            if policy.get("exitCode") or "PodFailed" in str(policy)
        ]
        for _, made in documents()
        for item in check.below(made)
        if "exitCode" in str(item.get("policies"))
    ]
    assert volcano
    for *codes, last in volcano:
        assert {policy["exitCode"] for policy in codes} == never - again - {72}
        assert {policy["action"] for policy in codes} == {"TerminateJob"}
        # The first that fits counts: what is left for any failure comes behind the codes.
        assert last == {"event": "PodFailed", "action": "RestartJob"}


def commands() -> Iterator[tuple[str, list[str]]]:
    for block in blocks("sh", "dockerfile"):
        for line in re.findall(
            r"(?:^|RUN |-- |venv/bin/)(mpiboot [^\n]*)", block.text, re.MULTILINE
        ):
            yield block.page.name, shlex.split(line.partition(" #")[0])[1:]
    for name, pod in pods():
        for container in pod["containers"]:
            if container.get("command", [""])[0] == "mpiboot":
                yield name, container["command"][1:]


def refused(words: list[str]) -> str:
    """What is wrong with a command line, read to its last command; empty where nothing is."""
    try:
        context = cli.make_context("mpiboot", list(words))
        while isinstance(context.command, click.Group):
            rest = [*getattr(context, "protected_args", ()), *context.args]
            if not rest:  # a command of its own, as doctor
                break
            name, command, left = context.command.resolve_command(context, rest)
            assert command is not None
            context = command.make_context(name, left, parent=context)
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


LINKED = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]


@pytest.mark.parametrize("page", LINKED, ids=lambda page: page.name)
def test_a_pages_links_lead_somewhere(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#]*)(?:#([^)]*))?\)", page.read_text()):
        if "://" not in target:
            there = page.parent / target if target else page
            assert there.exists(), target
            headings = re.findall(r"^#+ (.*)", there.read_text(), re.MULTILINE) if anchor else ()
            # What a heading is called in links, as forges make it.
            names = [re.sub(r"[^\w -]", "", text.lower()).replace(" ", "-") for text in headings]
            assert not anchor or anchor in names, f"{target}#{anchor}"


def test_every_page_is_in_the_index() -> None:
    index = ROOT / "docs/README.md"
    listed = {
        (index.parent / target).resolve()
        for target in re.findall(r"\]\(([^)#]+)", index.read_text())
    }
    assert [page.name for page in LINKED if page not in {index, *listed}] == []


def test_every_event_of_the_log_is_in_its_page() -> None:
    page = (ROOT / "docs/reference/log.md").read_text()
    events = "".join(re.findall(r"^\|([^|]*)\|", page, re.MULTILINE))
    documented = set(re.findall(r"`([a-z-]+)`", events))
    written = set()
    for path in (ROOT / "mpiboot").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            name = ast.unparse(node.func)
            place = {"log.info": 0, "log.debug": 0, "log.warning": 0, "log.error": 0}
            place |= {"Say": 1, "Line": 0}
            if name in place and isinstance(node.args[place[name]], ast.Constant):
                constant = node.args[place[name]]
                assert isinstance(constant, ast.Constant)
                written.add(str(constant.value))
    assert "ended" in written
    assert written - documented - {item.reference for item in CHECKS} == set()


def test_what_troubleshooting_quotes_is_what_mpiboot_says() -> None:
    """A quote may have `…` for a name; what is said in parts is looked for part by part."""
    sources = "".join(
        path.read_text() for path in sorted((ROOT / "mpiboot").rglob("*")) if path.suffix == ".py"
    )
    page = (ROOT / "docs/troubleshooting.md").read_text()
    first, _, rest = page.partition("## What a library says")  # what others say
    page = first + rest.partition("## My pod ")[2]
    quotes = re.findall(r"`([^`]+)`", "".join(re.findall(r"^\|([^|]*)\|", page, re.MULTILINE)))
    assert len(quotes) > 10
    references = {f"[{item.reference}]" for item in CHECKS} | {"[program]"}
    for quote in quotes:
        if quote.startswith("["):
            assert quote in references
        for part in re.split(r"waiting for (?:DNS for|SSH on)|…|\(|\)", quote):
            assert quote in references or part.strip() in sources, quote


def test_the_version_is_that_of_the_changelogs_top() -> None:
    """What is not released doesn't bear a release's number."""
    text = (ROOT / "CHANGELOG.md").read_text()
    top, *released = re.findall(r"^## (\S+)", text, re.MULTILINE)
    if top != "Unreleased":
        assert __version__ == top
        return
    message = re.fullmatch(r"(\d+)\.(\d+)\.(\d+)\.dev0", __version__)
    assert message is not None
    last = tuple(map(int, released[0].split("."))) if released else (0, 0, 0)
    assert tuple(map(int, message.groups())) > last


def test_files_and_records_that_the_architecture_names_are_there() -> None:
    text = (ROOT / "docs/architecture.md").read_text()
    found = (*ROOT.glob("mpiboot/**/*"), *ROOT.glob("tests/pods/*.py"))
    there = {path.relative_to(ROOT).as_posix() for path in found}
    there |= {f"{path}/" for path in there} | {"tests/pods/"}
    files = re.findall(r"`((?:[\w.]+/)*(?:\w+\.py|\w+/))`", text)
    assert len(files) > 15
    assert [
        name for name in files if not any(f"/{one}".endswith(f"/{name}") for one in there)
    ] == []
    sources = "".join(path.read_text() for path in (ROOT / "mpiboot").rglob("*.py"))
    records = set(re.findall(r"`((?:[A-Z][a-z]+)+)`", text))
    assert len(records) > 4
    assert records - set(re.findall(r"^class (\w+)", sources, re.MULTILINE)) == set()
