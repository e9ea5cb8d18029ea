from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpiboot.core import masking


@pytest.mark.parametrize(
    "name",
    [
        *["HF_TOKEN", "GITHUB_TOKEN", "MYTOKEN", "PGPASSWORD", "DB_PASSWORD", "MYSQL_PWD"],
        *["WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID"],
        *["GOOGLE_APPLICATION_CREDENTIALS", "client_secret", "SSH_PASSPHRASE", "NCCL_MY_TOKEN"],
    ],
)
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


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (("curl", "-u", "me:hunter2", "x"), ("curl", "-u", "(hidden)", "x")),
        (("curl", "--user", "me:hunter2"), ("curl", "--user", "(hidden)")),
        (("curl", "-ume:hunter2"), ("curl", "-u(hidden)")),
        (("curl", "--proxy-user=me:hunter2"), ("curl", "--proxy-user=(hidden)")),
        (
            ("sh", "-c", "curl -fu 'x' -u me:hunter2 u; id"),
            ("sh", "-c", "curl -fu 'x' -u (hidden) u; id"),
        ),
        (("sh", "-c", 'curl -u "me:a b" u'), ("sh", "-c", "curl -u (hidden) u")),
        # Neither is a login.
        (("id", "-u", "root"), ("id", "-u", "root")),
        (("sh", "-c", "set -u; python -u x.py a:b"), ("sh", "-c", "set -u; python -u x.py a:b")),
    ],
)
def test_a_login_behind_its_option_is_hidden(
    words: tuple[str, ...], shown: tuple[str, ...]
) -> None:
    assert masking.masked_words(words) == shown


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
    ("line", "shown"),
    [
        (["API_TOKEN=SECRET"], ["API_TOKEN=(hidden)"]),
        (["API_TOKEN=SECRET and SECRET"], ["API_TOKEN=(hidden)"]),
        (["--api-key=SECRET"], ["--api-key=(hidden)"]),
        (["--password", "SECRET", "-v"], ["--password", "(hidden)", "-v"]),
        (["--password", "--verbose"], ["--password", "--verbose"]),
        (["--password", "-Abc9", "-v"], ["--password", "(hidden)", "-v"]),
        (["--no-token", "--password", "SECRET"], ["--no-token", "--password", "(hidden)"]),
        (["--key", "SECRET"], ["--key", "(hidden)"]),
        (["-auth=SECRET", "-n", "4"], ["-auth=(hidden)", "-n", "4"]),
        (["-c", "./train --auth -Abc9 -n 4"], ["-c", "./train --auth (hidden) -n 4"]),
        (["-c", "./train -v -password SECRET"], ["-c", "./train -v -password (hidden)"]),
        (["-c", "mpirun -x A_TOKEN=SECRET a"], ["-c", "mpirun -x A_TOKEN=(hidden) a"]),
        (
            ["-genv", "A_TOKEN", "SECRET", "-n", "2", "--ENV", "A_KEY", "-Abc9", "./a"],
            ["-genv", "A_TOKEN", "(hidden)", "-n", "2", "--ENV", "A_KEY", "(hidden)", "./a"],
        ),
        (["-genv", "A_TOKEN=SECRET", "./a"], ["-genv", "A_TOKEN=(hidden)", "./a"]),
        (["-c", "mpiexec -env A_TOKEN 'x SECRET' a"], ["-c", "mpiexec -env A_TOKEN (hidden) a"]),
        (
            ["https://s3/a?X-Amz-Expires=60&X-Amz-Signature=SECRET&X-Amz-Credential=SECRET#a"],
            ["https://s3/a?X-Amz-Expires=60&X-Amz-Signature=(hidden)&X-Amz-Credential=(hidden)#a"],
        ),
        (
            ["-c", "curl 'https://x.blob/a?sv=2024&sig=SECRET%3D' | tar x"],
            ["-c", "curl 'https://x.blob/a?sv=2024&sig=(hidden)' | tar x"],
        ),
        (["https_proxy=http://me:SECRET@proxy:3128"], ["https_proxy=http://(hidden)@proxy:3128"]),
        (["--db", "postgres://me:SECRET@db/x"], ["--db", "postgres://(hidden)@db/x"]),
        (["-c", "export A_TOKEN=SECRET; ./train"], ["-c", "export A_TOKEN=(hidden); ./train"]),
        (["-c", "cd x; A_TOKEN='SECRET two' ./train"], ["-c", "cd x; A_TOKEN=(hidden) ./train"]),
        (["-c", "./train --hub-token SECRET\ndate"], ["-c", "./train --hub-token (hidden)\ndate"]),
        (["-c", "./train --hub-token=SECRET -v"], ["-c", "./train --hub-token=(hidden) -v"]),
        (["DB_PASSWORD=12345678"], ["DB_PASSWORD=(hidden)"]),
        (["--db-password", "12345678"], ["--db-password", "(hidden)"]),
        (["-H", "Authorization: Bearer SECRET"], ["-H", "Authorization: (hidden)"]),
        (
            ["-c", "curl -H 'Authorization: Bearer SECRET' http://x/y; ./train"],
            ["-c", "curl -H 'Authorization: (hidden)' http://x/y; ./train"],
        ),
        (
            ["-c", 'curl -H "authorization: Basic SECRET==" -H "Accept: */*" x'],
            ["-c", 'curl -H "authorization: (hidden)" -H "Accept: */*" x'],
        ),
        (["-c", "curl -H X-Api-Key:SECRET x"], ["-c", "curl -H X-Api-Key:(hidden) x"]),
        (["-c", "echo Bearer SECRET; date"], ["-c", "echo Bearer (hidden); date"]),
        (["-d", '{"api_key": "SECRET", "n": 1}'], ["-d", '{"api_key": "(hidden)", "n": 1}']),
        (["-d", '{"password":"SECRET two"}'], ["-d", '{"password":"(hidden)"}']),
        (["A_CONNECTION_STRING=X=1;AccountKey=SECRET"], ["A_CONNECTION_STRING=(hidden)"]),
        (["X=a;AccountKey=SECRET+/==;B=c"], ["X=a;AccountKey=(hidden);B=c"]),
        (["Server=x;Uid=me;Pwd=SECRET"], ["Server=x;Uid=me;Pwd=(hidden)"]),
        (
            ["Endpoint=sb://x/;SharedAccessKeyName=a;SharedAccessKey=SECRET="],
            ["Endpoint=sb://x/;SharedAccessKeyName=a;SharedAccessKey=(hidden)"],
        ),
    ],
)
def test_a_command_line_is_shown_without_its_secrets(line: list[str], shown: list[str]) -> None:
    assert masking.masked_words(line) == tuple(shown)


