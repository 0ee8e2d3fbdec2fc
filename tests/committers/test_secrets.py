"""Secrets of this process are in no text of others, however they are spelled."""

from __future__ import annotations

import base64
import html
import json
import pickle
from collections.abc import Callable
from urllib.parse import quote, quote_plus

import pytest

from penstock.committers.texts.safe_text import MASK
from penstock.committers.texts.secrets import MESSAGE_MAX, TEXT_MAX, Secrets, without_last_word

VALUES = {
    "letters": "geheim4711",
    "punctuation": "p+a/s=s\"'\\ w%rd&<b>",
    "accents": "pässwörd\u2028\U0001f511",
    "short": "b0b",
}
SECRET = pytest.mark.parametrize("secret", VALUES.values(), ids=VALUES)


def of_base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


SPELLINGS: dict[str, Callable[[str], str]] = {
    "as it is": str,
    "URL": lambda text: quote(text, safe=""),
    "URL, slashes kept": quote,
    "URL, lower case": lambda text: quote(text, safe="").lower(),
    "form": quote_plus,
    "URL, twice": lambda text: quote(quote(text, safe=""), safe=""),
    "JSON": lambda text: json.dumps(text)[1:-1],
    "JSON, unescaped": lambda text: json.dumps(text, ensure_ascii=False)[1:-1],
    "JSON in JSON": lambda text: json.dumps(json.dumps(text)[1:-1])[1:-1],
    "repr": lambda text: repr(text)[1:-1],
    "repr of bytes": lambda text: repr(text.encode())[2:-1],
    "HTML": html.escape,
    "lower case": str.lower,
    "base64": of_base64,
    "base64 for URLs": lambda text: base64.urlsafe_b64encode(text.encode()).decode(),
    "base64, in a URL": lambda text: quote(of_base64(text), safe=""),
    "base64, in JSON of PHP": lambda text: of_base64(text).replace("/", "\\/"),
}


@SECRET
@pytest.mark.parametrize("spell", SPELLINGS.values(), ids=SPELLINGS)
def test_a_secret_is_masked_in_each_spelling(secret: str, spell: Callable[[str], str]) -> None:
    shown = Secrets.of([secret]).mask(f'{{"key": "{spell(secret)}", "id": 7}}')
    assert shown == f'{{"key": "{MASK}", "id": 7}}'


@pytest.mark.parametrize("before", ["", "a", "ab", "abc", "me:"])
@pytest.mark.parametrize("after", ["", "x", "xy"])
def test_a_longer_text_in_base64_is_masked_as_a_whole(before: str, after: str) -> None:
    secrets = Secrets.of(["geheim4711"])
    assert secrets.mask(f"<{of_base64(before + 'geheim4711' + after)}>") == f"<{MASK}>"
    assert secrets.mask(of_base64("another text, of no secret")) == of_base64("another text, of no secret")


def test_the_credentials_within_a_value_are_masked() -> None:
    values = [
        f"Basic {of_base64('me:geheim-1')}",
        "Token geheim-two",
        "a=geheim-three; b=1",
        "SEED\ngeheim-x4\n",
    ]
    echoed = "geheim-1 geheim-two geheim-three geheim-x4 other-five"
    assert Secrets.of(values).mask(echoed) == f"{MASK} {MASK} {MASK} {MASK} other-five"


def test_credentials_that_no_option_contains_are_masked_after_their_name() -> None:
    echoed = (
        "Authorization: Bearer abcdefgh123, basic YWJjZGVmZ2g=, Signature=0123456789abcdef "
        '{"X-Amz-Security-Token": "abc/def+ghi==", "bearer": "of news"} s3://me:pw@host/'
    )
    assert Secrets().mask(echoed) == (
        f"Authorization: Bearer {MASK}, basic {MASK}, Signature={MASK} "
        f'{{"X-Amz-Security-Token": "{MASK}", "bearer": "of news"}} s3://me:{MASK}@host/'
    )


def test_other_text_stays_as_it_is() -> None:
    """Short values are masked as whole words; switches and values that are too short are no secrets."""
    secrets = Secrets.of(["b0b", "true", "", "ab"])
    text = "b0b has b0bs and ab is true"
    assert secrets.mask(text) == f"{MASK} has b0bs and ab is true"


def test_a_message_is_bounded_and_on_one_line() -> None:
    message = Secrets().message("Refused:\r\n  a\tb\x1b[31m\n" + "x " * 5000 + "\nCheck the credentials.")
    assert len(message) <= MESSAGE_MAX
    assert message.startswith("Refused: a b\\x1b[31m x x")
    assert message.endswith("Check the credentials.")


@pytest.mark.parametrize("start", range(TEXT_MAX * 2 // 3 - 12, TEXT_MAX * 2 // 3 + 2))
def test_a_secret_at_the_place_where_a_long_text_is_cut_is_not_shown_in_part(start: int) -> None:
    text = "x" * 100 + " " * (start - 100) + "geheim4711 " + "y " * TEXT_MAX
    assert "gehe" not in Secrets.of(["geheim4711"]).message(text)


def test_a_text_that_was_cut_off_is_shown_without_its_last_word() -> None:
    assert without_last_word('{"a": "b", "key": "gehe') == '{"a": "b", "key": "'
    assert without_last_word("gehe") == ""


def test_secrets_are_not_in_their_repr_and_can_be_pickled() -> None:
    secrets = Secrets.of(["geheim4711"])
    assert "geheim" not in repr(secrets)
    assert pickle.loads(pickle.dumps(secrets)) == secrets


def test_a_long_text_is_searched_in_linear_time() -> None:
    secrets = Secrets.of([of_base64("k" * n) for n in range(50, 60)])
    secrets.message("A" * 5_000_000 + "." + "QUJD/+" * 100_000)
