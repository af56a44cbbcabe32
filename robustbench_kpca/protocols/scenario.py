"""What is measured, as data: a TOML protocol becomes one of these, and its digest is in every record.

A protocol file states every field: there are no defaults to drift, so equal digests mean equal measurements.
"""

import json
from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    StrictBool,
    model_serializer,
    model_validator,
)

from robustbench_kpca.errors import BadInputError
from robustbench_kpca.files import sha256
from robustbench_kpca.protocols.corruption_names import SEVERITIES
from robustbench_kpca.protocols.threat import Norm, Threat, parse_fraction
from robustbench_kpca.strict import STRICT, validate

Scalar = str | int | float | bool
Override = Scalar | list[Any]
"""A value that replaces a field of a protocol."""
T = TypeVar("T")
CLEAN_CELL = "none"
"""Name of the corruption that is none."""
UNHASHED = {"title", "citations"}
_OPTIONAL: dict[str, Any] = {"inference": None, "corruptions": [], "severities": [], "grid": []}
"""Fields that a protocol may leave out, and what they are then: left out of the digest and of records, too."""


class Stage(BaseModel):
    """One attack of a cascade: later stages see only what earlier ones left standing."""

    model_config = STRICT
    attack: str
    restarts: Annotated[int, Field(ge=1, strict=True)]
    options: dict[str, Scalar]

    @model_validator(mode="before")
    @classmethod
    def _gather_options(cls, data: Any) -> Any:
        """Let the TOML table stay flat: what is neither `attack` nor `restarts` is an option of the attack."""
        if isinstance(data, dict) and "options" not in data:
            own = {key: value for key, value in data.items() if key in ("attack", "restarts")}
            return own | {"options": {key: value for key, value in data.items() if key not in own}}
        return data


Scale = Annotated[float, Field(gt=0, le=16, allow_inf_nan=False)]


class Inference(BaseModel):
    """How pictures of any size are shown to a model, for tasks that use windows (`inference.sliding_window`).

    window: side of the windows, in pixels; 0: the side at which the model was trained.
    stride: distance from one window to the next; 0: the window's side.
    scales: sizes of the picture relative to its own, one pass each; at most 16.
    flip: whether each pass is repeated with the mirrored picture.
    resize: `short-side`: the picture is first resized so that its short side is a window's; `none`: it keeps its size.
    """

    model_config = STRICT
    window: Annotated[int, Field(ge=0, strict=True)]
    stride: Annotated[int, Field(ge=0, strict=True)]
    scales: Annotated[tuple[Scale, ...], Field(min_length=1)]
    flip: StrictBool
    resize: Literal["none", "short-side"]

    @model_validator(mode="after")
    def _check(self) -> "Inference":
        if self.stride > self.window > 0:
            raise BadInputError(
                f"stride = {self.stride} with window = {self.window}", expected="a stride of at most the window's side"
            )
        return self


class _Common(BaseModel):
    model_config = STRICT
    title: str
    citations: tuple[str, ...]
    draws: Annotated[int, Field(ge=1, strict=True)]

    def digest(self) -> str:
        """SHA-256 of everything that can change a result (so not of the title)."""
        content = self.model_dump(mode="json", exclude=UNHASHED)
        return sha256(json.dumps(content, sort_keys=True).encode())

    @model_serializer(mode="wrap")
    def _without_what_is_left_out(self, handler: Callable[[Any], Any]) -> dict[str, Any]:
        content: dict[str, Any] = handler(self)
        return {key: value for key, value in content.items() if key not in _OPTIONAL or value not in (None, [], ())}


class Clean(_Common):
    """Quality on the samples as they are. `inference`: see `Inference`."""

    kind: Literal["clean"]
    inference: Inference | None = None


Fraction = Annotated[float, BeforeValidator(parse_fraction)]


