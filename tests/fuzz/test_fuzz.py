"""Damaged files are read or refused in one line: a few of each parser's inputs, of those of `tests/fuzz/fuzz.py`."""

import numpy as np
import pytest
from fuzz import fuzz
from fuzz_parsers import all_parsers

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.files import sha256
from robustbench_kpca.records.images import ImagesFile, KeptImages, load_images

pytestmark = pytest.mark.usefixtures("few_resamples")
FEW = 20


@pytest.mark.slow
def test_no_parser_raises_anything_but_a_refusal(tmp_path):
    for parser in all_parsers(tmp_path):
        found = fuzz(parser, FEW, seed=7)
        assert (parser.name, found.raised) == (parser.name, [])


@pytest.mark.parametrize(("at", "byte"), [(4, 109), (6, 1), (8, 99)])
def test_zip_files_that_python_cannot_unpack_are_refused(at, byte, tmp_path):
    """A version, a flag (encrypted) and a method of compression that zipfile does not know."""
    kept = KeptImages(("0",), np.zeros((1, 1, 2, 2), np.uint8), np.zeros((1, 1, 2, 2), np.uint8)).to_file()
    data = bytearray(kept)
    for start in (kept.index(b"PK\x01\x02") + 2, 0):  # of the first member: in the list of members, and before it
        data[start + at] = byte
    (tmp_path / "i.npz").write_bytes(data)
    with pytest.raises(BadInputError, match="holds no images"):
        load_images(tmp_path, ImagesFile(file="i.npz", sha256=sha256(bytes(data)), samples=1))
