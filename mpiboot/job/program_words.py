"""Classifies a program by its words: mpirun, a script, a single program, torchrun. Pure.

No option of mpirun is read here: see ``mpirun_line``. Every start of a launcher loads this, so that
patterns are compiled where they are used. Options and variables for torchrun are those of its
torch/distributed/run.py: with each option goes a variable PET_..., and a master address counts
where there is no endpoint. A program without torchrun has MASTER_ADDR.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from mpiboot.core.model import Finding, Level
from mpiboot.job.names import short

MPIRUNS: Final = frozenset({"mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun"})
# Debian's alternatives have the MPI's name behind a dot.
_SUFFIXES: Final = (".openmpi", ".mpich")
_MISQUOTED: Final = 3


def is_mpirun(word: str) -> bool:
    """Tell whether a program is an mpirun by its name, with or without a path."""
    name = word.rsplit("/", 1)[-1]
    for suffix in _SUFFIXES:
        name = name.removesuffix(suffix)
    return name in MPIRUNS


def called(program: Sequence[str]) -> str:
    """Give the mpirun that a line calls, by name or path; empty where it calls none.

    ``prterun`` does not say whose it is: the mpirun beside it does.
    """
    if not program or not is_mpirun(program[0]):
        return ""
    folder, slash, name = program[0].rpartition("/")
    return f"{folder}{slash}mpirun" if name == "prterun" else program[0]


def misquoted_args(argv: Sequence[str]) -> str:
    """Explain a common mistake in manifests: several words in one argument.

    ``args: ["mpirun -n 4 ./prog"]`` is one word, the name of a program that isn't there.

    Returns:
        A sentence; empty where there is no such mistake.
    """
    for word in argv[:2]:
        parts = word.split()
        if len(parts) >= _MISQUOTED and (is_mpirun(parts[0]) or parts[0].startswith("-")):
            from mpiboot.core.masking import masked_words  # noqa: PLC0415 - heavy, and rarely needed

            (shown,) = masked_words((word,))
            wanted = ", ".join(f'"{part}"' for part in masked_words(parts))
            return f"{shown!r} is one argument, probably meant as several: [{wanted}]"
    return ""


_SHELLS: Final = frozenset({"sh", "bash", "dash", "ksh", "zsh", "ash", "busybox"})
_PYTHON: Final = r"python[\d.]*"
_MPIRUN: Final = frozenset({"mpirun", "mpiexec"})
# Programs that log in to the hosts by themselves. Not scp: a rank may copy its result by that.
_LOG_IN: Final = frozenset({"ssh", "pdsh", "horovodrun", "deepspeed"})
# What keeps a container for whoever looks around in it.
_STAY: Final = (
    ("sleep", "infinity"),
    ("sleep", "inf"),
    ("tail", "-f", "/dev/null"),
    ("tail", "-F", "/dev/null"),
)
_NAMES: Final = "|".join(sorted(_MPIRUN | _LOG_IN))
# A call stands where a command begins: behind a line's start, an operator, a word that takes a
# command, and variables that are set for it.
_CALL: Final = (
    r"(?m)(?:^|[;&|(`{!]|\b(?:then|do|else|exec|time|nohup|command|env|if|while|until|timeout\s+\S+)\s)"
    r"\s*(?:[A-Za-z_]\w*=\S*\s+)*"
    rf"(?P<path>(?:[\w.$}}{{-]*/)*)(?P<name>{_NAMES})(?=[\s;&|)`]|$)"
)
# The same in a Python program: the first word of what is started.
_PYTHON_CALL: Final = (
    r"\b(?:system|popen|run|call|check_call|check_output|Popen|getoutput|create_subprocess_\w+)"
    rf"\(\s*[\[(]?\s*f?[\"'](?P<path>(?:[\w.-]*/)*)(?P<name>{_NAMES})(?=[\"'\s])"
)
_COMMENT: Final = r"(?m)(?:^|(?<=\s))#.*$"
_WITH_VALUE: Final = frozenset({"-o", "+o", "-O", "+O", "--rcfile", "--init-file"})
_PYTHON_WITH_VALUE: Final = frozenset({"-W", "-X", "--check-hash-based-pycs"})


@dataclass(frozen=True, slots=True)
class Script:
    """The script that a program's words name: its file, or its text (of ``sh -c``).

    ``python`` where it is one for Python.
    """

    path: str = ""
    text: str = ""
    python: bool = False


@dataclass(frozen=True, slots=True)
class Call:
    """Where a script calls one of the programs: the path in front of the name, and the name."""

    path: str
    name: str

    @property
    def is_mpirun(self) -> bool:
        """Whether it is mpirun, by whatever path."""
        return self.name in _MPIRUN


def script_of(program: Sequence[str]) -> Script:
    """Find the script that a program may be: an interpreter's argument, or the program itself."""
    first, *rest = program
    name = first.rsplit("/", 1)[-1]
    words = iter(rest)
    if re.fullmatch(_PYTHON, name):
        for word in words:
            if word in _PYTHON_WITH_VALUE:
                next(words, "")
            elif word.startswith("-"):
                if word.startswith(("-c", "-m")):
                    break
            else:
                return Script(path=word, python=True)
        return Script()
    if name not in _SHELLS:
        return Script(path=first)
    for word in words:
        if word in _WITH_VALUE:
            next(words, "")
        elif word.startswith("-") and not word.startswith("--") and "c" in word:
            return Script(text=next(words, ""))
        elif not word.startswith(("-", "+")):
            return Script(path=word)
    return Script()


