"""Where processes meet that each pod starts by itself, as torchrun does. Pure.

Options and variables are those of PyTorch's torch/distributed/run.py: with each option goes a
variable PET_..., and a master address counts where there is no endpoint. A program without
torchrun has MASTER_ADDR.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from mpiboot.job.names import short

# The strongest first.
_NAMED_BY: Final = (
    ("rdzv-endpoint", "PET_RDZV_ENDPOINT"),
    ("master-addr", "PET_MASTER_ADDR"),
    ("", "MASTER_ADDR"),
)
# What Kubernetes puts behind a name that it makes up (k8s.io/apimachinery, pkg/util/rand).
_RANDOM: Final = re.compile(r"[bcdfghjklmnpqrstvwxz2456789]{5}")


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """The host where processes meet, a name or an address, and the option or variable for it."""

    host: str
    by: str


def find(program: Sequence[str], environ: Mapping[str, str]) -> Rendezvous | None:
    """Find where a program's processes meet; None where nothing says it.

    Args:
        program: the words of its line.
        environ: its environment.
    """
    if "--standalone" in program:  # torchrun then meets in this pod, whatever else is said
        return None
    for option, variable in _NAMED_BY:
        said = _option(program, option)
        found = Rendezvous(_host(said), f"--{option}") if said else None
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
    """Say why no pod of this Job has a name, and what to do; empty where that can't be told.

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
        if _RANDOM.fullmatch(own.removeprefix(f"{job}-")) and own.startswith(f"{job}-"):
            said = f"this pod is called {own}: a Job that is not indexed has no pod named {first}"
            hint = (
                "set `completionMode: Indexed` in the Job, and `subdomain` in its pods to the name "
                "of a headless Service"
            )
            return said, hint
        return "", ""
    if "." in host:
        return "", ""
    service = next((name.split(".")[1] for name in own_names if name.count(".") > 1), "")
    hint = f"write {first}.{service or 'SERVICE'}"
    if not service:
        hint += ", with `subdomain: SERVICE` in the Job's pods, the name of a headless Service"
    return f"a pod's name is known below its Service alone, and {host} has none", hint
