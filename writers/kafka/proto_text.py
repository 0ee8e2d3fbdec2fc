"""Reads schemas of Protobuf in the form of `.proto` files: messages, enums, maps and `oneof` of proto3."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

TIMESTAMP = "google/protobuf/timestamp.proto"

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\'|[A-Za-z_.][\w.]*|-?\d[\w.]*|[{}\[\]<>()=;,:+-]')
_COMMENT = re.compile(r'("(?:[^"\\]|\\.)*")|//[^\n]*|/\*.*?\*/', re.DOTALL)
_TYPES = "double float int64 uint64 int32 fixed64 fixed32 bool string group message bytes uint32 enum"
_SCALARS = {
    name: number
    for number, name in enumerate(f"{_TYPES} sfixed32 sfixed64 sint32 sint64".split(), 1)
    if name not in ("group", "message", "enum")
}
"""Numbers of `FieldDescriptorProto.Type`."""
_MESSAGE = 11
_OPTIONAL, _REPEATED = 1, 3


@dataclass(slots=True)
class Message:
    """What a later version of a message has to keep."""

    numbers: dict[str, int] = field(default_factory=dict)
    reserved: set[int] = field(default_factory=set)
    messages: dict[str, Message] = field(default_factory=dict)


def parse(text: str) -> tuple[FileDescriptorProto, Message]:
    """Return the descriptor of a file, and its messages by name.

    Raises:
        ValueError: it is no file of proto3, or has what is not supported.
    """
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    plain = _COMMENT.sub(lambda found: found[1] or " ", text)
    if rest := _TOKEN.sub("", plain).strip():
        raise ValueError(f"{rest[:20]!r} is not expected in a schema of Protobuf")
    reader = _Reader(_TOKEN.findall(plain))
    file, found = FileDescriptorProto(name="value.proto", syntax="proto2"), Message()
    while (word := reader.next_or_none()) is not None:
        if word == "syntax":
            reader.expect("=")
            file.syntax = reader.text()
            reader.expect(";")
        elif word == "package":
            file.package = reader.next()
            reader.expect(";")
        elif word == "import":
            name = reader.text()
            if name != TIMESTAMP:
                raise ValueError(f"it imports {name}; only {TIMESTAMP} is supported")
            file.dependency.append(name)
            reader.expect(";")
        elif word == "message":
            _message(reader, file.message_type.add(), found)
        elif word == "enum":
            _enum(reader, file.enum_type.add())
        elif word == "option":
            reader.skip_statement()
        elif word != ";":
            raise ValueError(f"{word!r} is not supported")
    if file.syntax != "proto3":
        raise ValueError("only proto3 is supported")
    if not file.message_type:
        raise ValueError("it has no message")
    return file, found


class _Reader:
    def __init__(self, tokens: list[str]) -> None:
        self._tokens: Iterator[str] = iter(tokens)

    def next_or_none(self) -> str | None:
        return next(self._tokens, None)

    def next(self) -> str:
        if (word := self.next_or_none()) is None:
            raise ValueError("it ends in the middle")
        return word

    def expect(self, wanted: str) -> None:
        if (word := self.next()) != wanted:
            raise ValueError(f"{word!r} in the place of {wanted!r}")

    def text(self) -> str:
        return self.next()[1:-1]

    def number(self) -> int:
        return int(self.next(), 0)

    def skip_statement(self) -> None:
        while self.next() != ";":
            pass

    def end_of_field(self) -> None:
        if (word := self.next()) == "[":
            self.skip_statement()
        elif word != ";":
            raise ValueError(f"{word!r} after a field")


def _message(reader: _Reader, message: Any, outer: Message) -> None:
    message.name = reader.next()
    found = outer.messages[message.name] = Message()
    reader.expect("{")
    synthetic: list[Any] = []
    while (word := reader.next()) != "}":
        if word == "message":
            _message(reader, message.nested_type.add(), found)
        elif word == "enum":
            _enum(reader, message.enum_type.add())
        elif word == "reserved":
            _reserved(reader, found)
        elif word == "option":
            reader.skip_statement()
        elif word == "oneof":
            index = len(message.oneof_decl)
            message.oneof_decl.add(name=reader.next())
            reader.expect("{")
            while (kind := reader.next()) != "}":
                _field(reader, message, found, kind).oneof_index = index
        elif word == "map":
            _map(reader, message, found)
        elif word in ("optional", "repeated"):
            one = _field(reader, message, found, reader.next())
            if word == "repeated":
                one.label = _REPEATED
            else:
                one.proto3_optional = True
                synthetic.append(one)
        elif word != ";":
            _field(reader, message, found, word)
    for one in synthetic:  # after the oneofs of the text
        one.oneof_index = len(message.oneof_decl)
        message.oneof_decl.add(name=f"_{one.name}")


def _field(reader: _Reader, message: Any, found: Message, kind: str) -> Any:
    one = message.field.add(name=reader.next(), label=_OPTIONAL)
    reader.expect("=")
    one.number = found.numbers[one.name] = reader.number()
    _set_type(one, kind)
    reader.end_of_field()
    return one


def _set_type(one: Any, kind: str) -> None:
    if kind in _SCALARS:
        one.type = _SCALARS[kind]
    else:
        one.type_name = kind  # of a message or an enum, which the library finds out


def _map(reader: _Reader, message: Any, found: Message) -> None:
    reader.expect("<")
    key = reader.next()
    reader.expect(",")
    value = reader.next()
    reader.expect(">")
    one = message.field.add(name=reader.next(), label=_REPEATED, type=_MESSAGE)
    reader.expect("=")
    one.number = found.numbers[one.name] = reader.number()
    reader.end_of_field()
    entry = message.nested_type.add(name="".join(map(str.capitalize, one.name.split("_"))) + "Entry")
    entry.options.map_entry = True
    for number, (name, kind) in enumerate((("key", key), ("value", value)), 1):
        _set_type(entry.field.add(name=name, number=number, label=_OPTIONAL), kind)
    one.type_name = entry.name


def _enum(reader: _Reader, enum: Any) -> None:
    enum.name = reader.next()
    reader.expect("{")
    while (word := reader.next()) != "}":
        if word in ("option", "reserved"):
            reader.skip_statement()
        elif word != ";":
            reader.expect("=")
            enum.value.add(name=word, number=reader.number())
            reader.end_of_field()


def _reserved(reader: _Reader, found: Message) -> None:
    numbers: list[int] = []
    while (word := reader.next()) != ";":
        if word == "to":
            last = reader.next()
            if last == "max" or int(last) > numbers[-1] + 10_000:
                raise ValueError("it reserves more than 10,000 numbers")
            numbers.extend(range(numbers[-1] + 1, int(last) + 1))
        elif word[0] not in "\"',":
            numbers.append(int(word))
    found.reserved.update(numbers)
