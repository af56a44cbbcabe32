"""The kinds of protocols, each a strict pydantic model of a TOML file; records contain the digest of their protocol.

A protocol file states every field. There are no defaults that could change, so equal digests mean equal measurements.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    StrictBool,
    field_validator,
    model_serializer,
    model_validator,
)

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.strict import STRICT, parse_fraction, validate
from robustbench_kpca.protocols.certificate import Certificate as Certificate
from robustbench_kpca.protocols.common import MANY as MANY
from robustbench_kpca.protocols.common import UNHASHED as UNHASHED
from robustbench_kpca.protocols.common import Common
from robustbench_kpca.protocols.common import Count as Count
from robustbench_kpca.protocols.grid import Cells, distinct, valid_severities
from robustbench_kpca.protocols.threat import Corners, Norm, Threat, is_relative

Scalar = str | int | float | bool
Override = Scalar | list[Any]
"""A value that replaces a field of a protocol."""
CLEAN_CELL = "none"
"""Name of the corruption in the cell of clean images, at severity 0."""


class Stage(BaseModel):
    """One attack of a cascade: later stages attack only the samples that earlier stages did not break.

    backward_of: what gradients go back through, where that is not the model: itself with an option of its attention
        layers changed (`iterations=0`, `lam=inf`, `gradient=restored`), or the address of a function that makes a twin
        of it. Answers and losses are those of the model. Each gradient costs one more forward pass.
    """

    model_config = STRICT
    attack: str
    restarts: Count
    options: dict[str, Scalar]
    backward_of: str | None = None

    @property
    def name(self) -> str:
        """The attack and the twin that its gradients go through, as `broken_by` states them."""
        return self.attack if self.backward_of is None else f"{self.attack} through {self.backward_of}"

    def spent(self, forwards: float, backwards: float) -> tuple[float, float]:
        """Return the passes of the stage from those of its attack."""
        return forwards + (self.backward_of is not None) * backwards, backwards

    @model_serializer(mode="wrap")
    def _omit_optional(self, handler: Callable[[Any], Any]) -> dict[str, Any]:
        content: dict[str, Any] = handler(self)
        return {key: value for key, value in content.items() if value is not None}

    @model_validator(mode="before")
    @classmethod
    def _gather_options(cls, data: Any) -> Any:
        """Keep the TOML table flat: every key but those of a stage is an option of the attack."""
        if isinstance(data, dict) and "options" not in data:
            of_stage = {key: value for key, value in data.items() if key in cls.model_fields}
            return of_stage | {"options": {key: value for key, value in data.items() if key not in of_stage}}
        return data

    @field_validator("options")
    @classmethod
    def _check_options(cls, options: dict[str, Scalar]) -> dict[str, Scalar]:
        for name, value in options.items():
            if isinstance(value, int | float) and not abs(value) <= MANY:  # refuses NaN, too
                raise BadInputError(f"{name} = {value}", expected=f"a number of at most {MANY:,}")
        return options


OwnSize = Annotated[float, Field(ge=1, le=1)]


class Inference(BaseModel):
    """Sliding-window inference for images of any size, for tasks that use windows (`inference.sliding_window`).

    window: side of the windows in pixels; 0: the training window of the model.
    stride: distance from one window to the next in pixels; 0: the side of the window.
    scales: [1.0]: one pass, at the size that `resize` says.
    flip: false: the image is not shown mirrored, too.
    resize: `short-side`: the image is first resized so that its short side equals the window; `none`: it is not.
    """

    model_config = STRICT
    window: Annotated[int, Field(ge=0, strict=True)]
    stride: Annotated[int, Field(ge=0, strict=True)]
    scales: tuple[OwnSize]
    flip: Literal[False]
    resize: Literal["none", "short-side"]

    @model_validator(mode="after")
    def _check(self) -> "Inference":
        if self.stride > self.window > 0:
            raise BadInputError(
                f"stride = {self.stride} with window = {self.window}", expected="a stride of at most the window"
            )
        return self


class Clean(Common):
    """Quality on clean samples. `inference`: see `Inference`."""

    kind: Literal["clean"]
    inference: Inference | None = None


Fraction = Annotated[float, BeforeValidator(parse_fraction)]
IMPORTED = "imported"
"""`broken_by` of a sample whose image was imported."""
Words = Annotated[str, Field(min_length=1, max_length=200)]


class Imported(BaseModel):
    """Images that somebody else found: `by` whom, `method` in words, and the SHA-256 of their file."""

    model_config = STRICT
    by: Words
    method: Words
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Attack(Common):
    """Accuracy under a cascade of attacks in one ball around each image; later stages attack unbroken samples only.

    norm: `linf`, `l2` or `l1` of the change of an image; `l0`, the number of its pixels that change, or `patches`, of
        squares; or `words`, the number of words of a text that are replaced.
    eps: the largest such norm; of words, the share of those read: max(1, floor(eps * words)) may be replaced.
    patch: with `patches`, their side in pixels, or `token`: as large as a token of the model.
    corners: with `patches`, where they may lie: on the `grid` of their side, or `anywhere`.

    policy: `stop_at_first`: a sample is broken at its first misclassified iterate; `strongest`: every attack uses its
        whole budget, and the image of lowest margin decides; `last`: only the last iterate of each restart counts.
    labels: the class given to the attacks: the `true` label (misclassified clean images are not attacked); the true
        label with every image attacked (`true_for_all`), as top-5 accuracy needs; or the class that the model
        `predicted` for the image before any clipping (every image is attacked). The result always compares with the
        true label.
    target: `none`: every wrong class is a success.
    space: space of eps and step sizes: `pixel`, or the `normalised` inputs of the model; for time series `signal`, in
        units of the standard deviation, which has no box (`clip` = false); for texts `word`, which has none either.
    clip: whether images stay in [0, 1] of that space. Images outside are invalid in pixel space. Normalised inputs are
        clipped before the attack starts; a sample that this breaks has `broken_by` = `clamp`.
    draws: forward passes averaged for each logit and gradient (expectation over transformation), for stochastic models.
    precision: `fp32`: all passes are in single precision.
    below: smaller budgets that are attacked first, ascending; a sample broken there counts as broken here too, so that
        a curve over eps is monotone.
    storage: `png`: the deciding image is rounded to 8 bits, inside the ball, and judged again; None: as it was found.
    stage: the attacks, in order. Without stages, the clean image (clipped, if `clip`) decides.
    imported: in place of stages: whose images decide (`rbk board break`).
    """

    kind: Literal["attack"]
    norm: Norm
    eps: Fraction
    policy: Literal["stop_at_first", "strongest", "last"]
    labels: Literal["true", "true_for_all", "predicted"]
    target: Literal["none"]
    space: Literal["pixel", "normalised", "signal", "word"]
    clip: StrictBool
    precision: Literal["fp32"]
    below: tuple[Fraction, ...]
    stage: tuple[Stage, ...]
    patch: Count | Literal["token"] | None = None
    corners: Corners | None = None
    storage: Literal["png"] | None = None
    imported: Imported | None = None

    @property
    def table(self) -> str:
        """`attack`, or `attack-png` of images that are rounded."""
        return "-".join(filter(None, [self.kind, self.storage]))

    @property
    def names(self) -> list[str]:
        """What can break a sample, as `broken_by` states it."""
        return sorted({stage.name for stage in self.stage} | ({IMPORTED} if self.imported else set()))

    @property
    def cut_off(self) -> bool:
        """Whether normalised inputs are clipped before the attack starts; what this mends is attacked, too."""
        return self.clip and self.space == "normalised"

    @property
    def threat(self) -> Threat:
        """The ball that contains every proposed image."""
        return Threat(self.norm, self.eps, clip=self.clip, patch=self.patch, corners=self.corners)

    @property
    def budget(self) -> str:
        """The perturbation in words: `linf 8/255 in pixel space`, `1.5 % of words`."""
        text = str(self.threat)
        text += "" if self.norm == "words" or self.threat.counted else f" in {self.space} space"
        return text if self.storage is None else f"{text}, as 8-bit files"

    def smaller(self) -> "Attack":
        """Return the same protocol at the next smaller budget of `below`."""
        return self.model_copy(update={"eps": self.below[-1], "below": self.below[:-1]})

    @model_validator(mode="after")
    def _check(self) -> "Attack":
        assert self.threat
        if self.space in ("signal", "word") and self.clip:
            raise BadInputError(
                f"space = '{self.space}' with clip = true", expected=f"clip = false: {self.space}s have no box"
            )
        if (self.norm == "words") != (self.space == "word"):
            raise BadInputError(
                f"norm = '{self.norm}' with space = '{self.space}'",
                expected="norm = 'words' and space = 'word' together",
            )
        if self.imported is not None and (self.stage or (self.policy, self.labels) != ("strongest", "true")):
            raise BadInputError("a protocol of imported images that attacks", expected="no stage")
        if self.storage is not None and (self.imported is not None or (self.space, self.clip) != ("pixel", True)):
            raise BadInputError(
                f"storage = '{self.storage}' with space = '{self.space}' and clip = {str(self.clip).lower()}",
                expected="our own attacks on pixels in [0, 1], as files keep them",
            )
        if self.threat.counted:
            self._check_counted()
        if list(self.below) != sorted({*self.below} - {0.0}) or self.below[-1:] >= (self.eps,):
            raise BadInputError(f"below = {list(self.below)}", expected=f"ascending budgets between 0 and {self.eps:g}")
        if self.labels != "true" and self.policy == "stop_at_first":
            raise BadInputError(
                f"labels = '{self.labels}' with policy = '{self.policy}'", expected="policy = 'last' or 'strongest'"
            )
        return self

    def _check_counted(self) -> None:
        if self.space != "pixel":
            raise BadInputError(f"norm = '{self.norm}' with space = '{self.space}'", expected="space = 'pixel'")
        for eps in self.below:
            assert replace(self.threat, eps=eps)
        for stage in self.stage:
            if is_relative(step := stage.options.get("step_size", 0)):
                raise BadInputError(
                    f"step_size = '{step}' with norm = '{self.norm}', whose eps is a whole number",
                    expected="a step of a value in [0, 1], such as 0.05",
                )


Classes = Literal["all", "imagenet-a", "imagenet-r", "imagenet-o"]


class Shift(Common):
    """Accuracy under distribution shift: on another collection of images of the same classes.

    classes: `all`, or the ImageNet classes of a collection: logits of the other classes are ignored (and the
        accuracy with all logits is measured too).
    """

    kind: Literal["shift"]
    classes: Classes


class Ood(Common):
    """Out-of-distribution detection by the model's confidence. `classes`: see `Shift`."""

    kind: Literal["ood"]
    classes: Classes


