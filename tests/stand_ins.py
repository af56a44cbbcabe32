"""Few images under the name of many."""

import importlib
from contextlib import contextmanager
from functools import wraps

import pytest

from robustbench_kpca.data import DATASETS


@contextmanager
def few_digits(count):
    """Let every part of the digits have only its first images."""
    digits = importlib.import_module(f"{DATASETS.package}.digits")
    load = digits.load
    with pytest.MonkeyPatch.context() as patch:
        few = wraps(load)(lambda request: load(request).take(range(count)))  # what it returns stays declared
        patch.setattr(digits, "load", few)
        yield
