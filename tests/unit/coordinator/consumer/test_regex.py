"""Subscriptions by regular expression: RE2's language, in linear time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chronik.coordinator.consumer.regex import compile_regex, matching_topics
from chronik.protocol.errors import ErrorCode, KafkaError


@pytest.mark.parametrize(
    ("expression", "name", "expected"),
    [
        ("orders", "orders", True),
        ("orders", "orders-2", False),
        ("orders.*", "orders-2", True),
        ("^orders$", "orders", True),
        (r"\Aorders\z", "orders", True),
        ("order$s", "orders", False),
        ("a|b|", "", True),
        ("(a|b)+c?", "abab", True),
        ("(?:a|b){2,3}", "abab", False),
        ("(?:a|b){2,}", "abab", True),
        ("a{,2}", "aa", False),
        ("x{2}", "xx", True),
        ("(?P<kind>a)(?<1>b)", "ab", True),
        ("(?i)ORDERS", "orders", True),
        ("a(?i)B", "ab", True),
        ("((?i)A)B", "ab", False),
        ("(?i:A)b", "ab", True),
        ("a(?i)*", "aaa", True),
        ("(?i-s:[A-C])", "b", True),
        (r"\Qa.b\E+", "a.bbb", True),
        (r"\Qa.b", "axb", False),
        (r"\d+\.\w-\D\W", "12.a-x.", True),
        (r"[\d_]+", "1_2", True),
        ("[[:alpha:]]+[[:^digit:]]", "abc-", True),
        (r"\p{L}+\pN\P{Lu}", "ab1c", True),
        (r"\p{^Greek}", "a", True),
        ("[^a-c]", "b", False),
        ("[^a-c]", "d", True),
        ("[]a]", "a", True),
        ("[a-]", "-", True),
        (r"[\x61-\x{63}]\141", "ba", True),
        (r"foo\b.bar", "foo.bar", True),
        (r"foo\b.bar", "foo_bar", False),
        (r"fo\Bo", "foo", True),
        ("a+?b*?", "aab", True),
        ("é", "e", False),
        (".*", "__consumer_offsets", True),
    ],
)
def test_whole_names_match(expression, name, expected):
    assert matching_topics(expression, [name]) == (frozenset([name]) if expected else frozenset())


@pytest.mark.parametrize(
    "expression",
    [
        "(",
        ")",
        "a)",
        "[",
        "[a",
        "[z-a]",
        "*",
        "a**",
        "{2}",
        "(?i)*",
        "a{2}{3}",
        "a{1001}",
        "a{3,2}",
        "((a{500}){500})",
        r"(a)\1",
        r"\y",
        "\\",
        "(?=a)",
        "(?!a)",
        "(?<=a)b",
        "(?<!a)b",
        "(?>a)",
        "(?P<>a)",
        r"\p{Klingon}",
        "[[:nonsense:]]",
        r"\x{zz}",
        "a" * 5000,
    ],
)
def test_what_re2_does_not_take_is_refused(expression):
    with pytest.raises(KafkaError) as refused:
        compile_regex(expression)
    assert refused.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert matching_topics(expression, ["a"]) == frozenset()


@pytest.mark.parametrize("expression", ["(a+)+b", "(a|a)*b", "(.*)*x", "a{0,200}a{200}b"])
def test_no_expression_backtracks(expression):
    """Python's own matcher would not come back from these."""
    assert matching_topics(expression, ["a" * 249]) == frozenset()


@given(st.text(max_size=30))
def test_any_text_is_compiled_or_refused(expression):
    try:
        compile_regex(expression)
    except KafkaError as error:
        assert error.code is ErrorCode.INVALID_REGULAR_EXPRESSION  # noqa: PT017
    assert matching_topics(expression, ["a.b-c"]) <= {"a.b-c"}
