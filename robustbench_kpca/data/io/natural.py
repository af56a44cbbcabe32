"""The natural order of names: whole numbers in them are compared as numbers, so `class2` comes before `class10`."""

import re


def natural(name: str) -> tuple[list[tuple[int, int, str]], str]:
    """Return a key to sort names by, in any case of letters; equal ones are sorted as text."""
    parts = re.split(r"(\d+)", name.lower())
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts], name
