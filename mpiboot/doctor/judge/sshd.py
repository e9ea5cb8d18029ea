"""Whether an OpenSSH server that runs lets this user in with a key. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from typing import Final

from mpiboot.core.checks import BY_REFERENCE, failed
from mpiboot.core.model import Finding, Identity, Level
from mpiboot.doctor.judge.image import ok
from mpiboot.doctor.report import SshdSettings, SshdSettingsPart

_CHECK: Final = "sshd-settings"
_OTHERS_WRITE: Final = 0o022


def settings(seen: SshdSettingsPart, who: Identity) -> Iterable[Finding]:
    """Judge each server; of one that can't be asked nothing is known."""
    for server in seen.servers:
        where = f"sshd on port {server.port}"
        if server.wrong:
            said = f"{where}: `{server.program} -T` does not tell its settings: {server.wrong}"
            yield Finding(_CHECK, Level.UNKNOWN, said, hint=BY_REFERENCE[_CHECK].hint)
            continue
        wrong = list(_refuses(server, who))
        for said in wrong:
            yield failed(_CHECK, f"{where} lets {who.user} not in: {said}")
        if not wrong:
            yield ok(_CHECK, f"{where} takes the keys of {who.user}")


def _refuses(server: SshdSettings, who: Identity) -> Iterator[str]:
    """Say what keeps a user with a key out, by sshd_config(5)."""

    def value(name: str) -> str:
        return " ".join(server.values.get(name, ())).strip()

    if value("pubkeyauthentication") == "no":
        yield "PubkeyAuthentication no"
    methods = value("authenticationmethods")
    if methods not in ("", "any") and "publickey" not in methods.split():
        yield f"AuthenticationMethods {methods}"
    root = value("permitrootlogin")
    if who.uid == 0 and root in ("no", "forced-commands-only"):
        yield f"PermitRootLogin {root}"
    allowed, denied = value("allowusers").split(), value("denyusers").split()
    if allowed and not _named(who.user, allowed):
        yield f"AllowUsers {' '.join(allowed)}"
    if _named(who.user, denied):
        yield f"DenyUsers {' '.join(denied)}"
    if value("strictmodes") == "yes":
        for path, mode, owner in server.keys:
            if owner not in (0, who.uid):
                yield f"StrictModes yes, and {path} is of uid {owner}"
            elif mode & _OTHERS_WRITE:
                yield f"StrictModes yes, and others may write {path} (mode {mode:04o})"


def _named(user: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(user, pattern.partition("@")[0]) for pattern in patterns)
