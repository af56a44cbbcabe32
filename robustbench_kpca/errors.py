"""The errors of the package: each has a one-line message and an exit code for the command line."""


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
        parts = [met, f"expected {expected}" if expected else "", fix]
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
