from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpiboot.core import masking

_SECRETS = (
    "HF_TOKEN GITHUB_TOKEN MYTOKEN PGPASSWORD DB_PASSWORD MYSQL_PWD WANDB_API_KEY "
    "AWS_SECRET_ACCESS_KEY AWS_ACCESS_KEY_ID GOOGLE_APPLICATION_CREDENTIALS client_secret "
    "SSH_PASSPHRASE NCCL_MY_TOKEN"
)


@pytest.mark.parametrize("name", _SECRETS.split())
def test_a_secret_is_hidden_wherever_its_value_would_be_shown(name: str) -> None:
    assert masking.mask(name, "hunter2") == masking.HIDDEN
    assert masking.mask(name, "") == ""


@pytest.mark.parametrize(
    "name",
    ["TOKENIZERS_PARALLELISM", "NCCL_DEBUG", "PWD", "KEYBOARD", "MPIBOOT_SSH_KEY", "BYPASS_X"],
)
def test_what_is_no_secret_is_shown(name: str) -> None:
    assert masking.mask(name, "hunter2") == "hunter2"


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("DB_PASSWORD", "12345678", masking.HIDDEN),
        ("API_TOKEN", "12345678", masking.HIDDEN),
        ("API_TOKENS", "hf_secret", masking.HIDDEN),
        ("API_TOKENS", "512,hf_secret", masking.HIDDEN),
        ("MAX_TOKENS", "512", "512"),
    ],
)
def test_a_number_is_shown_where_it_counts_tokens_and_nowhere_else(
    name: str, value: str, shown: str
) -> None:
    assert masking.mask(name, value) == shown
    assert masking.masked_words([f"{name}={value}"]) == (f"{name}={shown}",)


def test_a_password_in_a_url_is_hidden_and_a_value_stays_on_one_line() -> None:
    shown = masking.mask("https_proxy", "http://me:hunter2@proxy:3128/x")
    assert shown == "http://(hidden)@proxy:3128/x"
    shown = masking.mask("DATA_URL", "https://x.blob/a?sv=2024&sig=hunter2")
    assert shown == "https://x.blob/a?sv=2024&sig=(hidden)"
    assert masking.mask("UCX_X", "a\nb\x1b[2J\t\u00e9") == "a\\nb\\x1b[2J\\t\u00e9"


@given(st.text(max_size=30), st.text(max_size=60))
def test_a_shown_value_is_always_one_printable_line(name: str, value: str) -> None:
    assert masking.mask(name, value).isprintable()


@pytest.mark.parametrize(
    "line",
    [
        # A login behind its option.
        ["curl", "-u", "<me:hunter2>", "--user", "<me:hunter2>", "-u<me:a>", "--proxy-user=<me:a>"],
        ["sh", "-c", "curl -fu 'x' -u <me:hunter2> u; curl -u <\"me:a b\"> u; id"],
        ["id", "-u", "root", "-c", "set -u; python -u x.py a:b"],
        # Variables and options.
        ["API_TOKEN=<SECRET>", "API_TOKEN=<SECRET and SECRET>", "DB_PASSWORD=<12345678>"],
        [
            "--db-password",
            "<12345678>",
            "--api-key=<SECRET>",
            "--key",
            "<SECRET>",
            "-auth=<SECRET>",
        ],
        ["--password", "<SECRET>", "-v", "--password", "--verbose", "--password", "<-Abc9>", "-v"],
        ["--no-token", "--password", "<SECRET>"],
        ["--no-token", "--password"],
        ["-genv", "A_TOKEN", "<SECRET>", "-n", "2", "--ENV", "A_KEY", "<-Abc9>", "./a"],
        ["-genv", "A_TOKEN=<SECRET>", "./a"],
        ["-genv", "OMP_NUM_THREADS", "4", "-env", "KEY", "a", "-genv", "X=1", "A_TOKEN", "./a"],
        ["-x", "NCCL_DEBUG=INFO", "--key=", "a==b", "x=y=z", "/path=with/equals", "./train"],
        ["--max-tokens", "512", "--max-tokens=512", "MAX_TOKENS=512"],
        ["launcher", "--ssh-key", "/keys/id", "--host-keys=accept-new", "PWD=/a;x=1"],
        ["ssh-key: no private SSH key in /a: name it with --ssh-key or MPIBOOT_SSH_KEY"],
        # Scripts.
        ["-c", "./train --auth <-Abc9> -n 4; ./train -v -password <SECRET>"],
        ["-c", "mpirun -x A_TOKEN=<SECRET> a; mpiexec -env A_TOKEN <'x SECRET'> a"],
        ["-c", "export A_TOKEN=<SECRET>; cd x; A_TOKEN=<'SECRET two'> ./train"],
        ["-c", "./train --hub-token <SECRET>\ndate; ./train --hub-token=<SECRET> -v"],
        ["-c", "for i in 1 2; do ./train --seed $i --x 'a b'; done\t\u2028"],
        ["-c", "mpirun -genv NCCL_DEBUG INFO ./a --keys a,b --tokenizer t5 --monkey x"],
        # URLs, headers, JSON and connection strings.
        ["https://s3/a?X-Amz-Expires=60&X-Amz-Signature=<SECRET>&X-Amz-Credential=<SECRET>#a"],
        ["-c", "curl 'https://x.blob/a?sv=2024&sig=<SECRET%3D>' | tar x"],
        ["https_proxy=http://<me:SECRET>@proxy:3128", "--db", "postgres://<me:SECRET>@db/x"],
        ["https://x/a?sv=2024&keyboard=us&page=2", "sig=3", "Signature=x"],
        ["-H", "Authorization: <Bearer SECRET>"],
        ["-c", "curl -H 'Authorization: <Bearer SECRET>' http://x/y; ./train"],
        ["-c", 'curl -H "authorization: <Basic SECRET==>" -H "Accept: */*" x'],
        ["-c", "curl -H X-Api-Key:<SECRET> x; echo Bearer <SECRET>; date"],
        ["-c", "curl -H 'Accept: text/plain' http://token:80/x; scp key:/a b:/c"],
        ["-d", '{"api_key": "<SECRET>", "n": 1}', "-d", '{"password":"<SECRET two>"}'],
        ["-d", '{"max_tokens": "512", "keys": {"a": 1}}'],
        ["A_CONNECTION_STRING=<X=1;AccountKey=SECRET>", "X=a;AccountKey=<SECRET+/==>;B=c"],
        ["Server=x;Uid=me;Pwd=<SECRET>"],
        ["Endpoint=sb://x/;SharedAccessKeyName=a;SharedAccessKey=<SECRET=>"],
    ],
)
def test_a_command_line_is_shown_without_its_secrets(line: list[str]) -> None:
    """They stand between angle brackets here."""
    words = [re.sub("[<>]", "", word) for word in line]
    shown = tuple(re.sub("<[^>]*>", masking.HIDDEN, word) for word in line)
    assert masking.masked_words(words) == shown