def starts_by_itself(program: Sequence[str]) -> bool:
    """Tell whether a program is known to log in to the hosts, whatever is in its file."""
    return program[0].rsplit("/", 1)[-1] in _LOG_IN


def only_stays(program: Sequence[str]) -> bool:
    """Return whether a program only keeps the container alive for someone to look around in it."""
    name, *rest = program[0].rsplit("/", 1)[-1], *program[1:]
    if (name, *rest) in _STAY:
        return True
    return name in _SHELLS - {"busybox"} and script_of(program) == Script() and "-s" not in rest


def calls(text: str) -> tuple[Call, ...]:
    """Find where a shell script calls mpirun, or what logs in to hosts."""
    plain = re.sub(_COMMENT, "", text.replace("\\\n", " "))
    return tuple(Call(found["path"], found["name"]) for found in re.finditer(_CALL, plain))


def python_calls(text: str) -> tuple[Call, ...]:
    """Find where a Python program plainly starts one of them."""
    plain = re.sub(_COMMENT, "", text)
    return tuple(Call(found["path"], found["name"]) for found in re.finditer(_PYTHON_CALL, plain))


# What pods run beside jobs: shells, whoever waits, and mpirun, which counts its ranks itself.
_BESIDE_JOBS: Final = (
    *_SHELLS,
    *MPIRUNS,
    *("fish", "tini", "dumb-init", "catatonit"),
    *("sleep", "tail", "cat", "env", "true", "false", "id", "ls", "hostname"),
)
# What tells a program that it is a rank already.
_RANK_MARKS: Final = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")
_ALONE_HINT: Final = (
    "set MPIBOOT_ROLE=launcher and mount a hostfile on the launcher, START_SSHD=true on workers; "
    "or MPIBOOT_ROLE=by-index in all pods, where number 0 is to be the launcher; "
    "MPIBOOT_ROLE=none says that one process is meant"
)


def runs_alone(
    program: str, environ: Mapping[str, str], hostname: str, hosts: str
) -> Finding | None:
    """Warn of a program that runs alone, where an MPI job may be meant.

    Args:
        program: what would be run; an MPI is known to be installed.
        environ: the pod's environment.
        hostname: the pod's name.
        hosts: the text of /etc/hosts.

    Returns:
        A warning; None for what pods run beside jobs, and for a rank.
    """
    if program.rpartition("/")[2] in _BESIDE_JOBS or any(environ.get(name) for name in _RANK_MARKS):
        return None
    several = one_of_several(environ, hostname, hosts)
    message = f"{program} runs once in this pod, without mpirun: no hostfile, no role"
    more = f"; but {several}" if several else ""
    return Finding("role", Level.WARN, message + more, hint=_ALONE_HINT)


