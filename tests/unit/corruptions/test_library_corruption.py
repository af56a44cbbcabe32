"""The library `imagecorruptions` can be asked for by name; it is mended at import, and nothing else is changed.

The oracle (`patched`) is the library's source with the broken lines rewritten.
"""

import sys

import numpy as np
import pytest
from corruption_checks import differing, parameter_of, photograph, reference

from robustbench_kpca import corrupt, evaluate, load_data, load_model
from robustbench_kpca._core.errors import BadInputError, EvaluationError
from robustbench_kpca.corruptions import OTHER_DRAWS, _library, corruption_for, frost_pictures

LIBRARY = pytest.importorskip("skimage") and _library._library()
NAMES = LIBRARY.get_corruption_names("all")


@pytest.fixture(scope="module")
def image():
    return photograph(36, 48)


@pytest.fixture
def not_loaded():
    """Let a test load the library, or fail to, by itself."""
    names = [name for name in sys.modules if name.partition(".")[0] == _library._COPY]
    before = {name: sys.modules.pop(name) for name in names}
    _library._library.cache_clear()
    yield
    sys.modules.update(before)
    _library._library.cache_clear()


@pytest.mark.parametrize("name", sorted({*NAMES} - {*OTHER_DRAWS}))
def test_the_mended_library_is_the_rewritten_one(name, image):
    for severity in (1, 5):
        made = corruption_for(f"imagecorruptions:{name}").exact(image, severity, np.random.RandomState(7))
        assert differing(made, reference(name, image, severity, 7)) == (0, 0)


def test_impulse_noise_follows_the_seed_again(image):
    first, same, other = (
        corruption_for("imagecorruptions:impulse_noise").exact(image, 3, np.random.RandomState(seed))
        for seed in (1, 1, 2)
    )
    assert np.array_equal(first, same)
    assert not np.array_equal(first, other)
    changed = (first != image) & np.isin(first, (0, 255))
    assert 0.07 < changed.mean() < 0.11, "0.09 of the values, those that were 0 or 255 already aside"
    assert np.array_equal(first[~changed], image[~changed])


@pytest.mark.parametrize("name", ["gaussian_noise", "fog", "glass_blur"])
def test_the_native_exact_form_is_the_librarys(name, image):
    for severity in (1, 5):
        streams = [np.random.RandomState(7) for _ in range(2)]
        native = corruption_for(name).exact(image, parameter_of(name, severity), streams[0])
        library = corruption_for(f"imagecorruptions:{name}").exact(image, severity, streams[1])
        assert np.array_equal(native, library)
        assert streams[0].randint(2**31) == streams[1].randint(2**31), "both drew as much"
    seeded = [corrupt(image[None], prefix + name, 3, 5, mode="exact") for prefix in ("", "imagecorruptions:")]
    assert np.array_equal(*seeded), "one seed, one picture"


def test_nothing_but_the_copy_is_changed(not_loaded):
    import skimage.filters
    import skimage.util

    before = [skimage.filters.gaussian, skimage.util.random_noise, sys.modules.get("pkg_resources")]
    copy = _library._library()
    assert [skimage.filters.gaussian, skimage.util.random_noise, sys.modules.get("pkg_resources")] == before
    assert not hasattr(np, "float_")
    assert copy.__name__ != "imagecorruptions"
    assert sorted(path.name for path in frost_pictures().glob("frost1*")) == ["frost1.png"]


def test_a_protocol_can_name_it():
    how = {"corruptions": ["fog", "imagecorruptions:fog"], "severities": [3], "mode": "exact", "frost": "original"}
    few = load_data("digits", limit=20)
    record = evaluate(load_model("vit_digits"), few, protocol="common-corruptions", audit=False, **how)
    assert set(record.outcomes["corruption"]) == {"none", "fog", "imagecorruptions:fog"}
    with pytest.raises(BadInputError, match=r"'fogg'.*did you mean 'fog'"):
        corruption_for("imagecorruptions:fogg")
    with pytest.raises(BadInputError, match=r"'cifar_c'.*imagecorruptions"):
        corrupt(np.zeros((1, 32, 32, 3), np.uint8), "imagecorruptions:fog", 1, profile="cifar_c")


def test_what_the_library_raises_is_one_line(monkeypatch, image):
    def broken(image, severity, corruption_name):
        raise TypeError("gaussian() got an unexpected keyword argument 'multichannel'")

    monkeypatch.setattr(_library._library(), "corrupt", broken)
    with pytest.raises(EvaluationError, match=r"imagecorruptions:fog failed .it has no option .multichannel"):
        corrupt(image[None], "imagecorruptions:fog", 1)


def test_a_library_that_is_not_installed_says_what_to_install(monkeypatch, not_loaded):
    monkeypatch.setitem(sys.modules, "imagecorruptions", None)
    with pytest.raises(BadInputError, match=r"imagecorruptions.*pip install '\.\[reference\]'"):
        corruption_for("imagecorruptions:fog")
