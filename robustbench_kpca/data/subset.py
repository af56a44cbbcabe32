"""Select the 5,000 ImageNet validation images that RobustBench uses for evaluation."""

from pathlib import PurePosixPath

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.data.imagenet_classes import robustbench_validation
from robustbench_kpca.data.samples import Samples

SETS = ("imagenet", "imagenet-c")


def published_subset(samples: Samples) -> Samples:
    """Return RobustBench's 5,000 validation images, found by file name, so that results are comparable.

    They are a simple random sample of the 50,000, not a stratified one (997 classes, 1 to 12 images each), and an
    accuracy on them has the sampling error of a simple random sample.

    Args:
        samples: `imagenet` (all classes) or `imagenet-c`.

    Raises:
        BadInputError: another set, or a set in which some of the images are missing.
    """
    wanted = robustbench_validation()
    if samples.name not in SETS or samples.split != "val":
        raise BadInputError(
            f"split 'robustbench' of data '{samples.name}' ({samples.split})",
            expected=f"the whole set {' or '.join(SETS)}",
        )
    places = [i for i, name in enumerate(samples.ids) if PurePosixPath(name).stem in wanted]
    if len(places) != len(wanted):
        missing = len(wanted) - len(places)
        raise BadInputError(
            f"'{samples.name}' lacks {missing} of the {len(wanted):,} images that RobustBench published",
            fix="give the whole validation set",
        )
    return samples.take(places)
