"""On real data that cannot be shipped: corruptions made by others of one photograph, and their statistics.

The pictures are those of imagenet-testbed (its own code, JPEG files, draws unknown): see the folder's README. So what
draws nothing is compared as pictures, and noise by how far it moves the image.
"""

import numpy as np
import pytest
from PIL import Image

from robustbench_kpca.corruptions import corrupt
from robustbench_kpca.corruptions.shared.storage import store

STILL = ["brightness", "contrast", "defocus_blur", "gaussian_blur", "saturate", "zoom_blur"]
NOISES = ["gaussian_noise", "shot_noise", "impulse_noise", "speckle_noise"]


@pytest.fixture
def read(real_data):
    def picture(name):
        with Image.open(real_data(f"imagenet_c_reference/{name}.jpeg")) as file:
            return np.asarray(file.convert("RGB"))

    return picture


def psnr(a, b):
    return 10 * np.log10(255**2 / ((a.astype(float) - b) ** 2).mean())


@pytest.mark.parametrize("severity", range(1, 6))
@pytest.mark.parametrize("name", STILL)
def test_what_draws_nothing_is_the_picture_that_others_made(read, name, severity):
    clean, theirs = read("bird"), read(f"{name}_{severity}")
    ours = store(corrupt(clean[None], name, severity, profile="imagenet_c")[0])
    assert psnr(ours, theirs) > 32.5  # JPEG of quality 85 alone: 33 to 46 here
    others = [corrupt(clean[None], name, other, profile="imagenet_c")[0] for other in {1, 2, 3, 4, 5} - {severity}]
    assert psnr(ours, theirs) > max(psnr(store(other), theirs) for other in others), "another severity is nearer"


@pytest.mark.parametrize("severity", range(1, 6))
@pytest.mark.parametrize("name", NOISES)
def test_noise_moves_the_image_as_far(read, name, severity):
    clean, theirs = read("bird"), read(f"{name}_{severity}")
    ours = store(corrupt(clean[None], name, severity, profile="imagenet_c")[0])
    assert psnr(ours, clean) == pytest.approx(psnr(theirs, clean), abs=0.7)
    assert ours.mean() == pytest.approx(theirs.mean(), abs=1)
