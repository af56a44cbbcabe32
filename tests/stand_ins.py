"""Few images under the name of many, audits of a step or two, and objects that pose as others."""

import importlib
from contextlib import contextmanager
from functools import wraps
from types import SimpleNamespace

import pytest

from robustbench_kpca.data import DATASETS
from robustbench_kpca.tasks import TASKS, task_named


@contextmanager
def few_digits(count):
    """Let every part of the digits have only its first images."""
    digits = importlib.import_module(f"{DATASETS.package}.digits")
    load = digits.load

    @wraps(load)
    def few(*asked):
        return load(*asked).take(range(count))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(digits, "load", few)
        yield


@contextmanager
def short_audits(tasks=None):
    """Let every attack of an audit take two steps, where the machinery is tested and not the verdict."""
    with pytest.MonkeyPatch.context() as patch:
        for task in tasks or TASKS.names():
            attacks = task_named(task).compute.audit.attacks
            for name, (protocol, given) in list(attacks.items()):
                few = {key: 2 for key in ("steps", "queries", "samples", "restarts") if key in given}
                patch.setitem(attacks, name, (protocol, given | few))
        yield


def posing_as(kind, /, **attributes):
    """Return an object of these attributes alone that checks of types take for one of `kind`."""
    return type(kind.__name__, (SimpleNamespace,), {"__class__": property(lambda self: kind)})(**attributes)
