"""Every failure the harness foresees is one of these, says in one line what was met, and carries its exit code."""


class BenchmarkError(Exception):
    """A foreseen failure: what was met, what was expected, what to do.

    The message is a single line; `cli` prints it without a traceback and exits with `exit_code`.
    """

    exit_code = 2

    def __init__(self, met: str, *, expected: str = "", fix: str = "") -> None:
        parts = [met, f"expected {expected}" if expected else "", fix]
        super().__init__("; ".join(" ".join(part.split()) for part in parts if part))


class BadInputError(BenchmarkError):
    """The user's input (option, file, image, label, model) cannot be used."""


class UnknownNameError(BadInputError):
    """A name that no registry holds."""


class EvaluationError(BenchmarkError):
    """An evaluation that started and could not finish; its samples are counted neither robust nor broken."""

    exit_code = 3
