"""Read the five frost photographs used for the released data sets from a folder, and verify their SHA-256.

They are part of hendrycks/robustness and bethgelab/imagecorruptions, under Apache-2.0 but without a stated origin, so
this package does not include them. The sixth photograph in those folders is never used.
"""

import hashlib
from functools import lru_cache
from pathlib import Path

import cv2
import numpy as np

from robustbench_kpca._core.errors import BadInputError, reason_of
from robustbench_kpca.corruptions.shared.kernels import Pixels

SHA256 = {
    "frost1.png": "ff9f907860bd7a835d459e32f9d588062b7f61ee267343cc7222b56753a14755",
    "frost2.png": "fe211a89b336999c207a852ce05818d4545d0b57c5beadd824b4cc9d9a9b6137",
    "frost3.png": "2d0d50b4a9bb213f38b024ef7768731bb83cc08d2f26b5766bbc167cdfa0e504",
    "frost4.jpg": "3f8b91ca1a9fa7167b09e773da53f5ae60d0a1fd88f02a783f6e328a72887f6e",
    "frost5.jpg": "5fc6a19df4a429ba68abdcc8f8a4278d4c9f81c9ccafd2c92ab0c8cf8992ebd2",
}


@lru_cache(maxsize=16)
def photograph(folder: str, index: int) -> Pixels:
    """Read photograph `index` (0 to 4), RGB, from `folder`.

    Raises:
        BadInputError: the file cannot be read or differs from the original.
    """
    name, wanted = list(SHA256.items())[index]
    path = Path(folder) / name
    fix = "copy the folder `frost` of hendrycks/robustness or of the package imagecorruptions"
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BadInputError(f"cannot read frost photograph '{path}' ({reason_of(error)})", fix=fix) from error
    digest = hashlib.sha256(content).hexdigest()
    if digest != wanted:
        raise BadInputError(f"'{path}' is not the original: SHA-256 {digest[:12]}", expected=wanted[:12], fix=fix)
    picture = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_COLOR)
    assert picture is not None
    levels = np.ascontiguousarray(picture[..., ::-1], np.uint8)
    levels.setflags(write=False)
    return levels
