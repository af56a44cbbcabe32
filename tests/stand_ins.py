"""Few images under the name of many."""

import importlib
from contextlib import contextmanager

import pytest

from robustbench_kpca.data import DATASETS


@contextmanager
def few_digits(count):
    """Let every part of the digits have only its first images."""
    digits = importlib.import_module(f"{DATASETS.package}.digits")
    load = digits.load
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(digits, "load", lambda split="test": load(split).take(range(count)))
        yield
