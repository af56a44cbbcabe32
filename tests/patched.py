"""imagecorruptions 1.1.2 as an oracle: its installed source with the five lines mended that current packages refuse.

Nothing is written anywhere and no other package is touched: the mended source lives in a module of its own.
"""

import importlib.util
import sys
import types
from functools import cache
from pathlib import Path

MENDS = {
    "from scipy.ndimage.interpolation import map_coordinates": "from scipy.ndimage import map_coordinates",
    "from pkg_resources import resource_filename": (
        "def resource_filename(_, name):\n    return os.path.join(os.path.dirname(os.path.abspath(__file__)), name)"
    ),
    "np.float_": "np.float64",
    "multichannel=True": "channel_axis=-1",
}


def source() -> Path:
    """Path of the installed `imagecorruptions/corruptions.py`, found without importing the package."""
    spec = importlib.util.find_spec("imagecorruptions")
    assert spec is not None, "pip install '.[reference]'"
    assert spec.origin is not None
    return Path(spec.origin).with_name("corruptions.py")


@cache
def imagecorruptions() -> types.ModuleType:
    """The mended module: a function `name(PIL image, severity)` for every corruption, drawing from `np.random`."""
    text = source().read_text("utf-8")
    for before, after in MENDS.items():
        assert before in text, before
        text = text.replace(before, after)
    module = types.ModuleType("patched_imagecorruptions")
    module.__file__ = str(source())
    sys.modules[module.__name__] = module
    exec(compile(text, module.__file__, "exec"), module.__dict__)
    return module
