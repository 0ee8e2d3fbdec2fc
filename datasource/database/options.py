"""Options of all databases."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from ..options.declaring import options_of, passed_on
from ..options.delivery import DeliveryOptions
from ..options.file_tables import refused_file_options
from ..options.stream import parse_as

OptionsT = TypeVar("OptionsT", bound="DatabaseOptions")


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseOptions(DeliveryOptions):
    """Options of all databases. Each has the option `dbtable`, too."""

    data_source: ClassVar[str]
    examples: ClassVar[Mapping[str, str]]
    """Values of required options, by name."""

    storage_options: Mapping[str, str] = passed_on(
        "storage.", str.upper, "For a checkpoint in an object store, such as `storage.AWS_REGION`."
    )

    @classmethod
    def problems(cls, values: Mapping[str, Any]) -> Iterable[str]:
        """Return problems of values that are all valid one by one."""
        return ()

    @classmethod
    def parse(cls: type[OptionsT], options: Mapping[str, str]) -> OptionsT:
        """Parse the options that Spark passes; see `parse_as`."""
        name, known = cls.data_source, options_of(cls)
        return parse_as(
            cls,
            name,
            options,
            examples=cls.examples,
            refused=refused_file_options(name, known, "dbtable"),
            problems_of_values=cls.problems,
        )
