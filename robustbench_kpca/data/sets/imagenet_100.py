"""ImageNet-100: the validation images of 100 classes of ImageNet-1K, for models with 100 outputs.

The classes are those of Tian, Krishnan & Isola (2019, "Contrastive Multiview Coding", arXiv:1906.05849), numbered from
0 to 99 in the order of their WordNet ids, as readers of class folders number them. For models with 1,000 outputs use
the split `imagenet-100` of `imagenet`.
"""

from dataclasses import replace

from robustbench_kpca.data.imagenet_classes import imagenet_classes
from robustbench_kpca.data.io.folder import ImageFiles
from robustbench_kpca.data.request import Request
from robustbench_kpca.data.sets import imagenet

NAME = "imagenet-100"


def load(request: Request) -> ImageFiles:
    """Load the only split, `val`, from a folder of `imagenet`, with all of its classes or with these."""
    request.split_of(NAME, ("val", "test"))
    chosen = imagenet.load(replace(request, split=NAME))
    number = {index: place for place, index in enumerate(imagenet_classes(NAME))}
    root, files, labels = chosen.root, chosen.files, [number[label] for label in chosen.labels]
    samples = ImageFiles(root, files, labels, len(number), name=NAME, split="val", view=request.view, ids=chosen.ids)
    samples.expected, samples.notes = chosen.expected, chosen.notes
    return samples
