import pytest

from robustbench_kpca import load_data


@pytest.fixture(scope="module")
def data():
    return load_data("digits", limit=8)
