"""Rows as messages of Protobuf, with a schema that is derived from the columns, or given."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, TypeAlias

import pyarrow as pa
from pyarrow import types

from ...committers.errors import ConfigurationError, SchemaMismatchError
from ..parquet.columns import is_list, is_string
from ..requests.python_values import python_values
from .proto_text import TIMESTAMP, Message, parse

Convert: TypeAlias = Callable[[Any], Any]

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001  values have no zone, see `python_values`
_SECOND, _MICROSECOND = timedelta(seconds=1), timedelta(microseconds=1)
_TIMESTAMP = "google.protobuf.Timestamp"


# Schemas ----------------------------------------------------------------------------------------------


def derived(rows: pa.Schema, name: str, before: str = "") -> str:
    """Return a schema with a message of these columns. Fields keep the numbers that they have in the version
    before; numbers of fields that are left out are reserved.

    Args:
        name: full name of the message
        before: the newest schema of the subject; empty: there is none

    Raises:
        SchemaMismatchError: names the columns that Protobuf does not have.
        ConfigurationError: the version before cannot be read.
    """
    package, _, own = name.rpartition(".")
    known = _parsed(before)[1].messages.get(own, Message()) if before else Message()
    problems: list[str] = []
    lines = list(_message(list(rows), own, known, "", "", problems))
    if problems:
        listed = "".join(f"\n  - {problem}" for problem in problems)
        raise SchemaMismatchError(f"These columns cannot be sent to Kafka as Protobuf:{listed}")
    head = ['syntax = "proto3";', *([f"package {package};"] if package else []), ""]
    if any(_TIMESTAMP in line for line in lines):
        head += [f'import "{TIMESTAMP}";', ""]
    return "\n".join([*head, *lines, ""])


def _message(
    columns: list[pa.Field], name: str, known: Message, path: str, indent: str, problems: list[str]
) -> Iterator[str]:
    names = {column.name for column in columns}
    left_out = known.reserved | {number for one, number in known.numbers.items() if one not in names}
    last = max([*known.numbers.values(), *left_out], default=0)
    inner = f"{indent}  "
    yield f"{indent}message {name} {{"
    if left_out:
        yield f"{inner}reserved {', '.join(map(str, sorted(left_out)))};"
    nested = {_capital(one.name) for one in columns if _struct_in(one.type) is not None}
    if len(nested) < sum(_struct_in(one.type) is not None for one in columns):
        problems.append(f"{path or 'the row'}: structs differ only in the case of their first letter")
    for column in columns:
        where = f"{path}.{column.name}" if path else column.name
        if not _NAME.fullmatch(column.name):
            problems.append(f"{where}: names in Protobuf have letters, digits and _ only: rename it")
        if (struct := _struct_in(column.type)) is not None:
            of_type = _capital(column.name)
            before = known.messages.get(of_type, Message())
            yield from _message(list(struct), of_type, before, where, inner, problems)
        if (number := known.numbers.get(column.name)) is None:
            last = number = last + 1
        yield f"{inner}{_type(column.type, column.name, where, problems)} {column.name} = {number};"
    yield f"{indent}}}"


def _capital(name: str) -> str:
    return name[:1].upper() + name[1:]


def _struct_in(kind: pa.DataType) -> pa.DataType | None:
    """Return the struct that a column, its elements or its values are."""
    if is_list(kind):
        kind = kind.value_type
    elif types.is_map(kind):
        kind = kind.item_type
    return kind if types.is_struct(kind) else None


def _type(kind: pa.DataType, name: str, path: str, problems: list[str]) -> str:
    if is_list(kind):
        return f"repeated {_single(kind.value_type, name, path, problems)}"
    if types.is_map(kind):
        key = _single(kind.key_type, name, path, problems)
        return f"map<{key}, {_single(kind.item_type, name, path, problems)}>"
    single = _single(kind, name, path, problems)
    return single if types.is_struct(kind) else f"optional {single}"


def _single(kind: pa.DataType, name: str, path: str, problems: list[str]) -> str:
    if types.is_struct(kind):
        return _capital(name)
    if types.is_timestamp(kind) and kind.tz:
        return _TIMESTAMP
    for is_kind, proto in _PLAIN:
        if is_kind(kind):
            return proto
    problems.append(f"{path} is {kind}: cast it, for example to STRING")
    return "string"


def _is_int32(kind: pa.DataType) -> bool:
    return bool(types.is_integer(kind) and kind.bit_width < 64)


def _is_binary(kind: pa.DataType) -> bool:
    return bool(types.is_binary(kind) or types.is_large_binary(kind))


_PLAIN: tuple[tuple[Callable[[pa.DataType], bool], str], ...] = (
    (types.is_boolean, "bool"),
    (_is_int32, "int32"),
    (types.is_int64, "int64"),
    (types.is_float32, "float"),
    (types.is_float64, "double"),
    (is_string, "string"),
    (_is_binary, "bytes"),
)


@lru_cache(maxsize=100)
def _parsed(text: str) -> tuple[Any, Message]:
    """
    Raises:
        ConfigurationError: the text is no schema, or protobuf is missing.
    """
    try:
        return parse(text)
    except ModuleNotFoundError:
        raise ConfigurationError(
            "valueFormat=protobuf needs protobuf, on the driver, the executors and where the delivery "
            "process runs: pip install 'penstock[registry]'."
        ) from None
    except (ValueError, IndexError) as error:
        raise ConfigurationError(f"The Protobuf schema cannot be read: {error}.") from None


def full_name(text: str, name: str) -> str:
    """Return the full name of the message that is written.

    Args:
        name: of the option `recordName`; the first message if there is none with this name
    """
    file, _ = _parsed(text)
    own = file.message_type[_index(file, name)].name
    return f"{file.package}.{own}" if file.package else own


def _index(file: Any, name: str) -> int:
    names = [one.name for one in file.message_type]
    own = name.rpartition(".")[2]
    return names.index(own) if own in names else 0


# Values -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ProtobufEncoder:
    """Writes rows with one schema, after the index of the message."""

    message: Any
    """The class of the message."""
    index: bytes
    names: tuple[str, ...]
    converters: tuple[Convert | None, ...]

    def values(self, rows: pa.RecordBatch) -> list[bytes]:
        """
        Raises:
            SchemaMismatchError: a value cannot be written with the schema.
        """
        columns = []
        for name, convert in zip(self.names, self.converters, strict=True):
            try:
                values = python_values(rows.column(name))
            except (ValueError, OverflowError) as error:
                raise SchemaMismatchError(
                    f"A value in {name} cannot be written as Protobuf: {error}."
                ) from None
            columns.append([_converted(convert, value) for value in values])
        written = []
        for row in zip(*columns, strict=True):
            try:
                message = self.message(**dict(zip(self.names, row, strict=True)))
                written.append(self.index + message.SerializeToString(deterministic=True))
            except (TypeError, ValueError, OverflowError) as error:
                raise SchemaMismatchError(
                    f"A row cannot be written with the Protobuf schema, whose lists and maps have no NULL: "
                    f"{error}"[:500]
                ) from None
        return written


@lru_cache(maxsize=100)
def encoder(text: str, rows: pa.Schema, name: str) -> ProtobufEncoder:
    """Return what writes rows with a schema.

    Args:
        name: see `full_name`

    Raises:
        ConfigurationError: the text is no schema.
        SchemaMismatchError: the columns do not fit it.
    """
    file, _ = _parsed(text)
    from google.protobuf import descriptor_pool, message_factory, timestamp_pb2
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    pool, timestamp = descriptor_pool.DescriptorPool(), FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(timestamp)
    try:
        pool.Add(timestamp)
        pool.Add(file)
        message = pool.FindMessageTypeByName(full_name(text, name))
    except (TypeError, KeyError) as error:
        raise ConfigurationError(f"The Protobuf schema cannot be read: {error}"[:500] + ".") from None
    problems: list[str] = []
    converters = _converters(list(rows), message, "", problems)
    if problems:
        lines = "".join(f"\n  - {problem}" for problem in problems)
        raise SchemaMismatchError(f"The columns do not fit the Protobuf schema:{lines}")
    index = _index(file, name)
    return ProtobufEncoder(
        message_factory.GetMessageClass(message),
        b"\0" if index == 0 else _varint(1) + _varint(index),
        tuple(rows.names),
        tuple(converters[name] for name in rows.names),
    )


def _varint(number: int) -> bytes:
    """Return a positive number as a zigzag varint."""
    number, found = 2 * number, bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


def _converters(
    columns: list[pa.Field], message: Any, path: str, problems: list[str]
) -> dict[str, Convert | None]:
    found: dict[str, Convert | None] = {}
    for column in columns:
        where = f"{path}.{column.name}" if path else column.name
        field = message.fields_by_name.get(column.name)
        if field is None:
            problems.append(f"the schema has no field {where}, which would be lost")
            continue
        found[column.name] = _converter(column.type, field, where, problems)
    return found


def _converter(kind: pa.DataType, field: Any, path: str, problems: list[str]) -> Convert | None:
    """Return the conversion of values that are not NULL; None if they are written as they are."""
    of_message = field.message_type
    is_map = of_message is not None and of_message.GetOptions().map_entry
    if types.is_map(kind) and is_map:
        key, value = (of_message.fields_by_name[name] for name in ("key", "value"))
        _single_converter(kind.key_type, key, f"{path}.key", problems)
        convert = _single_converter(kind.item_type, value, f"{path}.value", problems)
        return lambda pairs: {one: _converted(convert, item) for one, item in pairs}
    if is_list(kind) and _is_repeated(field) and not is_map:
        convert = _single_converter(kind.value_type, field, f"{path}.element", problems)
        return None if convert is None else lambda values: [_converted(convert, one) for one in values]
    if _is_repeated(field):
        problems.append(f"{path} is {kind}, and the schema has a repeated field")
        return None
    return _single_converter(kind, field, path, problems)


def _is_repeated(field: Any) -> bool:
    return bool(field.is_repeated if hasattr(field, "is_repeated") else field.label == 3)


def _single_converter(kind: pa.DataType, field: Any, path: str, problems: list[str]) -> Convert | None:
    if types.is_struct(kind) and field.message_type is not None:
        inner = _converters(list(kind), field.message_type, path, problems)
        if not any(inner.values()):
            return None
        return lambda value: {name: _converted(inner.get(name), one) for name, one in value.items()}
    if field.message_type is not None:
        if types.is_timestamp(kind) and kind.tz and field.message_type.full_name == _TIMESTAMP:
            return _timestamp
        problems.append(f"{path} is {kind}, and the schema has {field.message_type.full_name}")
        return None
    fitting = {
        field.CPPTYPE_BOOL: types.is_boolean(kind),
        field.CPPTYPE_INT32: _is_int32(kind),
        field.CPPTYPE_UINT32: _is_int32(kind),
        field.CPPTYPE_INT64: types.is_integer(kind),
        field.CPPTYPE_UINT64: types.is_integer(kind),
        field.CPPTYPE_FLOAT: types.is_float32(kind),
        field.CPPTYPE_DOUBLE: types.is_floating(kind),
        field.CPPTYPE_ENUM: is_string(kind),
        field.CPPTYPE_STRING: is_string(kind) if field.type == field.TYPE_STRING else _is_binary(kind),
    }
    if not fitting.get(field.cpp_type):
        problems.append(f"{path} is {kind}, which the type of the field in the schema does not hold")
    return None


def _converted(convert: Convert | None, value: Any) -> Any:
    return value if value is None or convert is None else convert(value)


def _timestamp(value: datetime) -> dict[str, int]:
    seconds, rest = divmod(value - _EPOCH, _SECOND)
    return {"seconds": seconds, "nanos": rest // _MICROSECOND * 1000}