def one_of_several(environ: Mapping[str, str], hostname: str, hosts: str) -> str:
    """Return what shows that this pod is one of a StatefulSet or indexed Job; else empty."""
    if environ.get("JOB_COMPLETION_INDEX"):
        return "JOB_COMPLETION_INDEX says that this is one pod of an indexed Job"
    if re.search(r"-\d+$", hostname):
        # The kubelet writes a name below a Service for pods that have one, as a StatefulSet's.
        named = re.search(rf"\s{re.escape(hostname)}\.[\w-]+\.[\w-]+\.svc", hosts)
        if named:
            return f"the name {named[0].strip()} in /etc/hosts is that of one pod of several"
    return ""


# The strongest first.
_NAMED_BY: Final = (
    ("rdzv-endpoint", "PET_RDZV_ENDPOINT"),
    ("master-addr", "PET_MASTER_ADDR"),
    ("", "MASTER_ADDR"),
)
# What Kubernetes puts behind a name that it makes up (k8s.io/apimachinery, pkg/util/rand).
_RANDOM: Final = r"[bcdfghjklmnpqrstvwxz2456789]{5}"


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Where processes meet: a host's name or address, what names it, and the port where known.

    ``by`` is an option or a variable; ``port`` is where rank 0 is to listen, else 0.
    """

    host: str
    by: str
    port: int = 0


def find_rendezvous(program: Sequence[str], environ: Mapping[str, str]) -> Rendezvous | None:
    """Find where a program's processes meet; None where nothing names it.

    Args:
        program: the words of its line.
        environ: its environment.
    """
    if "--standalone" in program:  # torchrun then meets in this pod, whatever else is said
        return None
    for option, variable in _NAMED_BY:
        value = _option(program, option)
        found = Rendezvous(_host(value), f"--{option}") if value else None
        found = found or Rendezvous(_host(environ.get(variable, "")), variable)
        if found.host:
            return found
    return None


def _option(program: Sequence[str], option: str) -> str:
    """Give an option's value; it is written with dashes or underscores, after `=` or a blank."""
    for word, following in pairwise((*program, "")):
        name, equals, value = word.partition("=")
        if option and name.replace("_", "-") == f"--{option}":
            return value if equals else following
    return ""


def _host(endpoint: str) -> str:
    """Cut the port off: ``trainer-0:29500``, ``[fd00::1]:29500``, or an address without one."""
    text = endpoint.strip()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text if text.count(":") > 1 else text.partition(":")[0]


def why_no_name(
    host: str, hostname: str, own_names: Iterable[str], environ: Mapping[str, str]
) -> tuple[str, str]:
    """Explain why no pod of this Job has that name, with a hint; empty where that is not known.

    Args:
        host: the name where processes meet.
        hostname: this pod's own.
        own_names: this pod's full names, as /etc/hosts has them.
        environ: this pod's environment.
    """
    first, own = short(host), short(hostname)
    job, _, number = first.rpartition("-")
    if not job or not number.isdecimal():
        return "", ""
    if not environ.get("JOB_COMPLETION_INDEX"):
        if re.fullmatch(_RANDOM, own.removeprefix(f"{job}-")) and own.startswith(f"{job}-"):
            message = (
                f"this pod is called {own}: a Job that is not indexed has no pod named {first}"
            )
            hint = (
                "set `completionMode: Indexed` in the Job, and `subdomain` in its pods to the name "
                "of a headless Service"
            )
            return message, hint
        return "", ""
    if "." in host:
        return "", ""
    service = next((name.split(".")[1] for name in own_names if name.count(".") > 1), "")
    hint = f"write {first}.{service or 'SERVICE'}"
    if not service:
        hint += ", with `subdomain: SERVICE` in the Job's pods, the name of a headless Service"
    return f"a pod's name is known below its Service alone, and {host} has none", hint
