"""Which values are secrets, by the names that they are given, and how they are shown. Pure.

Values themselves say nothing: a password may be a number, a token any word.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import pairwise
from typing import Final

HIDDEN: Final = "(hidden)"

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET_ENDS: Final = ("TOKEN", "TOKENS", "PASSWORD", "PASSWD", "PASSPHRASE", "SECRET", "SECRETS")
_SECRET_WORDS: Final = frozenset(
    {"CREDENTIAL", "CREDENTIALS", "APIKEY", "COOKIE", "AUTHKEY", "AUTHORIZATION"}
)
_SECRET_LAST: Final = frozenset({"KEY", "KEYS", "PASS", "PAT", "AUTH", "PWD"})
# What a script gives to a name: an assignment, or an option with its value behind it.
_GIVEN: Final = re.compile(
    r"(?P<name>(?<![\w-])(?:[A-Za-z_]\w*(?==)|--?[A-Za-z][\w-]*))(?P<between>=|[ \t]+(?!-))"
    r"(?P<value>'[^']*'|\"[^\"]*\"|[^\s;&|]+)"
)
# A header of HTTP, or a member of JSON. Behind a blank or a quote the value goes to the end of the
# quotes or of the line, else it is a word; a path is none (`secret:/mnt` is a volume).
_HEADER: Final = re.compile(
    r"(?P<name>(?<![\w/@-])[A-Za-z][\w-]*)(?P<between>[\"']?[ \t]*:(?P<wide>[ \t]+[\"']?|[\"'])?)"
    r"(?P<value>(?(wide)[^\"'\\\n]+|[^\s\"'\\;&|/][^\s\"'\\;&|]*))"
)
# A user with a password behind a colon, as curl and others take it.
_LOGIN_OPTIONS: Final = ("-u", "-U", "--user", "--proxy-user")
_LOGIN: Final = re.compile(
    r"(?P<name>(?<![\w-])(?:-[uU]|--(?:proxy-)?user))(?P<between>=|[ \t]*)"
    r"(?P<value>'[^':]*:[^']*'|\"[^\":]*:[^\"]*\"|[^\s\"':;&|]+:[^\s;&|]*)"
)
_BEARER: Final = re.compile(r"(?i:(?P<name>\bbearer)(?P<between>[ \t]+)(?P<value>[^\s\"'\\;&|]+))")
_IN_URL: Final = re.compile(r"(?<=://)[^/@\s]*:[^/@\s]*(?=@)")


def is_secret(name: str) -> bool:
    """Tell by its name whether a variable's value must never be shown.

    mpiboot's own settings hold none: ``MPIBOOT_SSH_KEY`` is a path.
    """
    if name.startswith("MPIBOOT_"):
        return False
    words = name.upper().split("_")
    if any(word.endswith(_SECRET_ENDS) or word in _SECRET_WORDS for word in words):
        return True
    return len(words) > 1 and (
        words[-1] in _SECRET_LAST or any(pair == ("ACCESS", "KEY") for pair in pairwise(words))
    )


def mask(name: str, value: str) -> str:
    """Return a value as it may be shown: secrets hidden, and on one line.

    A user and password inside a URL (proxies have them) are hidden in any variable.
    """
    if value and is_secret(name) and not _counts(name, value):
        return HIDDEN
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode()
        for char in _IN_URL.sub(HIDDEN, value)
    )


def _counts(name: str, value: str) -> bool:
    """Tell a number of tokens (a language model's) from a token."""
    return name.upper().endswith("TOKENS") and value.isdigit()


def masked_words(words: Iterable[str]) -> tuple[str, ...]:
    """Return a command line as it may be shown; words without a secret stay as they are.

    Hidden is what goes to a secret's name: as ``NAME=VALUE``, ``--name=value``, ``--name value``
    or ``Name: value``, also inside a word that is a script; what follows ``Bearer``; the login in
    a URL, and a user with a password behind ``-u`` or ``--user``.
    """
    shown: list[str] = []
    option = ""
    for word in words:
        secret = ":" in word if option in _LOGIN_OPTIONS else _hides(option, word)
        shown.append(HIDDEN if secret and not word.startswith("-") else _masked_word(word))
        option = word if word.startswith("-") and "=" not in word else ""
    return tuple(shown)


def _hides(option: str, word: str) -> bool:
    return bool(option) and mask(_as_variable(option), word) == HIDDEN


def _as_variable(name: str) -> str:
    """Turn ``--api-key`` and ``X-Api-Key`` into the form of a variable's name."""
    return name.lstrip("-").replace("-", "_").upper()


def _masked_word(word: str) -> str:
    name, equals, value = word.partition("=")
    key = _as_variable(name)
    if equals and _NAME.fullmatch(key) and mask(key, value) == HIDDEN:
        return f"{name}={HIDDEN}"
    for pattern in (_GIVEN, _HEADER):
        word = pattern.sub(_masked_value, word)
    word = _LOGIN.sub(rf"\g<name>\g<between>{HIDDEN}", word)
    return _IN_URL.sub(HIDDEN, _BEARER.sub(rf"\g<name>\g<between>{HIDDEN}", word))


def _masked_value(found: re.Match[str]) -> str:
    if mask(_as_variable(found["name"]), found["value"].strip()) != HIDDEN:
        return found[0]
    return f"{found['name']}{found['between']}{HIDDEN}"
