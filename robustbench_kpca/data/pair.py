"""Combine two data sets for out-of-distribution detection: label 0 for known classes, label 1 for unknown ones."""

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.data.samples import Image, Samples, to_pixels


class Pair(Samples):
    """An in-distribution set (label 0) and an out-of-distribution set (label 1) as one set.

    Ids get the prefixes `in/` and `out/`; the name is `A-against-B`, the split that of the in-distribution set.

    Raises:
        BadInputError: the two sets have different image sizes; the in-distribution set has no classes; the two are the
            same set, or both have ImageNet's classes.
    """

    known_part: Samples

    def __init__(self, known: Samples, unknown: Samples) -> None:
        _require_different(known, unknown)
        for samples in (known, unknown):
            if not samples.form.box:
                raise BadInputError(
                    f"a pair with data '{samples.name}', which are {samples.form.name}", expected="images"
                )
        sizes = [to_pixels(samples.image(0)).shape[:2] for samples in (known, unknown)]
        if sizes[0] != sizes[1]:
            raise BadInputError(
                f"images of '{known.name}' are {sizes[0][1]} x {sizes[0][0]}, those of '{unknown.name}' "
                f"{sizes[1][1]} x {sizes[1][0]}",
                expected="one size for both",
            )
        self.unknown_part = unknown
        ids = [f"in/{name}" for name in known.ids] + [f"out/{name}" for name in unknown.ids]
        labels = [0] * len(known) + [1] * len(unknown)
        super().__init__(f"{known.name}-against-{unknown.name}", known.split, ids, labels, 2)
        resized = dict.fromkeys(f"{part.name}: {part.resized or 'as they are'}" for part in (known, unknown))
        self.resized = known.resized if known.resized == unknown.resized else "; ".join(resized)
        self.notes = known.notes + unknown.notes
        self.known_part = known
        if known.expected is not None and unknown.expected is not None:
            self.expected = known.expected + unknown.expected

    def image(self, index: int) -> Image:
        """Image number `index`; in-distribution images come first."""
        part, position = self._find(index)
        return part.image(position)

    def fingerprint(self, index: int) -> str:
        """Return the fingerprint in the image's own set."""
        part, position = self._find(index)
        return part.fingerprint(position)

    def _find(self, index: int) -> tuple[Samples, int]:
        known, unknown = self.known_part, self.unknown_part
        index = range(len(self))[index]
        return (known, index) if index < len(known) else (unknown, index - len(known))


def _require_different(known: Samples, unknown: Samples) -> None:
    if not known.classes:
        raise BadInputError(
            f"'{known.name}' cannot be the in-distribution data: its images are of unknown classes",
            fix="give it as --against, and images of known classes as --data",
        )
    same = known.ids[0] in unknown.ids and known.fingerprint(0) == unknown.fingerprint(unknown.ids.index(known.ids[0]))
    both = unknown.classes > 0 and all(samples.name.startswith("imagenet") for samples in (known, unknown))
    if same or both:
        raise BadInputError(
            f"'{unknown.name}' has the same classes as '{known.name}'",
            expected="out-of-distribution images of other classes, such as imagenet-o:FOLDER or photos",
        )
