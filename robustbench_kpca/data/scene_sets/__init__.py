"""The scene sets, one file each: images with a class for every pixel.

Each file's `load(folder, split, bad_images)` returns `Scenes`; `folder` is "" where none was given.
"""

from robustbench_kpca.registry import Family

SCENES = Family("scene set", __name__, "load")
