"""Three attacks and four corruptions beside the libraries that are known for them, in seconds, as `make demo` ends.

PGD and C&W draw no random numbers here, so both programs should give the same verdict on every image. AutoAttack draws
some; its verdicts rarely depend on them. It has fewer steps than usual, because the reference takes most of the time.
"""

from dataclasses import dataclass

from robustbench_kpca._core.progress import Progress
from robustbench_kpca.data.load import load_data
from robustbench_kpca.evaluation.options import RunOptions
from robustbench_kpca.evaluation.requests import ModelRequest
from robustbench_kpca.protocols.scenario import Override
from robustbench_kpca.verification.cross_check import cross_check
from robustbench_kpca.verification.pictures import compare_pictures, corruption_protocol, pictures_of

MODEL, DATA, IMAGES, PHOTOS = "vit_digits", "digits", 32, 2
ATTACKS: tuple[tuple[str, dict[str, Override]], ...] = (
    ("pgd20-linf-8_255", {"eps": "4/255", "random_start": False}),
    ("cw-l2-128_255", {"binary_steps": 1, "initial_const": 1.0, "steps": 100, "lr": 0.01}),
    ("autoattack-linf-8_255", {"eps": "6/255", "steps": 20, "queries": 500}),
)
CORRUPTIONS: dict[str, Override] = {
    "corruptions": ["gaussian_noise", "defocus_blur", "fog", "jpeg_compression"],
    "severities": [3],
}


@dataclass(frozen=True)
class Glance:
    """How many verdicts, and how many corruptions, differ from the libraries', each of how many."""

    differing: int
    verdicts: int
    other_pictures: int
    corruptions: int

    @property
    def agrees(self) -> bool:
        """Whether nothing differs."""
        return self.differing == self.other_pictures == 0


def look(progress: Progress) -> Glance:
    """Compare verdicts on digits with torchattacks' and pyautoattack's, and photographs with those of imagecorruptions.

    Raises:
        BadInputError: a library is missing; the message names it.
        EvaluationError: an attack could not finish.
    """
    named = ModelRequest(MODEL).named()
    digits = load_data(DATA, limit=IMAGES).in_order()
    differing = 0
    for number, (protocol, overrides) in enumerate(ATTACKS):
        progress(number, len(ATTACKS) + 1)
        found = cross_check(named, digits, protocol, overrides, RunOptions(batch_size=IMAGES))
        differing += found.only_native + found.only_reference
    progress(len(ATTACKS), len(ATTACKS) + 1)
    protocol_of_pictures = corruption_protocol("common-corruptions", CORRUPTIONS)
    assert protocol_of_pictures is not None
    cells = compare_pictures(protocol_of_pictures, pictures_of(load_data("photos", limit=PHOTOS)))
    return Glance(differing, len(ATTACKS) * IMAGES, sum(not cell.agrees for cell in cells), len(cells))
