"""Every public name shows a short example in its docstring, which says what it prints."""

import doctest

import pytest

import robustbench_kpca


@pytest.mark.usefixtures("fork")
@pytest.mark.parametrize("name", robustbench_kpca.__all__)
def test_the_example_of(name, tmp_path, monkeypatch):
    """Only the docstring of the name itself is taken, not those of its methods."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    [example] = doctest.DocTestFinder(recurse=False).find(getattr(robustbench_kpca, name), name, globs={})
    assert 1 <= len(example.examples) <= 6, "a short example"
    said = []
    doctest.DocTestRunner().run(example, out=said.append)
    assert not said, "".join(said)