class Attack(_Common):
    """Accuracy under a cascade of attacks inside one ball around each image; later stages see the survivors only.

    policy: `stop_at_first`: a sample leaves at its first misclassified iterate; `strongest`: every budget is spent,
        and the image of lowest margin found is judged; `last`: only the last iterate of each restart is judged.
    labels: what attacks are told: the `true` label (what is misclassified already is not attacked), or the class that
        the model `predicted` (everything is attacked); verdicts always ask for the true label.
    target: `none`, or the wrong class to be reached: `random` (from the sample's own stream), `least_likely` or
        `runner_up` of the clean logits. Targeted, a sample is broken there (or where the logits are not finite), or was
        misclassified before.
    space: of eps and steps: `pixel`, or the model's own `normalised` inputs.
    clip: whether images stay in [0, 1] of that space. In pixel space every other image is invalid; normalised inputs
        are cut off before the attack begins, which `broken_by` calls `clamp`.
    draws: passes averaged into each answer and gradient (expectation over transformation), for models with noise.
    precision: `fp32`, or `bf16-search`: attacks see bfloat16, every verdict is confirmed in single precision.
    below: smaller budgets that are attacked first, ascending; what they break counts as broken here, so that a curve
        over eps is monotone.
    stage: the attacks. With none, what counts is the image as attacks are given it.
    """

    kind: Literal["attack"]
    norm: Norm
    eps: Fraction
    policy: Literal["stop_at_first", "strongest", "last"]
    labels: Literal["true", "predicted"]
    target: Literal["none", "random", "least_likely", "runner_up"]
    space: Literal["pixel", "normalised"]
    clip: StrictBool
    precision: Literal["fp32", "bf16-search"]
    below: tuple[Fraction, ...]
    stage: tuple[Stage, ...]

    @property
    def threat(self) -> Threat:
        """The ball that every proposal must stay in, and the attacker's aim."""
        return Threat(self.norm, self.eps, clip=self.clip, targeted=self.target != "none")

    def smaller(self) -> "Attack":
        """Return the same at the next smaller budget of `below`."""
        return self.model_copy(update={"eps": self.below[-1], "below": self.below[:-1]})

    @model_validator(mode="after")
    def _check(self) -> "Attack":
        assert self.threat
        if list(self.below) != sorted({*self.below} - {0.0}) or self.below[-1:] >= (self.eps,):
            raise BadInputError(f"below = {list(self.below)}", expected=f"ascending budgets between 0 and {self.eps:g}")
        if self.labels == "predicted" and (self.policy == "stop_at_first" or self.threat.targeted):
            raise BadInputError(
                f"labels = 'predicted' with policy = '{self.policy}' and target = '{self.target}'",
                expected="policy = 'last' or 'strongest', and target = 'none'",
            )
        return self


Classes = Literal["all", "imagenet-a", "imagenet-r", "imagenet-o"]


class Shift(_Common):
    """Accuracy on another collection of images of the same classes.

    classes: `all`, or the 200 ImageNet classes of a collection: logits of the other 800 are left out (and the accuracy
        with all of them is measured beside).
    """

    kind: Literal["shift"]
    classes: Classes


class Ood(_Common):
    """How well confidence tells images of known classes from others. `classes` as in `Shift`."""

    kind: Literal["ood"]
    classes: Classes


def _distinct(values: tuple[T, ...]) -> tuple[T, ...]:
    if len(set(values)) != len(values):
        raise BadInputError(f"{list(values)} repeats itself", expected="each once")
    return values


def check_severity(severity: int) -> None:
    """Refuse a severity outside 1 to 5."""
    if type(severity) is not int or severity not in SEVERITIES:
        raise BadInputError(f"severity {severity}", expected="1, 2, 3, 4 or 5", fix="5 is the strongest")


def _known(severities: tuple[int, ...]) -> tuple[int, ...]:
    for severity in severities:
        check_severity(severity)
    return _distinct(severities)


Corruptions = Annotated[tuple[str, ...], Field(min_length=1), AfterValidator(_distinct)]
Severities = Annotated[tuple[int, ...], Field(min_length=1), AfterValidator(_known)]


class Cells(BaseModel):
    """A part of a grid: every one of these corruptions at every one of these severities."""

    model_config = STRICT
    corruptions: Corruptions
    severities: Severities

    @property
    def all(self) -> list[tuple[str, int]]:
        """Every (corruption, severity)."""
        return [(name, severity) for name in self.corruptions for severity in self.severities]