@pytest.mark.parametrize(
    "line",
    [
        ["-x", "NCCL_DEBUG=INFO"],
        ["--key=", "a==b", "x=y=z", "/path=with/equals", "./train"],
        ["--max-tokens", "512", "--max-tokens=512", "MAX_TOKENS=512"],
        ["-c", "for i in 1 2; do ./train --seed $i --x 'a b'; done\t\u2028"],
        ["--no-token", "--password"],
        ["-genv", "OMP_NUM_THREADS", "4", "-env", "KEY", "a", "-genv", "X=1", "A_TOKEN", "./a"],
        ["-c", "mpirun -genv NCCL_DEBUG INFO ./a --keys a,b --tokenizer t5 --monkey x"],
        ["https://x/a?sv=2024&keyboard=us&page=2", "sig=3", "Signature=x"],
        ["-c", "curl -H 'Accept: text/plain' http://token:80/x; scp key:/a b:/c"],
        ["-d", '{"max_tokens": "512", "keys": {"a": 1}}'],
        ["launcher", "--ssh-key", "/keys/id", "--host-keys=accept-new", "PWD=/a;x=1"],
        ["ssh-key: no private SSH key in /a: name it with --ssh-key or MPIBOOT_SSH_KEY"],
    ],
)
def test_a_command_line_without_secrets_stays_as_it_is(line: list[str]) -> None:
    assert masking.masked_words(line) == tuple(line)
