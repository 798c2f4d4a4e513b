"""Which objects are passed on as they are: those of texts of which the table asks nothing but a length."""

from __future__ import annotations

from typing import Any

import pytest

from dispatcher.fields.kinds import Field, FieldTable, Kind, Shape
from dispatcher.fields.shapes import Either, Flag, Form, Items, Text


@pytest.mark.parametrize(
    ("field", "chars"),
    [
        (Field(Kind.PASSED, Text(9)), 9),
        (Field(Kind.BOUNDED, Either({str: Text(9), list: Items(Text(9), 2)}), neutral=([],)), 9),
        (Field(Kind.PASSED, Text(9, 1)), None),
        (Field(Kind.PASSED, Text(9, 0, "[a-z]+", "letters")), None),
        (Field(Kind.PASSED, Flag()), None),
        (Field(Kind.PASSED, Text(9), neutral=("",)), None),
        (Field(Kind.PASSED, Text(9), usual=("auto",)), None),
        (Field(Kind.PASSED, Text(9), capability=("tools",)), None),
        (Field(Kind.OURS, Text(9)), None),
        (Field(Kind.REFUSED, Text(9)), None),
        (Field(Kind.LABEL, Text(9)), None),
    ],
)
def test_a_field_takes_any_text_only_if_nothing_else_is_asked_of_it(field: Field, chars: int | None) -> None:
    texts = Form(FieldTable("object", {"text": field})).texts
    assert texts == ({} if chars is None else {"text": chars})


TEXT: Shape = Text(3)
FORM = Form(FieldTable("object", {"text": Field(Kind.PASSED, TEXT, required=True), "flag": Field(Kind.PASSED, Flag())}))


@pytest.mark.parametrize(
    ("value", "is_plain"),
    [
        ({"type": "t", "text": "abc"}, True),
        ({"text": ""}, True),
        ({"type": "t", "text": "abcd"}, False),
        ({"type": "t", "text": None}, False),
        ({"type": "t", "text": "abc", "flag": True}, False),
        ({"type": "t", "text": "abc", "other": "x"}, False),
        ({"type": "t"}, False),
    ],
)
def test_an_object_is_plain(value: dict[str, Any], is_plain: bool) -> None:
    assert FORM.is_plain(value, "type") == is_plain
