"""A recipe: everything that defines a training run, in strict TOML. Options that are not stated are off."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, field_validator, model_validator

from robustbench_kpca._core.address import is_address
from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.files import sha256
from robustbench_kpca._core.plugins import require_used
from robustbench_kpca._core.registry import unknown_name
from robustbench_kpca._core.strict import STRICT, parse_fraction, validate
from robustbench_kpca.models.bundle import split_entry
from robustbench_kpca.models.families import ARCHITECTURES, typed_options
from robustbench_kpca.protocols.scenario import Scalar
from robustbench_kpca.protocols.threat import BallNorm, Threat
from robustbench_kpca.training.chosen_classes import class_numbers
from robustbench_kpca.training.schedules import read_recipe

Share = Annotated[float, Field(ge=0, le=1)]
NotNegative = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]

OWN, STRONGER = "val_adv_", "val_stronger_"
"""Beginnings of the names of columns: under the attack of training, and under the stronger one."""
_REAL = r"\d+(\.\d+)?"
_POLICIES = dict.fromkeys(("v0", "v0r", "original", "originalr", "3a"), f"mstd{_REAL}") | {
    "": "never",
    "rand": rf"(m|mmax|n)\d+|(mstd|p){_REAL}|inc[01]|t(weights|3aw|3a)",
    "augmix": rf"(m|w|d)\d+|(mstd|a){_REAL}|b[01]",
}
"""Policies of timm, and the form of what may follow each."""


class Stronger(BaseModel):
    """A stronger attack on the validation images, after every epoch, to notice catastrophic overfitting.

    Wong, Rice & Kolter (2020), arXiv:2001.03994, name it so: a model trained on a one-step attack stops, within an
    epoch, to resist any other.
    """

    model_config = STRICT
    attack: str
    options: dict[str, Scalar]
    most_gap: Share
    """The run is said to overfit when the accuracy under its own attack exceeds that under this one by more."""


class Adversarial(BaseModel):
    """Train on the attack's last iterate x' instead of the clean image x (Madry et al., 2018, arXiv:1706.06083).

    With `trades_beta` the loss is CE(f(x), y) + beta KL(f(x) || f(x')), and the attack maximises that divergence
    (TRADES: Zhang et al., 2019, arXiv:1901.08573, equation 5). With `[mixup]`, the attack starts from the mixed image
    and maximises the cross-entropy with its mixed, smoothed target; without, the attack's own loss of the label.
    """

    model_config = STRICT
    norm: BallNorm
    eps: Annotated[float, BeforeValidator(parse_fraction)]
    warmup_epochs: Annotated[int, Field(ge=0)]
    """Epochs over which eps grows linearly from 0."""
    attack: str
    options: dict[str, Scalar]
    trades_beta: Positive | None = None
    held_out: bool = False
    """Also attack the validation images after every epoch, with the same attack at the full radius."""
    stronger: Stronger | None = None
    """Also attack the validation images with this attack, in the same ball; needs `held_out`."""

    @model_validator(mode="after")
    def _check_parts(self) -> "Adversarial":
        Threat(self.norm, self.eps)
        if self.stronger is not None and not self.held_out:
            raise ValueError("[adversarial.stronger] is compared with the attack of training; set held_out = true")
        return self

    def threat(self, epoch: int | None) -> Threat:
        """Return the ball in `epoch` (from 0), or the full one."""
        share = 1.0 if epoch is None else min(1.0, (epoch + 1) / (self.warmup_epochs + 1))
        return Threat(self.norm, self.eps * share)

    def overfitting(self, scores: Mapping[str, float], score: str) -> str:
        """Say that a model resists the attack of training only; empty where it does not, or where nobody looked.

        Args:
            score: name of the score that is compared, such as `accuracy`.
        """
        own, stronger = scores.get(OWN + score), scores.get(STRONGER + score)
        if self.stronger is None or own is None or stronger is None or own - stronger <= self.stronger.most_gap:
            return ""
        return f"{score} {100 * own:.1f} % under the attack of training, {100 * stronger:.1f} % under the stronger one"


class ImageFiles(BaseModel):
    """Images read from files by timm, with timm's augmentation; all numbers are timm's own options."""

    model_config = STRICT
    auto_augment: str
    """A policy of timm with its sections, such as `rand-m9-mstd0.5-inc1`; empty for none."""
    color_jitter: NotNegative
    scale: Annotated[list[Positive], Field(min_length=2, max_length=2)]
    """Smallest and largest area of the random crop, as a share of the image; `[1, 1]`: evaluation's centre crop."""
    hflip: Share
    erase: Share
    """Probability of random erasing (mode `pixel`)."""
    repeats: Count
    """Repeated augmentation: how often one image occurs in an epoch; 1 is off."""
    interpolation: Literal["nearest", "bilinear", "bicubic", "box", "hamming", "lanczos"]
    crop: Annotated[float, Field(gt=0, le=1)]
    """Share of an image that is kept in evaluation."""
    workers: Annotated[int, Field(ge=0)]
    """Number of loader processes; random augmentation depends on it."""
    classes: str | None = None
    """Use only these class folders: `imagenet-100`, or a text file with one name of a folder a line, looked for beside
    the recipe first. They are numbered from 0 in sorted order."""

    @field_validator("scale")
    @classmethod
    def _check_range(cls, scale: list[float]) -> list[float]:
        if not scale[0] <= scale[1] <= 1:
            raise ValueError(f"{scale} is no [least, greatest] share of an image")
        return scale

    @field_validator("auto_augment")
    @classmethod
    def _check_policy(cls, text: str) -> str:
        """Refuse what timm passes over: of `rand-mx` it uses `rand`, of `rand-m5-m9` the last."""
        policy, *sections = text.split("-")
        if policy not in _POLICIES:
            raise ValueError(f"timm has no policy '{policy}'; it has {', '.join(filter(None, _POLICIES))}")
        keys = [re.sub(r"^(t|[a-z]*).*", r"\1", section) for section in sections]
        for section, key in zip(sections, keys, strict=True):
            if not re.fullmatch(_POLICIES[policy], section) or keys.count(key) > 1:
                raise ValueError(f"timm would pass over '-{section}' of '{text}'")
        return text


class SceneWindows(BaseModel):
    """Windows of scenes, with a class for every pixel; transformed as by Segmenter's authors (arXiv:2105.05633)."""

    model_config = STRICT
    crop: Count
    """Side of a window in pixels; outside the image it is filled with the model's mean colour, and ignored."""
    resize: Annotated[list[Count], Field(max_length=2)]
    """Short and long side that every image is first fitted into, with its aspect ratio kept; `[]`: no resizing."""
    scale: Annotated[list[Positive], Field(min_length=2, max_length=2)]
    """Smallest and largest factor of the random scale; `[1, 1]` is off."""
    most_of_one: Share
    """A window is drawn again while one class has this share or more of its labelled pixels, or no pixel is labelled.

    After ten windows the last is used in any case; mmsegmentation stops after eleven. 1 is off."""
    hflip: Share
    photometric: bool
    """Distort brightness, contrast, saturation and hue."""
    workers: Annotated[int, Field(ge=0)]
    """Number of loader processes; the windows do not depend on it."""

    @model_validator(mode="after")
    def _check_ranges(self) -> "SceneWindows":
        if len(self.resize) == 1 or self.scale[0] > self.scale[1]:
            raise ValueError("resize is [] or [short, long], and scale [least, greatest]")
        return self


class TextWindows(BaseModel):
    """Windows of a text of words."""

    model_config = STRICT
    window: Count
    """Words that a model reads at once; each is labelled with the next."""
    per_epoch: Annotated[int, Field(ge=0)]
    """Windows of one epoch, drawn at random places; 0: the whole text once, side by side."""
    scored_words: Annotated[int, Field(ge=0)] = 0
    """How many words of `val` and of `test` training scores, from the beginning of each; 0: all."""


class Mixup(BaseModel):
    """Mixup and CutMix of pairs of images in a batch, by timm (arXiv:1710.09412, arXiv:1905.04899)."""

    model_config = STRICT
    mixup: NotNegative
    cutmix: NotNegative
    prob: Share
    switch_prob: Share

    @model_validator(mode="after")
    def _check_parts(self) -> "Mixup":
        if self.mixup == self.cutmix == 0:
            raise ValueError("mixup or cutmix is above 0; or leave [mixup] out")
        return self


class Recipe(BaseModel):
    """Everything that a training run depends on, except for the machine."""

    model_config = STRICT
    title: str
    model: str
    model_options: dict[str, Any]
    data: str
    """A data set of `rbk list data`; or with an `[images]` table `folder`; or
    with a `[scenes]` table `shapes`, `ade20k`, `camvid` or `masks`; or with a `[text]` table a set of texts."""
    seed: Annotated[int, Field(ge=0, lt=2**31)]
    epochs: Count
    batch_size: Count
    """Images in a batch of all processes together."""
    optimizer: str
    lr: Positive
    """The highest learning rate, for this batch size. A warm-up that ends in epoch w does not quite reach it.

    The cosine counts from epoch 0, as timm's and DeiT's does: min_lr + (lr - min_lr) (1 + cos(pi w / epochs)) / 2."""
    weight_decay: NotNegative
    warmup_epochs: Annotated[int, Field(ge=0)]
    smoothing: Annotated[float, Field(ge=0, lt=1)]
    max_shift: Annotated[int, Field(ge=0)]
    """Augmentation: each image is shifted by up to so many pixels along each axis; the border is filled with black."""
    hflip: Share = 0.0
    min_lr: Positive | None = None
    """Learning rate at the end of the schedule; by default a hundredth of the highest."""
    betas: Annotated[list[Annotated[float, Field(ge=0, lt=1)]], Field(min_length=2, max_length=2)] | None = None
    """Of Adam and its kin; by default those of torch."""
    schedule: Literal["cosine", "polynomial", "inverse_sqrt"] = "cosine"
    """Cosine: set once an epoch; polynomial: at every step t of T, min_lr + (lr - min_lr) (1 - t / T)^power; inverse
    square root: at every step t after a warm-up of w, lr (w / t)^(1/2), as fairseq has it."""
    power: Positive = 0.9
    warmup_lr: Positive | None = None
    """Learning rate at the start of the warm-up; by default a hundredth of the highest."""
    clip_grad: Positive | None = None
    """Largest L2 norm of the gradient of all parameters together."""
    ema_decay: Annotated[float, Field(gt=0, lt=1)] | None = None
    precision: Literal["fp32", "bf16"] = "fp32"
    storage: Literal["fp32", "fp16"] = "fp32"
    """Precision of the finished weights; they are rounded before they are evaluated and written."""
    init: Literal["timm", "torch"] = "timm"
    """Initialisation of linear layers: truncated normal as in timm, or torch's default, as in the released RPC code.

    Layers that only Primal and KEP-SVGP attention have begin as torch's default in both cases."""
    penalties: dict[str, NotNegative] = {}
    """Weight of each loss that an attention adds: `ksvd` of Primal attention, `ksvd` and `kl` of KEP-SVGP."""
    encoder_checkpoint: str | None = None
    """Initial weights of a segmenter's encoder: a classifier's file or `hf-hub:OWNER/NAME`. Its head is left out, and
    its position embedding is resampled."""
    init_checkpoint: str | None = None
    """Initial weights of the whole model, to fine-tune: a bundled model, a file, or `hf-hub:OWNER/NAME`.

    A file is looked for beside the recipe first, then in the current folder. The head keeps its random weights where
    the number of classes differs; the position embedding is resampled where the number of patches differs. With
    `attention` in `model_options`, weights of another attention are taken over as `place` does."""
    threads: Count | None = None
    """Torch's CPU threads in each process; by default as many as torch chooses.

    Sums are split among them, so another number changes the last bits of the first loss, and all that follows."""
    images: ImageFiles | None = None
    scenes: SceneWindows | None = None
    text: TextWindows | None = None
    mixup: Mixup | None = None
    adversarial: Adversarial | None = None

    @model_validator(mode="after")
    def _check_parts(self) -> "Recipe":
        if self.images is not None and (self.max_shift or self.hflip):
            raise ValueError("max_shift and hflip outside [images] are for data held in memory; set them to 0")
        unfit = self.max_shift or self.hflip or self.images or self.mixup or self.adversarial
        for table in ("scenes", "text"):
            if getattr(self, table) is not None and unfit:
                raise ValueError(
                    f"with [{table}] there is no [images], [mixup], [adversarial], max_shift or hflip; remove it"
                )
        if self.scenes is not None and self.text is not None:
            raise ValueError("a recipe has [scenes] or [text]; remove one of them")
        if self.init_checkpoint is not None and self.encoder_checkpoint is not None:
            raise ValueError("init_checkpoint has the weights of the encoder, too; remove encoder_checkpoint")
        if self.schedule == "inverse_sqrt" and (not self.warmup_epochs or self.min_lr is not None):
            raise ValueError("schedule 'inverse_sqrt' falls from the end of the warm-up: warmup_epochs >= 1, no min_lr")
        if max(self.min_lr or 0, self.warmup_lr or 0) > self.lr:
            raise ValueError("min_lr and warmup_lr are at most lr")
        return self

    def digest(self, origin: Mapping[str, str]) -> str:
        """Return the SHA-256 of all but title, seed and threads: runs of equal digests are repetitions of a training.

        Args:
            origin: what identifies the weights that it begins with. It stands for their names, which may differ.

        Raises:
            BadInputError: the list of chosen classes cannot be read.
        """
        aside = {"title", "seed", "threads", "init_checkpoint", "encoder_checkpoint"}
        content = self.model_dump(mode="json", exclude=aside, exclude_defaults=True)
        if self.images is not None and self.images.classes is not None:
            content["images"]["classes"] = list(class_numbers(self.images.classes))  # whatever its file is called
        return sha256(json.dumps(content | {"origin": dict(origin)}, sort_keys=True).encode())


def load_recipe(name: str, overrides: Mapping[str, Any] | None = None) -> tuple[str, Recipe, str]:
    """Return the run's name, the parsed recipe and its text.

    Args:
        name: name of a bundled recipe, or of a TOML file.
        overrides: key -> new value; keys of tables have a dot, such as `adversarial.eps`. They are added to the text as
            comments.

    Raises:
        UnknownNameError: no such recipe, or an architecture that is none of the package.
        BadInputError: a key or value of it cannot be used, or its file names code that the user did not.
    """
    (data, text), path = read_recipe(name), Path(name)
    for key, value in (overrides or {}).items():
        *tables, last = key.split(".")
        table = data
        for part in tables:
            table = table.setdefault(part, {})
            if not isinstance(table, dict):
                raise BadInputError(f"'{key}' in recipe {path.name}", expected=f"a key; '{part}' is no table")
        table[last] = value
        text += f"# --set {key}={value}\n"
    files = (data, "init_checkpoint"), (data, "encoder_checkpoint"), (data.get("images", {}), "classes")
    for holder, key in files:
        if (
            isinstance(holder, dict)
            and isinstance(holder.get(key), str)
            and (path.parent / split_entry(holder[key])[0]).is_file()
        ):
            holder[key] = str(path.parent / holder[key])
    recipe = validate(Recipe, data, f"recipe {path.name}")
    if recipe.model not in ARCHITECTURES:  # also `FILE.py:FACTORY`: a recipe runs no code
        raise unknown_name(f"architecture (in recipe {path.name})", recipe.model, ARCHITECTURES)
    recipe = recipe.model_copy(update={"model_options": typed_options(recipe.model, recipe.model_options)})
    attention = str(recipe.model_options.get("attention", ""))
    if is_address(attention) and "model_options.attention" not in (overrides or {}):
        require_used(attention, f"recipe {path.name}")
    return path.stem, recipe, text
