"""`rbk images corrupt`: write a folder of corrupted images in the layout and file format of ImageNet-C."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from robustbench_kpca.cli import _console
from robustbench_kpca.cli._evaluating import several
from robustbench_kpca.cli._options import SEVERAL, Frost, Quiet, Seed, Workers

if TYPE_CHECKING:
    from robustbench_kpca.corruptions import Cell
    from robustbench_kpca.data.io.derived import Pixels
    from robustbench_kpca.data.request import View

_PACKAGES = ("robustbench-kpca", "numpy", "scipy", "opencv-python-headless", "pillow")


def corrupt(
    source: Annotated[Path, typer.Argument(metavar="SRC", help="Folder with images, at any depth.")],
    target: Annotated[Path, typer.Argument(metavar="DST", help="Output folder; must not be inside SRC.")],
    corruption: Annotated[
        list[str],
        typer.Option(help=f"Corruption: a name of `rbk list corruptions`; by default the 15 of ImageNet-C. {SEVERAL}"),
    ] = [],  # noqa: B006 (typer reads the default)
    severity: Annotated[
        list[int], typer.Option(min=1, max=5, help="Severity, 1 to 5; by default all. Repeatable.")
    ] = [],  # noqa: B006
    profile: Annotated[
        str,
        typer.Option(
            help="Parameter set: imagenet_c (224 px), imagecorruptions (any size) or cifar_c (32 px).",
        ),
    ] = "imagenet_c",
    seed: Seed = 0,
    frost: Frost = None,
    size: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Resize images to this side in pixels first, without cropping; by default not. ImageNet-C: --size 224 "
            "--crop 0.875.",
        ),
    ] = None,
    crop: Annotated[
        float | None, typer.Option(help="With --size: resize the short side to size / crop, and crop the centre.")
    ] = None,
    workers: Workers = 0,
    quiet: Quiet = False,
) -> None:
    """Write DST/CORRUPTION/SEVERITY/*.JPEG for every image of SRC, and a manifest; the same command resumes.

    Files are JPEG of quality 85, as those of ImageNet-C. They depend on the seed and on each image's path in SRC, not
    on the number of workers. Files that are there already are kept. Corrupted ImageNet validation images can be
    evaluated as imagenet-c:DST; a link DST/clean to SRC adds the clean images.
    """
    from robustbench_kpca.corruptions import family_of
    from robustbench_kpca.protocols.corruption_names import COMMON, SEVERITIES

    names = several(corruption) or list(COMMON)
    for name in names:
        family_of(name)
    from robustbench_kpca._core.files import require_writable
    from robustbench_kpca._core.lock import locked
    from robustbench_kpca.data.io.derived import Derivation, derive, require_target, sources_of
    from robustbench_kpca.data.io.reading import left_out

    view, levels = _view(size, crop), sorted(set(severity)) or SEVERITIES
    settings = {
        "profile": profile,
        "mode": "fast",
        "seed": seed,
        "frost": _digest_of(frost),
        "view": view and [view.size, view.crop, view.interpolation],
        "versions": _versions(),
    }
    make = Stored(_cells(names, levels, profile, seed=seed, frost=frost))
    plan = Derivation(source, target, tuple(make.cells), make=make, view=view)
    files = sources_of(source, target)
    _try(make, source / files[0], view)
    require_target(target, settings)
    require_writable(target)
    with locked(target / ".lock", wait=False), _console.screen(quiet=quiet) as on_screen:
        new = derive(plan, files, settings, workers, on_screen.start(f"{len(plan.folders)} cells an image"))
    old = len(files) * len(plan.folders) - new
    done = f"{target}: {new} files made, {old} kept, of {len(files)} images"
    _console.out().print("; ".join([done, *left_out(source)]), markup=False)


class Stored:
    """Corrupts the pixels of an image and encodes them as a file."""

    def __init__(self, cells: dict[str, "Cell"]) -> None:
        self.cells = cells

    def __call__(self, pixels: "Pixels", folder: str, sample: str) -> bytes:
        """Return the bytes of one file."""
        import io

        from PIL import Image

        from robustbench_kpca.corruptions import corrupt_one

        file = io.BytesIO()
        picture = Image.fromarray(corrupt_one(pixels, self.cells[folder], sample))
        picture.save(file, "JPEG", quality=85, optimize=True)  # as the released ImageNet-C
        return file.getvalue()


def _cells(
    names: list[str], levels: Sequence[int], profile: str, *, seed: int, frost: Path | None
) -> dict[str, "Cell"]:
    from robustbench_kpca.corruptions import Cell, require_of_images

    for name in names:
        require_of_images(name, profile)
    more: dict[str, Any] = {} if frost is None else {"frost": str(frost)}
    return {
        f"{Path(name).name}/{level}": Cell(name, severity=level, profile=profile, mode="fast", seed=seed, **more)
        for name in names
        for level in levels
    }


def _try(make: Stored, first: Path, view: "View | None") -> None:
    """Apply each corruption to one grey image, of the size of the first file, to find errors before any is written."""
    import numpy as np

    from robustbench_kpca.data.io.reading import image_size

    width, height = image_size(first) if view is None else (view.size, view.size)
    grey = np.full((height, width, 3), 128, np.uint8)
    for folder in {name.partition("/")[0]: name for name in make.cells}.values():
        make(grey, folder, "")


def _view(size: int | None, crop: float | None) -> "View | None":
    from robustbench_kpca._core.errors import BadInputError
    from robustbench_kpca.data.request import View

    if size is None:
        if crop is not None:
            raise BadInputError("--crop without --size", fix="add --size")
        return None
    return View(size, crop, "bilinear")  # as for ImageNet-C


def _digest_of(frost: Path | None) -> str | None:
    """Return a digest of the original frost images, which does not depend on their folder."""
    from robustbench_kpca._core.errors import BadInputError
    from robustbench_kpca._core.files import sha256

    if frost is None:
        return None
    if not frost.is_dir():
        raise BadInputError(f"there is no folder {frost} of frost images", fix="omit --frost to use generated ones")
    files = [path for path in sorted(frost.glob("frost*")) if path.is_file()]
    return sha256("".join(sha256(path.read_bytes()) for path in files).encode())


def _versions() -> dict[str, str]:
    from PIL import features

    from robustbench_kpca._engine.inference.environment import version

    libjpeg = features.version("libjpeg_turbo") or features.version("jpg")
    return {package: version(package) for package in _PACKAGES} | {"libjpeg": str(libjpeg)}
