"""CamVid, 11 classes of street scenes, 480 x 360, as prepared for SegNet.

Brostow, Fauqueur & Cipolla (2009), "Semantic object classes in video", Pattern Recognition Letters 30(2);
Badrinarayanan, Kendall & Cipolla (2017), "SegNet", arXiv:1511.00561. Masks contain 0 to 10, and 11 for pixels to
ignore. Two layouts are supported: `images/SPLIT` with `annotations/SPLIT`, or SegNet's `SPLIT` with `SPLITannot`.

The published set has 367 (train), 101 (val) and 233 (test) PNG images. JPEG copies are lossy and give other numbers, so
they get the name `camvid-jpeg`.
"""

import numpy as np

from robustbench_kpca.data.io.labelling import Labelling
from robustbench_kpca.data.io.place import stored_folder
from robustbench_kpca.data.io.scene_files import Place, SceneFiles
from robustbench_kpca.data.request import Request
from robustbench_kpca.types import IGNORE

SPLITS = {"val": 101, "train": 367, "test": 233}
COLOURS = {
    "sky": (128, 128, 128), "building": (128, 0, 0), "pole": (192, 192, 128), "road": (128, 64, 128),
    "pavement": (0, 0, 192), "tree": (128, 128, 0), "sign": (192, 128, 128), "fence": (64, 64, 128),
    "car": (64, 0, 128), "pedestrian": (64, 64, 0), "bicyclist": (0, 128, 192),
}  # fmt: skip
"""Classes in the order of their ids, with the colours of the original labels."""


def load(request: Request) -> SceneFiles:
    """Read `val` (the default), `train` or `test`."""
    split = request.split_of("camvid", list(SPLITS))
    root = stored_folder("camvid", request.folder)
    segnet = Place(root / split, root / f"{split}annot")
    place = segnet if segnet.masks.is_dir() else Place(root / "images" / split, root / "annotations" / split)
    labelling = Labelling(
        class_names=tuple(COLOURS),
        ids={label: label for label in range(len(COLOURS))} | {len(COLOURS): IGNORE},
        palette=np.array(list(COLOURS.values()), np.uint8),
    )
    scenes = SceneFiles(place, labelling, name="camvid", split=split, expected=SPLITS[split])
    if any(image.suffix.lower() != ".png" for image, _ in scenes.files):
        scenes.name = "camvid-jpeg"
    return scenes
