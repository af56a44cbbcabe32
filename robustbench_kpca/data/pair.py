"""Two sets as one, for out-of-distribution detection: label 0 is an image of a known class, 1 is one of none."""

from robustbench_kpca.data.samples import Image, Samples, to_pixels
from robustbench_kpca.errors import BadInputError


class Pair(Samples):
    """An in-distribution set and an out-of-distribution one, for detection: label 0 is in, 1 is out.

    Ids are prefixed `in/` and `out/`; the name is `A-against-B`, the split that of the known images.

    Raises:
        BadInputError: the images of the two differ in size; the known ones have no classes, or the two are the same or
            both of ImageNet's classes.

    """

    def __init__(self, known: Samples, unknown: Samples) -> None:
        _require_different(known, unknown)
        sizes = [to_pixels(samples.image(0)).shape[:2] for samples in (known, unknown)]
        if sizes[0] != sizes[1]:
            raise BadInputError(
                f"images of '{known.name}' are {sizes[0][1]} x {sizes[0][0]}, those of '{unknown.name}' "
                f"{sizes[1][1]} x {sizes[1][0]}",
                expected="one size for both",
            )
        self.parts = (known, unknown)
        ids = [f"in/{name}" for name in known.ids] + [f"out/{name}" for name in unknown.ids]
        labels = [0] * len(known) + [1] * len(unknown)
        super().__init__(f"{known.name}-against-{unknown.name}", known.split, ids, labels, 2)
        self.known_classes = tuple(sorted(set(known.labels)))
        self.skipped = tuple(f"in/{name}" for name in known.skipped) + tuple(f"out/{n}" for n in unknown.skipped)
        if known.expected is not None and unknown.expected is not None:
            self.expected = known.expected + unknown.expected

    def image(self, index: int) -> Image:
        """Image number `index`: first the known ones."""
        part, position = self._find(index)
        return part.image(position)

    def fingerprint(self, index: int) -> str:
        """As in its own set."""
        part, position = self._find(index)
        return part.fingerprint(position)

    def _find(self, index: int) -> tuple[Samples, int]:
        known, unknown = self.parts
        index = range(len(self))[index]
        return (known, index) if index < len(known) else (unknown, index - len(known))


def _require_different(known: Samples, unknown: Samples) -> None:
    if not known.classes:
        raise BadInputError(
            f"'{known.name}' as the known images: they are of no class that a model knows",
            fix="give it as --against, and images of known classes as --data",
        )
    same = known.ids[0] in unknown.ids and known.fingerprint(0) == unknown.fingerprint(unknown.ids.index(known.ids[0]))
    both = unknown.classes > 0 and all(samples.name.startswith("imagenet") for samples in (known, unknown))
    if same or both:
        raise BadInputError(
            f"'{unknown.name}' as images of no known class, beside '{known.name}'",
            expected="images of other classes, such as imagenet-o:FOLDER or photos",
        )
