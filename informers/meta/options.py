"""What options have to be, told where they are given and not where they are used. Pure."""

from __future__ import annotations


def is_whole_number(value: object, *, least: int) -> bool:
    """Tell whether it is a whole number, and not below `least`; types do not keep a 2.5 out at run time."""
    return isinstance(value, int) and value >= least
