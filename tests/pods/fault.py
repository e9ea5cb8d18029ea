"""A broken pod, its fault, and doctor's finding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A pod with one fault.

    `what` is the fault in plain words; `check`, `level` and `said` are doctor's finding, in which
    `...` stands for what differs from pod to pod; so is `hint`, where it is not the check's own.
    The pod is broken by fields of its PodSpec (`pod`), by files that its image lacks
    (`without`), by other files in the Secret of its key (`key`; None: there is no Secret), by a
    script before doctor runs (`before`), or by programs run in its network (`network`). With
    `runs` the container runs this, and doctor is called in it as soon as it has written `until`.
    """

    what: str
    check: str
    level: str
    message: str
    hint: str = ""
    pod: Mapping[str, Any] = field(default_factory=dict)
    without: Sequence[str] = ()
    key: Mapping[str, str] | None = field(default_factory=dict)
    key_path: str = "/root/.ssh"
    key_mode: int = 0o644
    before: str = ""
    network: Sequence[str] = ()
    runs: Sequence[str] = ()
    until: str = ""
    quick: bool = False

    @property
    def name(self) -> str:
        """The name of its test."""
        return "-".join(self.what.replace(",", "").replace("`", "").split())
