"""Files that carry their digest: whatever is altered in them is noticed."""

import random

import pytest

from robustbench_kpca._core.files import sealed, unsealed
from robustbench_kpca._engine.inference.journal import Journal


def test_an_altered_file_is_noticed():
    data = random.Random(0).randbytes(300)
    content = sealed(data)
    assert unsealed(content) == data
    for at in range(len(content)):
        altered = bytearray(content)
        altered[at] ^= 1
        with pytest.raises(ValueError, match="SHA-256"):
            unsealed(bytes(altered))
        with pytest.raises(ValueError, match="SHA-256"):
            unsealed(content[:at])


def test_an_altered_journal_is_not_used(tmp_path):
    """Torch itself loads altered numbers without a word."""
    journal = Journal(tmp_path / "j", "spec")
    journal.write({"rows": {0: [1.5, 2.5]}})
    assert Journal(tmp_path / "j", "spec").read()["rows"] == {0: [1.5, 2.5]}
    whole = (tmp_path / "j").read_bytes()
    for at in range(0, len(whole), 37):
        altered = bytearray(whole)
        altered[at] ^= 1
        (tmp_path / "j").write_bytes(altered)
        assert Journal(tmp_path / "j", "spec").read() is None
