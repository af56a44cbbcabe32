"""Damaged files are read or refused in one line: a few of each parser's inputs, of those of `benchmarks/fuzz.py`."""

import pytest
from _fuzz_parsers import all_parsers
from fuzz import fuzz

from robustbench_kpca.data.io.ts_file import read_ts
from robustbench_kpca.errors import BadInputError

pytestmark = pytest.mark.usefixtures("few_resamples")
FEW = 20


def test_no_parser_raises_anything_but_a_refusal(tmp_path):
    for parser in all_parsers(tmp_path):
        found = fuzz(parser, FEW, seed=7, keep=None)
        assert (parser.name, found.raised) == (parser.name, [])


@pytest.mark.parametrize("line", ["@", "@ ", "@classLabel", "@dimensions " + "9" * 5000, "@targetLabel", "@timeStamps"])
def test_headers_of_time_series_that_say_nothing(line, tmp_path):
    (tmp_path / "x.ts").write_text(f"@problemName x\n{line}\n@data\n1,2:a\n")
    with pytest.raises(BadInputError):
        read_ts(tmp_path / "x.ts")
