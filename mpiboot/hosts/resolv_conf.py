"""What resolv.conf's text means and which names a resolver asks for; reads no file itself.

dnspython has a reader of its own, which is not used: it knows neither glibc's limits (three
nameservers, ndots up to 15) nor ``attempts``, takes a file without a nameserver for an error, and
importing it costs a tenth of a second at the start of every gate, also where each name resolves.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

_LABEL: Final = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
_LONGEST_NAME: Final = 253
# glibc reads no more (resolv.conf(5)).
_NAMESERVERS: Final = 3
_MOST_DOTS: Final = 15
_LONGEST_TIMEOUT: Final = 30
_MOST_ATTEMPTS: Final = 5


@dataclass(frozen=True, slots=True)
class ResolvConf:
    """What resolv.conf says, with glibc's defaults; ``search`` has no final dots."""

    nameservers: tuple[str, ...] = ()
    search: tuple[str, ...] = ()
    ndots: int = 1
    timeout: float = 5.0
    attempts: int = 2
    use_vc: bool = False


def parse(text: str) -> ResolvConf:
    """Read a resolv.conf as glibc does: of several search lines the last one counts."""
    found = ResolvConf()
    for line in text.splitlines():
        words = re.split(r"[#;]", line, maxsplit=1)[0].split()
        match words[:1]:
            case ["nameserver"] if len(words) > 1:
                servers = (*found.nameservers, words[1])[:_NAMESERVERS]
                found = replace(found, nameservers=servers)
            case ["search" | "domain"]:
                domains = tuple(word.rstrip(".") for word in words[1:])
                found = replace(found, search=tuple(filter(None, domains)))
            case ["options"]:
                for option in words[1:]:
                    found = _with_option(found, option)
            case _:
                continue
    return found


def _with_option(conf: ResolvConf, option: str) -> ResolvConf:
    name, _, value = option.partition(":")
    if name == "use-vc":
        return replace(conf, use_vc=True)
    if not value.isascii() or not value.isdigit():
        return conf
    match name:
        case "ndots":
            return replace(conf, ndots=min(int(value), _MOST_DOTS))
        case "timeout":
            return replace(conf, timeout=float(min(max(int(value), 1), _LONGEST_TIMEOUT)))
        case "attempts":
            return replace(conf, attempts=min(max(int(value), 1), _MOST_ATTEMPTS))
        case _:
            return conf


def host_sources(nsswitch: str) -> tuple[str, ...]:
    """Give where the system looks for hosts, by nsswitch.conf's text; glibc's own where it is mute.

    Without the file glibc asks /etc/hosts and the nameservers, as does musl, which never reads it.
    """
    for line in nsswitch.splitlines():
        database, colon, text = line.partition("#")[0].partition(":")
        if colon and database.strip() == "hosts":
            return tuple(re.sub(r"\[[^]]*\]", " ", text).split())
    return ("files", "dns")


def search_names(name: str, conf: ResolvConf) -> tuple[str, ...]:
    """Give the absolute names that a resolver asks for, in its order (resolv.conf(5))."""
    if name.endswith("."):
        return (name,)
    listed = tuple(f"{name}.{domain}." for domain in conf.search)
    if name.count(".") >= conf.ndots:
        return (f"{name}.", *listed)
    return (*listed, f"{name}.")


def is_malformed(name: str) -> bool:
    """Tell whether no nameserver could ever have a host of this name."""
    bare = name.removesuffix(".")
    labels = bare.split(".")
    return len(bare) > _LONGEST_NAME or not all(_LABEL.fullmatch(label) for label in labels)
