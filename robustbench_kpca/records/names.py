"""Names that look like another name: invisible letters, alphabets mixed in a word, forms that Unicode counts as one."""

import re
import unicodedata

_LOOKS_LATIN = frozenset("АВЕЅІЈКМНОРСТУХаеѕіјорсухѡһԁԛԝΑΒΕΖΗΙΚΜΝΟΡΤΥΧοντυ")
"""Cyrillic and Greek letters that are drawn like Latin ones."""


def mistakable(name: str) -> str:
    """Return why a name could be mistaken for another one; "" if it could not.

    A name is one line of letters that are seen, in Unicode's form NFKC. No word of it mixes alphabets, or consists of
    letters that are drawn like Latin ones.
    """
    quoted = repr(name[:40])
    if not name.isprintable() or any(_unseen(letter) for letter in name):
        return f"name {quoted} has letters that are not seen"
    if name != " ".join(name.split()) or name != unicodedata.normalize("NFKC", name):
        return f"name {quoted} is not in the form NFKC, or has spaces that are not seen"
    for word in re.findall(r"[^\W\d_]+", name):
        if len({_alphabet(letter) for letter in word}) > 1:
            return f"name {quoted} mixes alphabets in '{word[:40]}'"
        if _LOOKS_LATIN.issuperset(word):
            return f"name {quoted} has '{word[:40]}', which looks like Latin letters"
    return ""


def _unseen(letter: str) -> bool:
    name = unicodedata.name(letter, "")
    return unicodedata.category(letter) in ("Mn", "Me") or "FILLER" in name or "BRAILLE PATTERN BLANK" in name


def _alphabet(letter: str) -> str:
    if letter.isascii() or unicodedata.normalize("NFD", letter)[0].isascii() or letter in "ıßæœøđłþð":
        return "LATIN"
    name = unicodedata.name(letter, "?").split()[0]
    return "other Latin" if name == "LATIN" else "CJK" if name in ("HIRAGANA", "KATAKANA") else name
