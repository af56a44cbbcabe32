"""The errors of the package: each has a one-line message and an exit code for the command line."""

import errno
import json

MOST = 480
"""Characters of what was met: long paths fit, a text of pages that was given for a name does not."""
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
DISK_FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.EIO)


def reason_of(error: BaseException) -> str:
    """Say in words of this package why a file, a text or a library failed.

    Of an error of the system it is the reason, of a text the place; of all others the name of their class, since their
    words are those of a library. Errors of this package have their own words.
    """
    match error:
        case BenchmarkError():
            return str(error)
        case OSError() if error.errno is not None:
            return _REASONS.get(error.errno, f"error {error.errno} of the system")
        case UnicodeDecodeError():
            return f"no text in UTF-8 from byte {error.start + 1} on"
        case json.JSONDecodeError():
            return f"no JSON from line {error.lineno}, column {error.colno} on"
        case RecursionError():
            return "it is nested too deeply"
    return type(error).__name__


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
    return "".join(letter if letter.isprintable() else " " if letter.isspace() else "\N{REPLACEMENT CHARACTER}"
                   for letter in text)  # fmt: skip


def printable_lines(text: str) -> str:
    """Return `printable` text whose lines stay."""
    return "\n".join(map(printable, text.split("\n")))


class BenchmarkError(Exception):
    """An expected kind of failure; the message states what was met, what was expected and what to do.

    The message is one line. The command line prints it without a traceback and exits with `exit_code`.
    """

    exit_code = 2

    def __init__(self, met: str, *, expected: str = "", fix: str = "") -> None:
        parts = [shortened(met), f"expected {expected}" if expected else "", fix]
        super().__init__(printable("; ".join(" ".join(part.split()) for part in parts if part)))


class BadInputError(BenchmarkError):
    """The user's input (option, file, image, label, model) cannot be used."""


class UnknownNameError(BadInputError):
    """A name that is not registered: of a model, attack, protocol, data set or other item."""


class AbsentPartError(BadInputError):
    """A data set that has no file of the part that is asked for, such as `test`."""


class EvaluationError(BenchmarkError):
    """An evaluation that started but could not finish; its samples count neither as robust nor as broken."""

    exit_code = 3
