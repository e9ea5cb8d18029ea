"""Recognises secrets by the names of their variables and options, and hides them. Pure.

Values alone do not show it: a password may be a number, a token any word.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import pairwise
from typing import Any, Final, TypeVar, cast

HIDDEN: Final = "(hidden)"
_Value = TypeVar("_Value")

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET_ENDS: Final = ("TOKEN", "TOKENS", "PASSWORD", "PASSWD", "PASSPHRASE", "SECRET", "SECRETS")
_SECRET_WORDS: Final = frozenset(
    {"CREDENTIAL", "CREDENTIALS", "APIKEY", "COOKIE", "AUTHKEY", "AUTHORIZATION"}
    | {"CONNSTR", "DSN"}
)
_SECRET_LAST: Final = frozenset({"KEY", "KEYS", "PASS", "PAT", "AUTH", "PWD"})
# Secrets without a word before them: as an option, and in the query of a signed URL.
_SECRET_OPTIONS: Final = frozenset({"KEY", "PASS", "PAT", "AUTH", "PWD"})
_SECRET_IN_QUERY: Final = _SECRET_OPTIONS | {"SIG", "SIGNATURE"}
# mpiboot's own options that end like a secret's name; a check has the name of one of them.
_OWN: Final = ("ssh-key", "host-keys")
_VALUE: Final = r"'[^']*'|\"[^\"]*\"|[^\s;&|]+"
# A password may begin with a dash; an option that takes no value may stand before another one.
_NEXT_OPTION: Final = re.compile(r"--[a-z]+(?:[_-][a-z]+)*(?:[=\s]|$)")
# What a script gives to a name: an assignment, or an option with its value behind it.
_GIVEN: Final = re.compile(
    r"(?P<name>(?<![\w-])(?:[A-Za-z_]\w*(?==)|--?[A-Za-z][\w-]*))"
    rf"(?:=|[ \t]+(?!{_NEXT_OPTION.pattern}))(?P<value>{_VALUE})"
)
# Hydra's `-genv NAME VALUE`.
_SET_OPTIONS: Final = ("-genv", "--genv", "-env", "--env")
_SET: Final = re.compile(
    rf"(?<![\w-])--?(?i:g?env)[ \t]+(?P<name>[A-Za-z_]\w*)[ \t]+(?P<value>{_VALUE})"
)
# A header of HTTP, or a member of JSON. Behind a blank or a quote the value goes to the end of the
# quotes or of the line, else it is a word; a path is none (`secret:/mnt` is a volume).
_HEADER: Final = re.compile(
    r"(?P<name>(?<![\w/@-])[A-Za-z][\w-]*)[\"']?[ \t]*:(?P<wide>[ \t]+[\"']?|[\"'])?"
    r"(?P<value>(?(wide)[^\"'\\\n]+|[^\s\"'\\;&|/][^\s\"'\\;&|]*))"
)
# A user with a password behind a colon, as curl and others take it.
_LOGIN_OPTIONS: Final = ("-u", "-U", "--user", "--proxy-user")
_LOGIN: Final = re.compile(
    r"(?P<name>(?<![\w-])(?:-[uU]|--(?:proxy-)?user))(?P<between>=|[ \t]*)"
    r"(?P<value>'[^':]*:[^']*'|\"[^\":]*:[^\"]*\"|[^\s\"':;&|]+:[^\s;&|]*)"
)
_BEARER: Final = re.compile(r"(?i:(?P<name>\bbearer)(?P<between>[ \t]+)(?P<value>[^\s\"'\\;&|]+))")
# A member of a connection string, as clients of Azure, SQL Server and PostgreSQL take them.
_MEMBER: Final = re.compile(
    r"(?i:(?P<name>\b(?:account|access|shared|secret|primary)\w*(?:key|signature)|(?<=;)[ ]?pwd)"
    r"(?P<between>[ ]?=[ ]?)(?P<value>[^;\s'\"\\]+))"
)
_IN_URL: Final = re.compile(r"(?<=://)[^/@\s]*:[^/@\s]*(?=@)")
_QUERY: Final = re.compile(r"(?<=[?&])(?P<name>[A-Za-z][\w.-]*)=(?P<value>[^\s&;#'\"\\]+)")


def is_secret(name: str) -> bool:
    """Return whether a variable's value must never be shown, by its name.

    mpiboot's own settings hold none: ``MPIBOOT_SSH_KEY`` is a path.
    """
    if name.startswith("MPIBOOT_"):
        return False
    words = name.upper().split("_")
    if any(word.endswith(_SECRET_ENDS) or word in _SECRET_WORDS for word in words):
        return True
    return len(words) > 1 and (
        words[-1] in _SECRET_LAST
        or words[-2:] == ["CONNECTION", "STRING"]
        or any(pair == ("ACCESS", "KEY") for pair in pairwise(words))
    )


def mask(name: str, value: str) -> str:
    """Return a value as it may be shown: secrets hidden, and on one line.

    In any variable the login inside a URL (proxies have one) is hidden, and what signs it.
    """
    # A number of tokens (a language model's) is no token.
    counts = name.upper().endswith("TOKENS") and value.isdigit()
    if value and is_secret(name) and not counts:
        return HIDDEN
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode()
        for char in _without_members(value)
    )


def mask_within(name: str, value: str) -> str:
    """Return a value as ``mask`` does, with what options or a list in it give to secrets hidden."""
    return masked_words((mask(name, value),))[0]


def masked(value: _Value) -> _Value:
    """Return a text, or the texts of a record, without secrets; a list of words is a command."""
    found: object = value
    if isinstance(value, str):
        found = _masked_text(value)
    elif isinstance(value, (list, tuple)):
        words = all(isinstance(item, str) for item in value)
        found = list(masked_words(value) if words else map(masked, value))
    elif isinstance(value, dict):
        found = {name: masked(item) for name, item in value.items()}
    return cast("Any", found)  # type: ignore[no-any-return]


def masked_words(words: Iterable[str]) -> tuple[str, ...]:
    """Return a command line as it may be shown; words without a secret stay as they are.

    Hidden is what goes to a secret's name: as ``NAME=VALUE``, ``-genv NAME VALUE``,
    ``--name=value``, ``--name value`` or ``Name: value``, also inside a word that is a script; what
    follows ``Bearer``; the login in a URL and what signs it, and a user with a password behind
    ``-u`` or ``--user``.
    """
    line = tuple(words)
    before = zip(("", "", *line), ("", *line), line, strict=False)
    return tuple(
        HIDDEN if _hides(option, name, word) else _masked_word(word)
        for option, name, word in before
    )


def _hides(option: str, name: str, word: str) -> bool:
    """Whether a word is a secret, by the two words before it."""
    if option.lower() in _SET_OPTIONS and _NAME.fullmatch(name) and is_secret(name):
        return True
    if name in _LOGIN_OPTIONS:
        return ":" in word and not word.startswith("-")
    option_takes_it = name.startswith("-") and not _NEXT_OPTION.match(word)
    return option_takes_it and "=" not in name and _belongs_to_secret(name, word)


def _belongs_to_secret(name: str, value: str) -> bool:
    """Whether the value of a variable, an option or a header is hidden, by its name."""
    variable = _as_variable(name)
    if name.lstrip("-") in _OWN:
        return False
    if name.startswith("-") and variable in _SECRET_OPTIONS:
        return bool(value)
    return mask(variable, value) == HIDDEN


def _as_variable(name: str) -> str:
    """Turn ``--api-key`` and ``X-Api-Key`` into the form of a variable's name."""
    return name.lstrip("-").replace("-", "_").upper()


