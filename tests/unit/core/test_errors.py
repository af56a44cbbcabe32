"""What is said of errors of others: our words or the first line of theirs, and where code from outside raised them."""

import csv
import json
import pickle
import zipfile

import pytest
import torch

from robustbench_kpca._core.errors import BadInputError, UnfitError, reason_of


def raised(call, *arguments, **named):
    try:
        call(*arguments, **named)
    except Exception as error:  # noqa: BLE001 (whichever it is)
        return error
    raise AssertionError("it raised nothing")


class LocalEntryNotFoundError(FileNotFoundError):
    """As of the hub: an error of the system without a number."""


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (BadInputError("as it is"), "as it is"),
        (UnfitError("its head is damaged"), "its head is damaged"),
        (FileNotFoundError(2, "No such file or directory", "x"), "it is not there"),
        (OSError(28, "No space left on device"), "the disk is full"),
        (OSError(9999, "?"), "error 9999 of the system"),
        (raised(b"ab\xff".decode), "no text in UTF-8 from byte 3 on"),
        (raised(json.loads, "{\n1"), "no JSON from line 2, column 1 on"),
        (ModuleNotFoundError("No module named 'numba'", name="numba"), "there is no module numba"),
        (raised(compile, "a b", "model.py", "exec"), "no Python from model.py, line 1 on"),
        (EOFError("Ran out of input"), "it ends too early"),
        (zipfile.BadZipFile("File is not a zip file"), "it is damaged"),
        (csv.Error("line contains NUL"), "it is no table"),
        (pickle.UnpicklingError("Weights only load failed"), "it holds more than tensors and plain values"),
        (torch.OutOfMemoryError("CUDA out of memory"), "memory is used up"),
        (RuntimeError("[enforce fail] not enough memory: you tried"), "memory is used up"),
        (ConnectionRefusedError("refused"), "no connection"),
        (LocalEntryNotFoundError("no cached snapshot"), "it is not here, and the hub cannot be reached"),
        (KeyError("size"), "KeyError: 'size'"),
        (RuntimeError("  mine \x1b[2J\nand more"), "RuntimeError: mine \N{REPLACEMENT CHARACTER}[2J"),
        (ValueError(""), "ValueError"),
    ],
)
def test_reasons(error, said):
    assert reason_of(error) == said


def test_what_others_say_is_named_and_cut(tmp_path):
    assert reason_of(raised(torch.nn.Linear, 2, 3, colour=1)).startswith("it has no option 'colour'")
    assert reason_of(raised(torch.matmul, torch.zeros(1, 5), torch.zeros(2, 3))).startswith("shapes do not fit")
    path = tmp_path / "model.py"
    path.write_text("import torch\n\n\ndef make():\n    return torch.zeros(2).view(3, 'x')\n")
    names = {}
    exec(compile(path.read_text(), path, "exec"), names)
    assert reason_of(raised(names["make"])).startswith("TypeError: model.py, line 5: view(): argument 'size'")
    said = reason_of(RuntimeError("a" * 500)).removeprefix("RuntimeError: ")
    assert 150 < said.count("a") <= 160