class Corruption(_Common):
    """Quality on a grid of corruptions x severities. Pictures are corrupted before anything else is done to them.

    profile: the parameter set: `imagenet_c` (224 px), `imagecorruptions` (any size), `cifar_c` (32 px); of stored
        pictures also `imagenet_c_bar`.
    mode: how pictures are made: `fast`, or `exact` (bit for bit as by the library `imagecorruptions`); or `stored`:
        they are read.
    storage: `jpeg-q85` where pictures go through a JPEG file of quality 85, as those of ImageNet-C went, or `none`; of
        stored pictures `published`.
    frost: whose pictures of frost: `generated` by this project, or the `original` ones; of stored pictures `published`.
    clean: whether the images as they are count as a cell, too (corruption `none`, severity 0).
    reference: whose errors mCE divides by, where they are published: `alexnet`, or `none`.
    corruptions: the corruptions of the grid, each of which is shown at every one of the `severities`.
    grid: in place of these two, parts of a grid in which corruptions have different severities.
    inference: see `Inference`.
    """

    kind: Literal["corruption"]
    profile: Literal["imagenet_c", "imagecorruptions", "cifar_c", "imagenet_c_bar"]
    mode: Literal["fast", "exact", "stored"]
    storage: Literal["none", "jpeg-q85", "published"]
    frost: Literal["generated", "original", "published"]
    clean: StrictBool
    reference: Literal["none", "alexnet"]
    corruptions: Annotated[tuple[str, ...], AfterValidator(_distinct)] = ()
    severities: Annotated[tuple[int, ...], AfterValidator(_known)] = ()
    grid: tuple[Cells, ...] = ()
    inference: Inference | None = None

    @property
    def cells(self) -> list[tuple[str, int]]:
        """Every (corruption, severity), in the order evaluated; the images as they are come first."""
        clean = [(CLEAN_CELL, 0)] if self.clean else []
        own = [(name, severity) for name in self.corruptions for severity in self.severities]
        return clean + own + [cell for part in self.grid for cell in part.all]

    @property
    def names(self) -> tuple[str, ...]:
        """Every corruption of the grid, once."""
        return tuple(dict.fromkeys(name for name, severity in self.cells if severity))

    @property
    def levels(self) -> tuple[int, ...]:
        """Every severity of the grid, ascending."""
        return tuple(sorted({severity for _, severity in self.cells if severity}))

    @property
    def made(self) -> str:
        """How the pictures came to be, for tables: numbers of different making do not compare."""
        if self.storage == "published":
            return "stored"
        return "generated+q85" if self.storage == "jpeg-q85" else "generated"

    @model_validator(mode="after")
    def _check(self) -> "Corruption":
        self._check_grid()
        published = {self.storage == "published", self.frost == "published"}
        if len(published) > 1 or (published == {True} and self.mode != "stored"):
            raise BadInputError(
                f"mode = '{self.mode}' with storage = '{self.storage}' and frost = '{self.frost}'",
                expected="'published' for both of stored pictures, or for none",
            )
        if self.reference == "alexnet" and (self.profile != "imagenet_c" or self.storage == "none"):
            raise BadInputError(
                f"reference = 'alexnet' with profile = '{self.profile}' and storage = '{self.storage}'",
                expected="profile = 'imagenet_c', and pictures stored as JPEG: AlexNet's errors are of ImageNet-C",
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
                expected="`corruptions` with `severities`, or [[grid]] tables that have both",
            )
        _distinct(tuple(self.cells))


Plain = Clean | Corruption | Shift | Ood
"""What needs forward passes only."""
Scenario = Plain | Attack
_KINDS: dict[str, type[Scenario]] = {
    "clean": Clean,
    "attack": Attack,
    "corruption": Corruption,
    "shift": Shift,
    "ood": Ood,
}


def parse_scenario(data: dict[str, Any], where: str) -> Scenario:
    """Parse a protocol's mapping strictly; `where` names its source in errors."""
    kind = data.get("kind")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise BadInputError(f"{where}: kind = {kind!r}", expected=f"one of {', '.join(_KINDS)}")
    return validate(_KINDS[kind], data, where)
