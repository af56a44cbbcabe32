"""What tests of commands share."""

import os

import pytest


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """Run a test in an empty folder, whose modules can be imported; the environment is put back."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(os, "environ", os.environ.copy())
    os.environ.pop("RBK_PRESETS", None)