def _masked_word(word: str) -> str:
    name, equals, value = word.partition("=")
    if equals and _NAME.fullmatch(_as_variable(name)) and _belongs_to_secret(name, value):
        return f"{name}={HIDDEN}"
    return _masked_text(word)


def _masked_text(text: str) -> str:
    for pattern in (_SET, _HEADER, _GIVEN):
        text = _without_secrets(pattern, text)
    for pattern in (_LOGIN, _BEARER):
        text = pattern.sub(rf"\g<name>\g<between>{HIDDEN}", text)
    return _without_members(text)


def _without_secrets(pattern: re.Pattern[str], text: str) -> str:
    """Hide the values of secrets that a pattern finds."""
    at = 0
    while found := pattern.search(text, at):
        if _belongs_to_secret(found["name"], found["value"].strip()):
            start, end = found.span("value")
            text = f"{text[:start]}{HIDDEN}{text[end:]}"
            at = start + len(HIDDEN)
        else:
            at = found.end("name")  # its value may be a secret's name
    return text


def _without_members(text: str) -> str:
    """Hide logins in URLs, what signs a URL, and the secrets of a connection string."""
    text = _QUERY.sub(_masked_in_query, _IN_URL.sub(HIDDEN, text))
    return _MEMBER.sub(rf"\g<name>\g<between>{HIDDEN}", text)


def _masked_in_query(found: re.Match[str]) -> str:
    name = _as_variable(found["name"])
    secret = is_secret(name) or name.rpartition("_")[2] in _SECRET_IN_QUERY
    return f"{found['name']}={HIDDEN}" if secret else found[0]
