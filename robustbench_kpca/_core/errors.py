"""The errors of the package: each has a one-line message and an exit code for the command line."""

import errno
import json
import os
import re
import traceback
from pathlib import Path

MOST = 480
"""Characters of what was met: long paths fit, a text of pages that was given for a name does not."""
_SAID = 160
"""Characters of what an error of others says."""
_REASONS = {
    errno.ENOENT: "it is not there",
    errno.EACCES: "no permission",
    errno.EPERM: "no permission",
    errno.EISDIR: "it is a folder",
    errno.ENOTDIR: "a part of its path is no folder",
    errno.EEXIST: "it is there already",
    errno.EROFS: "it is read-only",
    errno.ENAMETOOLONG: "its name is too long",
    errno.ELOOP: "its symbolic links lead in a circle",
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the quota of the disk is used up",
    errno.EFBIG: "the disk takes no file of this size",
    errno.EIO: "the disk fails",
    errno.EMFILE: "too many files are open",
}
_KINDS = {
    "MemoryError": "memory is used up",
    "OutOfMemoryError": "memory is used up",
    "EOFError": "it ends too early",
    "IncompleteReadError": "it ends too early",
    "BadZipFile": "it is damaged",
    "zlib.error": "it is damaged",
    "SafetensorError": "it is damaged",
    "UnidentifiedImageError": "it is no picture",
    "_csv.Error": "it is no table",
    "UnpicklingError": "it holds more than tensors and plain values",
    "_LinAlgError": "a matrix is singular, or its decomposition did not converge",
    "TimeoutError": "no answer in time",
    "ConnectionError": "no connection",
    "LocalEntryNotFoundError": "it is not here, and the hub cannot be reached",
    "EntryNotFoundError": "the hub has no such file",
    "RepositoryNotFoundError": "the hub has none of this name, or it is private",
}
"""Exceptions by the names of their classes, so that no library is imported to know them."""
_TEXTS = (
    (r"unexpected keyword argument '(\w+)'", "it has no option '{}'"),
    (r"out of memory|not enough memory|can't allocate memory", "memory is used up"),
    (r"shapes cannot be multiplied|must match the size|size mismatch|invalid for input of size", "shapes do not fit"),
)
"""Patterns of what a library says, and our words for it."""
DISK_FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.EIO)


def install_extra(extra: str) -> str:
    """Return what installs an optional dependency: no index has this package, so it is a folder of a clone."""
    return f"pip install '.[{extra}]' in a clone of robustbench-kpca"


def reason_of(error: BaseException) -> str:
    """Say in words of this package why a file, a text or a library failed.

    An error of the system is described by its reason, an error in a text by its place. All others are described by
    their class, the line of code from outside that raised them, and the first line of what they say, because it may be
    the user's own. Errors of this package keep their words.
    """
    match error:
        case BenchmarkError() | UnfitError():
            return str(error)
        case OSError() if error.errno is not None:
            return _REASONS.get(error.errno, f"error {error.errno} of the system")
        case UnicodeDecodeError():
            return f"no text in UTF-8 from byte {error.start + 1} on"
        case json.JSONDecodeError():
            return f"no JSON from line {error.lineno}, column {error.colno} on"
        case RecursionError():
            return "it is nested too deeply"
        case ModuleNotFoundError() if error.name:
            return f"there is no module {error.name}"
        case SyntaxError() if error.filename:
            return f"no Python from {Path(error.filename).name}, line {error.lineno} on"
    words = _words_for(error)
    message = [] if words else [shortened(printable(line), _SAID) for line in str(error).strip().splitlines()[:1]]
    return ": ".join([words or type(error).__name__, *_place(error), *message])


def _words_for(error: BaseException) -> str | None:
    """Return our words for an error, by its class or by the library's message."""
    classes = type(error).__mro__
    names = [name for kind in classes for name in (kind.__name__, f"{kind.__module__}.{kind.__name__}")]
    matches = ((words, re.search(pattern, str(error), re.IGNORECASE)) for pattern, words in _TEXTS)
    from_texts = (words.format(*match.groups()) for words, match in matches if match)
    return next((_KINDS[name] for name in names if name in _KINDS), None) or next(from_texts, None)


def _place(error: BaseException) -> list[str]:
    """Return where code from outside raised an error: its last line that is in neither this package nor a library."""
    ours = (str(Path(__file__).parents[1]), str(Path(os.__file__).parent), "<")
    places = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    outside = [at for at in places if not at[0].startswith(ours) and "site-packages" not in at[0]]
    return [f"{Path(file).name}, line {line}" for file, line in outside[-1:]]


def shortened(text: str, most: int = MOST) -> str:
    """Cut the middle out of a long text."""
    if len(text) <= most:
        return text
    return f"{text[: most * 2 // 3]} … {text[len(text) - most // 3 :]}"


def printable(text: str) -> str:
    """Return text in one line as a terminal may be given it: what is not printable becomes a replacement character.

    So no name from a record moves the cursor, clears the screen or turns the direction of writing.
    """
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else " " if letter.isspace() else "\N{REPLACEMENT CHARACTER}" for letter in text
    )


def printable_lines(text: str) -> str:
    """Return `printable` text whose lines stay."""
    return "\n".join(map(printable, text.split("\n")))


class BenchmarkError(Exception):
    """An expected kind of failure; the message states what was met, what was expected and what to do.

    The message is one line. The command line prints it without a traceback and exits with `exit_code`.

    Examples:
        >>> from robustbench_kpca import BenchmarkError, load_data
        >>> try:
        ...     load_data("digit")
        ... except BenchmarkError as error:
        ...     print(str(error).partition("?")[0])
        there is no data set named 'digit'; did you mean 'digits'
    """

    exit_code = 2

    def __init__(self, problem: str, *, expected: str = "", fix: str = "") -> None:
        parts = [shortened(problem), f"expected {expected}" if expected else "", fix]
        super().__init__(printable("; ".join(" ".join(part.split()) for part in parts if part)))


class BadInputError(BenchmarkError):
    """The user's input (option, file, image, label, model) cannot be used."""


class UnknownNameError(BadInputError):
    """A name that is not registered: of a model, attack, protocol, data set or other item."""


class AbsentPartError(BadInputError):
    """A data set that has no file of the part that is asked for, such as `test`, or one without labels."""


class UnfitError(ValueError):
    """What is wrong with a file or a value, in our words; the caller adds which it is."""


class EvaluationError(BenchmarkError):
    """An evaluation that started but could not finish; its samples count neither as robust nor as broken."""

    exit_code = 3


class LostError(EvaluationError):
    """The process that made a call is gone; the text goes on after "its process"."""
