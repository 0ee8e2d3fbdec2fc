"""What a row does with an item of DynamoDB: it puts it, deletes it, or updates some of its attributes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ..requests.acknowledgements import UNACKNOWLEDGED, object_of, text_of
from ..requests.results import DELIVERED, Result
from .dynamodb_items import Attribute

Item: TypeAlias = "dict[str, Attribute]"
"""An item that is put, and replaces the one with its key."""


@dataclass(frozen=True, slots=True)
class ItemDeletion:
    key: Item


@dataclass(frozen=True, slots=True)
class ItemUpdate:
    """Creates the item if there is none."""

    key: Item
    attributes: Item
    """New values."""
    removed: Sequence[str]
    """Names of attributes that are NULL in the row."""

    @classmethod
    def of(cls, item: Item, keys: Sequence[str], columns: Iterable[str], kept: Collection[str]) -> ItemUpdate:
        """
        Args:
            columns: of the row
            kept: those that keep their value
        """
        given = [name for name in columns if name not in keys and name not in kept]
        return cls(
            {key: item[key] for key in keys},
            {name: item[name] for name in given if name in item},
            [name for name in given if name not in item],
        )

    @property
    def arguments(self) -> dict[str, Any]:
        """Of UpdateItem. Names and values are placeholders, since names may be reserved words."""
        names = {f"#n{number}": name for number, name in enumerate([*self.attributes, *self.removed])}
        placed = list(names)
        values = {f":v{number}": value for number, value in enumerate(self.attributes.values())}
        assigned = [f"{name} = {value}" for name, value in zip(placed, values, strict=False)]
        parts = [
            *([f"SET {', '.join(assigned)}"] if assigned else []),
            *([f"REMOVE {', '.join(placed[len(values) :])}"] if self.removed else []),
        ]
        arguments: dict[str, Any] = {"Key": self.key, "ReturnConsumedCapacity": "TOTAL"}
        if parts:
            arguments |= {"UpdateExpression": " ".join(parts), "ExpressionAttributeNames": names}
        if values:
            arguments["ExpressionAttributeValues"] = values
        return arguments


Change: TypeAlias = "Item | ItemDeletion | ItemUpdate"


def write_request(change: Item | ItemDeletion) -> dict[str, Any]:
    """Return an element of BatchWriteItem."""
    if isinstance(change, ItemDeletion):
        return {"DeleteRequest": {"Key": change.key}}
    return {"PutRequest": {"Item": change}}


def item_of(request: Mapping[str, Any]) -> Item:
    """Return the item of an element of BatchWriteItem, or its key."""
    put = object_of(request.get("PutRequest")).get("Item")
    item: Item = object_of(request.get("DeleteRequest")).get("Key", {}) if put is None else put
    return item


def result_of_update(response: object) -> Result:
    """UpdateItem has no field of its own that says so: the capacity that it has used names the table."""
    return (
        DELIVERED
        if text_of(object_of(object_of(response).get("ConsumedCapacity")), "TableName")
        else UNACKNOWLEDGED
    )
