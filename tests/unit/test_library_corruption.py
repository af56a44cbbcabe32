"""The library `imagecorruptions` can be asked for by name; the one that is asked here is mended (see `patched`)."""

import sys
import types

import numpy as np
import pytest
from patched import imagecorruptions
from PIL import Image

from robustbench_kpca import corrupt, evaluate, load_data, load_model
from robustbench_kpca.corruptions import _library, corruption_for
from robustbench_kpca.errors import BadInputError, EvaluationError

NAMES = ["gaussian_noise", "fog", "glass_blur"]


@pytest.fixture
def mended(monkeypatch):
    """Put a mended library where the user's installation would be, for one test."""
    source, package = imagecorruptions(), types.ModuleType("imagecorruptions")
    package.get_corruption_names = lambda subset: NAMES
    package.corrupt = lambda image, severity, corruption_name: np.uint8(
        getattr(source, corruption_name)(Image.fromarray(image), severity)
    )
    monkeypatch.setitem(sys.modules, "imagecorruptions", package)
    _library._library.cache_clear()
    corruption_for.cache_clear()
    yield package
    _library._library.cache_clear()
    corruption_for.cache_clear()


@pytest.fixture(scope="module")
def image():
    return load_data("digits", limit=3).image(1)


@pytest.mark.parametrize("name", NAMES)
def test_the_native_exact_form_is_the_librarys(name, image, mended):
    for severity in (1, 5):
        streams = [np.random.RandomState(7) for _ in range(2)]
        native, library = (
            corrupt(image[None], f"{prefix}{name}", severity, stream, mode="exact")
            for prefix, stream in zip(("", "imagecorruptions:"), streams, strict=True)
        )
        assert np.array_equal(native, library)
        assert streams[0].randint(2**31) == streams[1].randint(2**31), "both drew as much"


def test_a_protocol_can_name_it(mended, tmp_path):
    how = {"corruptions": ["fog", "imagecorruptions:fog"], "severities": [3], "mode": "exact", "frost": "original"}
    record = evaluate(
        load_model("vit_digits"),
        load_data("digits", limit=20),
        protocol="common-corruptions",
        out=tmp_path,
        **how,
        audit=False,
    )
    assert set(record.outcomes["corruption"]) == {"none", "fog", "imagecorruptions:fog"}
    with pytest.raises(BadInputError, match=r"'fogg'.*did you mean 'fog'"):
        corruption_for("imagecorruptions:fogg")
    with pytest.raises(BadInputError, match=r"'cifar_c'.*imagecorruptions"):
        corrupt(np.zeros((1, 32, 32, 3), np.uint8), "imagecorruptions:fog", 1, profile="cifar_c")


def test_what_the_library_raises_is_one_line(mended, image):
    def broken(image, severity, corruption_name):
        raise TypeError("gaussian() got an unexpected keyword argument 'multichannel'")

    mended.corrupt = broken
    with pytest.raises(EvaluationError, match=r"imagecorruptions:fog .*TypeError: gaussian"):
        corrupt(image[None], "imagecorruptions:fog", 1)


def test_a_library_that_cannot_be_imported_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "imagecorruptions", None)
    _library._library.cache_clear()
    corruption_for.cache_clear()
    with pytest.raises(BadInputError, match="setuptools<82"):
        corruption_for("imagecorruptions:fog")
    _library._library.cache_clear()
    corruption_for.cache_clear()
