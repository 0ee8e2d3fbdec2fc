"""Odd texts: as column names, as values, as partition values, and as options."""

from __future__ import annotations

from hypothesis import strategies as st

ODD_TEXTS = [
    "a", "A", "a.b", "A.B", "a.element", "a.key", "a.value.b", "element", "key", "value", "list",
    " ", "a b", " a", "a ", "a\nb", "a\tb", "`", "a`b", '"', "'", "'\"`\\", "a,b", "a;b", "a=b", "a:b", "a+b",
    "/", "a/b", "a\\b", ".", "..", "../..", "a.", ".a", "-", "*", "?", "&", "#", "$",
    "(a)", "{a}", "[x]", "[0]", "%", "%2F", "%" * 90,
    "1", "null", "NULL", "true", "select", "SELECT", "__HIVE_DEFAULT_PARTITION__", "_metadata",
    "_delta_log", "_change_type", "filename", "file_row_number",
    "\u00e9", "e\u0301", "\u00c9", "\u0130", "\u00df", "\u03a3", "\u03c2", "\ufeff", "\u2028", "\u05d0\u0628",
    "\u202eabc\u202c", "\x01", "\x7f", "\x01\x1f\x7f\x85\u2028", "\ud7ff\ue000\uffff\U00010000\U0010ffff",
    "\U0001f600", "\U0001f600" * 70, "\U0001f469\u200d\U0001f4bb", "\U0010ffff" * 40,
    "x" * 33, "x" * 240, "x" * 300,
]  # fmt: skip
"""Without the names that Iceberg reserves: the conformance suite has them."""
UNUSABLE_NAMES = ["", "\0", "a\0b"]
"""Texts that are values, but no names."""

TEXTS = st.sampled_from([*ODD_TEXTS, *UNUSABLE_NAMES]) | st.text(max_size=40)
NAMES = st.sampled_from(ODD_TEXTS) | st.text(max_size=12)
MAYBE_UNUSABLE_NAMES = NAMES | st.sampled_from(UNUSABLE_NAMES)

# Options ----------------------------------------------------------------------------------------------

_NUMBERS = [
    "0", "-1", "007", "+1", "1e3", "1.5", "\u00b2", "\u0663", "1_000", "1,000", "0x10", "inf", "nan",
    "9" * 20, "9" * 400, "9" * 5000, "2147483647", "2147483648", str(2**63), "1" + "." + "0" * 400 + "mb",
    "1kb", "1 KB", "64mb", "1.5.5mb", "10 mbb", "-5mb", "1tb", "1s", "1 min", "999999999d", "1000000000d",
]  # fmt: skip
_JSON = [
    "[", "{", "{}", "[]", "[1]", "[[]]", '["a"', '["a"]', ' ["a"]', '["a", "A"]', '[""]', "[null]",
    '["\\ud800"]', '["a\\u0000"]', '{"a": 1}', '{"a": null}', '{"a": {"b": "c"}}', '{"\\ud800": "x"}',
    '{"a": "\\u0000"}', '"a"', "NaN", "[" * 100_000, '{"a":' * 100_000,
]  # fmt: skip
_WORDS = [
    "\n", "\ud800", ",", "a,,b", "a,A", "`a`", "TRUE", "yes", "none", "addcolumns", "zstd", "ZSTD ", "lzo",
    "day(ts)", "day(", "bucket(0, a)", "bucket(7, a)", "bucket(99999999999, a)", "truncate(-1, a)",
    "a as b as c", "a desc nulls", "a..b", "main", "s3://", "sqlite://", "sqlite:///:memory:", "://", "--",
    "'; DROP TABLE x",
]  # fmt: skip

GARBAGE = st.one_of(
    st.sampled_from(_NUMBERS),
    st.sampled_from(_JSON),
    st.sampled_from(_WORDS),
    TEXTS,
    st.tuples(st.sampled_from([*_NUMBERS, *_WORDS]), st.text(max_size=2)).map("".join),
)
"""Values that users and scripts give to options by mistake."""

PROPERTY_VALUES = st.sampled_from([
    "", "x", "-1", "0", "1", "1.5", "9" * 30, "true", "TRUE", " true ", "maybe", "null", "\u00e9", "\n", "[]",
    "{}", "truncate(0)", "full", "zstd", "interval 1 day", "interval x", "Serializable", "x/y",
])  # fmt: skip