class Corruption(Common):
    """Quality on a grid of corruptions x severities. Corruption is the first step of image processing.

    profile: parameter set: `imagenet_c` (224 px), `imagecorruptions` (any size) or `cifar_c` (32 px); for stored images
        also `imagenet_c_bar` and `imagenet_3dcc`; `signal` for time series, `tokens` for sequences of words and `words`
        for a running text.
    mode: `fast`; `exact` (bit for bit equal to the library `imagecorruptions`); or `stored` (read from disk).
    storage: `jpeg-q85`: corrupted images are encoded as JPEG of quality 85, as in ImageNet-C; `none`: they are not;
        `published`: for published stored images.
    frost: frost images: `generated` by this project, or the `original` ones; `published` for published stored images.
    clean: whether the clean images are a cell of the grid too (corruption `none`, severity 0).
    reference: model whose published errors normalise mCE: `alexnet`, or `none`.
    corruptions: the corruptions of the grid; each is evaluated at each of the `severities`.
    grid: instead of these two: parts of a grid in which corruptions have different severities.
    inference: see `Inference`.
    """

    kind: Literal["corruption"]
    profile: Literal[
        "imagenet_c", "imagecorruptions", "cifar_c", "imagenet_c_bar", "imagenet_3dcc", "signal", "tokens", "words"
    ]
    mode: Literal["fast", "exact", "stored"]
    storage: Literal["none", "jpeg-q85", "published"]
    frost: Literal["generated", "original", "published"]
    clean: StrictBool
    reference: Literal["none", "alexnet"]
    corruptions: Annotated[tuple[str, ...], AfterValidator(distinct)] = ()
    severities: Annotated[tuple[int, ...], AfterValidator(valid_severities)] = ()
    grid: tuple[Cells, ...] = ()
    inference: Inference | None = None

    @property
    def cells(self) -> list[tuple[str, int]]:
        """Every (corruption, severity), in the order of evaluation; clean images come first."""
        clean = [(CLEAN_CELL, 0)] if self.clean else []
        product = [(name, severity) for name in self.corruptions for severity in self.severities]
        return clean + product + [cell for part in self.grid for cell in part.all]

    @property
    def names(self) -> tuple[str, ...]:
        """Every corruption of the grid, once."""
        return tuple(dict.fromkeys(name for name, severity in self.cells if severity))

    @property
    def levels(self) -> tuple[int, ...]:
        """Every severity of the grid, ascending."""
        return tuple(sorted({severity for _, severity in self.cells if severity}))

    @property
    def of_images(self) -> bool:
        """Whether it corrupts images, not signals or words."""
        return self.profile not in ("signal", "tokens", "words")

    @property
    def made(self) -> str:
        """How the corrupted images were made, for tables; numbers on differently made images are not comparable."""
        if self.storage == "published":
            return "stored"
        return "generated+q85" if self.storage == "jpeg-q85" else "generated"

    @model_validator(mode="after")
    def _check(self) -> "Corruption":
        self._check_grid()
        making = (self.mode, self.storage, self.frost)
        if not self.of_images and making != ("fast", "none", "generated"):
            raise BadInputError(
                "profile = '{}' with mode = '{}', storage = '{}' and frost = '{}'".format(self.profile, *making),
                expected="mode = 'fast', storage = 'none' and frost = 'generated': the others are for images",
            )
        published = {self.storage == "published", self.frost == "published"}
        if len(published) > 1 or (published == {True} and self.mode != "stored"):
            raise BadInputError(
                f"mode = '{self.mode}' with storage = '{self.storage}' and frost = '{self.frost}'",
                expected="'published' for both (with mode = 'stored'), or for neither",
            )
        if self.reference == "alexnet" and (self.profile != "imagenet_c" or self.storage == "none"):
            raise BadInputError(
                f"reference = 'alexnet' with profile = '{self.profile}' and storage = '{self.storage}'",
                expected="profile = 'imagenet_c' and images stored as JPEG: AlexNet's errors are for ImageNet-C",
            )
        if self.mode == "exact" and self.frost == "generated" and "frost" in self.names:
            raise BadInputError("mode = 'exact' with frost = 'generated'", fix="set frost = 'original'")
        return self

    def _check_grid(self) -> None:
        one_part = bool(self.corruptions) and bool(self.severities)
        if one_part == bool(self.grid) or bool(self.corruptions) != bool(self.severities):
            raise BadInputError(
                f"corruptions = {list(self.corruptions)}, severities = {list(self.severities)} and {len(self.grid)} "
                "[[grid]] tables",
                expected="`corruptions` and `severities`, or [[grid]] tables with both",
            )
        distinct(tuple(self.cells))


Plain = Clean | Corruption | Shift | Ood | Certificate
"""Protocols that need only forward passes."""
Scenario = Plain | Attack


def cells_of(protocol: Scenario) -> list[tuple[str, int]]:
    """Return every (corruption, severity) of a protocol; only corruption protocols have more than the clean cell."""
    return protocol.cells if isinstance(protocol, Corruption) else [(CLEAN_CELL, 0)]


_KINDS: dict[str, type[Scenario]] = {
    "clean": Clean,
    "attack": Attack,
    "corruption": Corruption,
    "shift": Shift,
    "ood": Ood,
    "certificate": Certificate,
}


def parse_scenario(data: dict[str, Any], where: str) -> Scenario:
    """Parse the content of a protocol strictly; `where` names its source in errors.

    Raises:
        BadInputError: unknown kind; unknown, missing or invalid key.
    """
    kind = data.get("kind")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise BadInputError(f"{where}: kind = {kind!r}", expected=f"one of {', '.join(_KINDS)}")
    return validate(_KINDS[kind], data, where)
