"""Numbers and times for people, the same in the commands and in the page of `penstock ui`."""

from __future__ import annotations

from datetime import timedelta


def size(size_bytes: int) -> str:
    value, units = float(size_bytes), iter(("B", "KiB", "MiB", "GiB", "TiB"))
    unit = next(units)
    for bigger in units:
        if value < 1024:
            break
        value, unit = value / 1024, bigger
    return f"{value:,.0f} {unit}" if unit == "B" else f"{value:,.1f} {unit}"


def age(duration: timedelta) -> str:
    seconds = max(int(duration.total_seconds()), 0)
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length} {unit}"
    return f"{seconds} s"


def seconds_text(seconds: float) -> str:
    """A duration, with a tenth of a second below two minutes."""
    return f"{seconds:.1f} s" if seconds < 120 else age(timedelta(seconds=seconds))


def short_seconds(seconds: float | None) -> str:
    """Return seconds with hundredths below one; a dash if they are not known."""
    if seconds is None:
        return "-"
    return f"{seconds:.2f} s" if seconds < 1 else seconds_text(seconds)


def count(number: int, noun: str, ending: str = "s") -> str:
    return f"{number:,} {noun}{'' if number == 1 else ending}"
