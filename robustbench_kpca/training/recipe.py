"""A training run as data: strict TOML; what is not stated is off."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, model_validator

from robustbench_kpca.errors import BadInputError
from robustbench_kpca.protocols.scenario import Scalar
from robustbench_kpca.protocols.threat import Norm, Threat, parse_fraction
from robustbench_kpca.registry import unknown_name
from robustbench_kpca.strict import STRICT, load_toml, validate
from robustbench_kpca.training import recipes

Share = Annotated[float, Field(ge=0, le=1)]
NotNegative = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]


class Adversarial(BaseModel):
    """Train on the attack's last iterate x' instead of the clean image (Madry et al., 2018, arXiv:1706.06083).

    With `trades_beta` the loss is CE(f(x), y) + beta KL(f(x) || f(x')), and x' climbs that divergence (TRADES: Zhang et
    al., 2019, arXiv:1901.08573, equation 5).
    """

    model_config = STRICT
    norm: Norm
    eps: Annotated[float, BeforeValidator(parse_fraction)]
    warmup_epochs: Annotated[int, Field(ge=0)]
    """Epochs over which eps grows linearly from 0."""
    attack: str
    options: dict[str, Scalar]
    trades_beta: Positive | None = None

    @model_validator(mode="after")
    def _check_threat(self) -> "Adversarial":
        Threat(self.norm, self.eps)
        return self

    def threat(self, epoch: int) -> Threat:
        """Give the ball in `epoch` (from 0)."""
        return Threat(self.norm, self.eps * min(1.0, (epoch + 1) / (self.warmup_epochs + 1)))


class ImageFiles(BaseModel):
    """Images read from files by timm, with timm's augmentation; all numbers are timm's own options."""

    model_config = STRICT
    auto_augment: str
    """Such as `rand-m9-mstd0.5-inc1`; empty for none."""
    color_jitter: NotNegative
    scale: list[Positive]
    """Least and greatest area of the random crop; `[1, 1]` is the centre crop of evaluation."""
    hflip: Share
    erase: Share
    """Probability of random erasing (mode `pixel`)."""
    repeats: Count
    """Repeated augmentation: how often one image occurs in an epoch; 1 is off."""
    interpolation: str
    crop: Positive
    """Share kept in evaluation."""
    workers: Annotated[int, Field(ge=0)]
    """Loader processes; random augmentation depends on their number."""
    unreadable: Literal["fail", "skip"]
    """What to do with a file that is no image; `skip` takes the next one, names it and counts it."""


class SceneWindows(BaseModel):
    """Windows of scenes with a class for every pixel, transformed as Segmenter's authors do (arXiv:2105.05633)."""

    model_config = STRICT
    crop: Count
    """Side of a window; what lies outside the image is filled with the model's mean and ignored."""
    resize: Annotated[list[Count], Field(max_length=2)]
    """Short and long side that every image is fitted into first, its aspect kept; `[]` leaves it as it is."""
    scale: Annotated[list[Positive], Field(min_length=2, max_length=2)]
    """Least and greatest factor of the random scale; `[1, 1]` is off."""
    most_of_one: Share
    """Another window is drawn while one class has this share or more of its pixels that count (or none counts), ten at
    most; of mmsegmentation's eleven the last is taken whatever it holds, as here the tenth is. 1 is off."""
    hflip: Share
    photometric: bool
    """Distort brightness, contrast, saturation and hue."""
    workers: Annotated[int, Field(ge=0)]
    """Loader processes; what is drawn does not depend on their number."""

    @model_validator(mode="after")
    def _check_ranges(self) -> "SceneWindows":
        if len(self.resize) == 1 or self.scale[0] > self.scale[1]:
            raise ValueError("resize is [] or [short, long], and scale [least, greatest]")
        return self


class Mixup(BaseModel):
    """Mixup and CutMix of pairs in a batch, by timm (arXiv:1710.09412, arXiv:1905.04899)."""

    model_config = STRICT
    mixup: NotNegative
    cutmix: NotNegative
    prob: Share
    switch_prob: Share


class Recipe(BaseModel):
    """Everything a training run depends on, but for the machine."""

    model_config = STRICT
    title: str
    model: str
    model_options: dict[str, Any]
    data: str
    """A data set of `rbk list data`; or with an `[images]` table `folder`, or one of timm's (`wds/…`, `hfds/…`); or
    with a `[scenes]` table `shapes`, `ade20k`, `camvid` or `masks`."""
    seed: Annotated[int, Field(ge=0, lt=2**31)]
    epochs: Count
    batch_size: Count
    """Of all processes together."""
    optimizer: str
    lr: Positive
    """The peak, at this batch size."""
    weight_decay: NotNegative
    warmup_epochs: Annotated[int, Field(ge=0)]
    smoothing: Annotated[float, Field(ge=0, lt=1)]
    max_shift: Annotated[int, Field(ge=0)]
    """Augmentation: each image is moved by up to so many pixels either way, its border filled with black."""
    hflip: Share = 0.0
    min_lr: Positive | None = None
    """Where the schedule ends; by default a hundredth of the peak."""
    schedule: Literal["cosine", "polynomial"] = "cosine"
    """Cosine: set once an epoch; polynomial: at every step t of T, min_lr + (lr - min_lr) (1 - t / T)^power."""
    power: Positive = 0.9
    warmup_lr: Positive | None = None
    """Where the warm-up starts; by default a hundredth of the peak."""
    clip_grad: Positive | None = None
    """Largest L2 norm of the whole gradient."""
    ema_decay: Annotated[float, Field(gt=0, lt=1)] | None = None
    precision: Literal["fp32", "bf16"] = "fp32"
    storage: Literal["fp32", "fp16"] = "fp32"
    """Precision of the finished weights; they are rounded before they are scored and written."""
    init: Literal["timm", "torch"] = "timm"
    """Linear layers: truncated normal as in timm, or torch's own start, as the released RPC code has it."""
    penalties: dict[str, NotNegative] = {}
    """Weight of each loss an attention adds: `ksvd` of Primal attention, `ksvd` and `kl` of KEP-SVGP."""
    encoder_checkpoint: str | None = None
    """Weights that a segmenter's encoder starts from: a classifier's file or `hf-hub:OWNER/NAME`; its head is left out,
    its positions are resampled."""
    images: ImageFiles | None = None
    scenes: SceneWindows | None = None
    mixup: Mixup | None = None
    adversarial: Adversarial | None = None

    @model_validator(mode="after")
    def _check_parts(self) -> "Recipe":
        if self.images is not None and (self.max_shift or self.hflip):
            raise ValueError("max_shift and hflip outside [images] are for data held in memory; set them to 0")
        if self.scenes is not None and (self.max_shift or self.hflip or self.images or self.mixup or self.adversarial):
            raise ValueError("with [scenes] there is no [images], [mixup], [adversarial], max_shift or hflip; drop it")
        if max(self.min_lr or 0, self.warmup_lr or 0) > self.lr:
            raise ValueError("min_lr and warmup_lr are at most lr")
        if self.mixup is not None and self.adversarial is not None:
            raise ValueError("[mixup] and [adversarial] together are not supported; drop one")
        return self


def load_recipe(name: str, overrides: Mapping[str, Any] | None = None) -> tuple[str, Recipe, str]:
    """Return the run's name, the parsed recipe and its text; `name` is a bundled recipe's or a TOML file's.

    `overrides` replace keys (dotted for a table's, `adversarial.eps`); they stand as comments at the end of the text.

    Raises:
        UnknownNameError: no such recipe.
        BadInputError: a key or value of it cannot be used.

    """
    known = recipes()
    path = Path(name) if name.endswith(".toml") else known.get(name)
    if path is None:
        raise unknown_name("recipe", name, known, "(or give a .toml file)")
    data, text = load_toml(path), path.read_text("utf-8")
    for key, value in (overrides or {}).items():
        *tables, last = key.split(".")
        table = data
        for part in tables:
            table = table.setdefault(part, {})
            if not isinstance(table, dict):
                raise BadInputError(f"'{key}' in recipe {path.name}", expected=f"a key; '{part}' is no table")
        table[last] = value
        text += f"# --set {key}={value}\n"
    return path.stem, validate(Recipe, data, f"recipe {path.name}"), text
