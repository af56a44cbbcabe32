"""The table of architectures: a backbone and its size, the attention of its blocks, and another one in some blocks.

The table needs no torch: a backbone's module is imported when a model is built.
"""

import importlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from robustbench_kpca._core import plugins
from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.registry import unknown_name
from robustbench_kpca.data import DATASETS
from robustbench_kpca.models import shapes


@dataclass(frozen=True)
class Backbone:
    """A network and its sizes.

    Attributes:
        sizes: name of a size -> its shape, a dataclass.
        builder: where the function is that builds it, as `module:function`; see `build`.
        crop: share of an image file that its authors' evaluation keeps.
        task: what it is for: the name of a task.
        images: whether its inputs are images, which it normalises; other inputs come as they are.
        homes: size -> the data set that it is for, of sizes that are not named after one.
    """

    sizes: Mapping[str, Any]
    builder: str
    crop: float
    task: str = "classification"
    images: bool = True
    homes: Mapping[str, str] = field(default_factory=dict)

    def build(self, attention: str, shape: dict[str, Any]) -> Any:
        """Return a model of this shape with this attention in every block."""
        module, _, function = self.builder.partition(":")
        return getattr(importlib.import_module(f"{__package__}.{module}"), function)(attention, shape)


VIT = Backbone(shapes.VIT, "vit:build_vit", crop=0.875)
FAN = Backbone(shapes.FAN, "fan:build_fan", crop=1.0)
SEQUENCE = Backbone(shapes.SEQUENCE, "sequence:build_sequence", crop=1.0, images=False)
SEGMENTER = Backbone(shapes.SEGMENTER, "segmenter:build_segmenter", crop=1.0, task="segmentation")
LANGUAGE = Backbone(
    shapes.LANGUAGE, "language:build_language", crop=1.0, task="language", images=False, homes={"tiny": "grammar"}
)
NORMALISATIONS: dict[str, tuple[Sequence[float], Sequence[float]]] = {
    "deit": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),  # of ImageNet
    "vit": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
}
"""Mean and standard deviation of each channel. The names are those of Segmenter's authors."""


@dataclass(frozen=True)
class Family:
    """Architectures that differ in backbone and size only.

    Attributes:
        backbones: backbones that come with these attentions.
        attention: attention of every block.
        special: attention of the chosen blocks, None where all blocks have the same.
        layers: the chosen blocks: `first`, `quarter` (the first quarter), `last`, `all` or their numbers.
        options: options of the special attention.
        stochastic: whether the special attention draws noise at test time.
    """

    backbones: tuple[Backbone, ...]
    attention: str
    special: str | None = None
    layers: str = "first"
    options: dict[str, Any] = field(default_factory=dict)
    stochastic: bool = False

    def backbone(self, size: str) -> Backbone:
        """Return the backbone that has this size."""
        return next(backbone for backbone in self.backbones if size in backbone.sizes)


def _rpc(iterations: int, lam: float) -> dict[str, Any]:
    return {"iterations": iterations, "lam": lam, "threshold": "lam*mu", "mu_width": "embed", "dual_sign": -1}


_RPC_CAUSAL = _rpc(4, 4.0) | {"mu_span": "past"}
_PRIMAL_CAUSAL = {"rank": 30}  # the shape of Chen et al. for WikiText-103
_PRIMAL = {"rank": 20, "rank_multi": 10}
_KEP_SVGP = {"rank": 10, "rank_multi": 10, "form": "concatenate"}

_ANY_LENGTH = (VIT, SEGMENTER)  # for attentions whose parameters do not depend on the number of tokens


def _rival(attention: str, plain: str = "softmax", **options: Any) -> Family:
    """Return a family with this attention in all blocks; `mixing = "identity"` is its twin without mixing."""
    return Family((VIT,), plain, attention, "all", options | {"mixing": "own"})


_RIVALS = {
    "twicing_vit": _rival("twicing", order=2),
    "neutreno_vit": _rival("neutreno", alpha=0.6),
    "elliptical_vit": _rival("elliptical", gradient="restored"),
    "kde_vit": _rival("kde"),
    "robust_kde_vit": _rival("robust_kde", loss="huber", form="released", a=0.2, iterations=1),
    "mom_vit": _rival("median_of_means", blocks=5, outliers=0.1, gradient="restored", draws=8),
    "pro_vit": _rival("pro", loss="mcp", iterations=3, gradient="restored"),
    "l2_vit": _rival("l2", "symmetric"),
    "cosine_vit": _rival("cosine", scale=10.0),
    "differential_vit": _rival("differential"),
    "temperature_vit": _rival("temperature", temperature=2.0),
    "specformer_vit": Family((VIT,), "softmax", "specformer", "all", {"groups": "released"}),
}
"""Robust attentions of others."""
FAMILIES = {
    "vit": Family(_ANY_LENGTH, "softmax"),
    "symvit": Family(_ANY_LENGTH, "symmetric"),
    "rpc_symvit": Family(_ANY_LENGTH, "symmetric", "rpc", "first", _rpc(4, 4.0)),
    "rpc_symvit_all": Family(_ANY_LENGTH, "symmetric", "rpc", "all", _rpc(2, 3.0)),
    "rpc_vit": Family(_ANY_LENGTH, "softmax", "rpc_asymmetric", "first", _rpc(4, 4.0)),  # appendix E.10, first form
    "rpc_vit_sym": Family(_ANY_LENGTH, "softmax", "rpc", "first", _rpc(4, 4.0)),  # appendix E.10, second form
    "identity_symvit": Family(_ANY_LENGTH, "symmetric", "identity", "first"),
    "scaled_vit": Family((VIT,), "softmax", "scaled", "all", {"form": "alpha"}),
    "primal_vit": Family((VIT,), "softmax", "primal", "last", _PRIMAL),
    "kep_svgp_vit": Family((VIT,), "softmax", "kep_svgp", "last", _KEP_SVGP, stochastic=True),
    **_RIVALS,
    "fan": Family((FAN,), "softmax"),
    "symfan": Family((FAN,), "symmetric"),
    "rpc_fan": Family((FAN,), "symmetric", "rpc", "first", _rpc(4, 4.0)),
    "identity_fan": Family((FAN,), "symmetric", "identity", "first"),
    "softmax_seq": Family((SEQUENCE,), "softmax"),
    "symmetric_seq": Family((SEQUENCE,), "symmetric"),
    "rpc_seq": Family((SEQUENCE,), "symmetric", "rpc", "first", _rpc(4, 4.0)),
    "identity_seq": Family((SEQUENCE,), "symmetric", "identity", "first"),
    "scaled_seq": Family((SEQUENCE,), "softmax", "scaled", "all", {"form": "alpha"}),
    "primal_seq": Family((SEQUENCE,), "softmax", "primal", "last", _PRIMAL),
    "softmax_lm": Family((LANGUAGE,), "softmax"),
    "symmetric_lm": Family((LANGUAGE,), "symmetric"),
    "rpc_lm": Family((LANGUAGE,), "symmetric", "rpc", "quarter", _RPC_CAUSAL),
    "identity_lm": Family((LANGUAGE,), "symmetric", "identity", "quarter"),
    "scaled_lm": Family((LANGUAGE,), "softmax", "scaled", "all", {"form": "alpha"}),
    "primal_lm": Family((LANGUAGE,), "softmax", "primal", "last", _PRIMAL_CAUSAL),
}
plugins.TABLES.append(FAMILIES)


class _Architectures(Mapping[str, tuple[str, str]]):
    """Name -> family and size, of all that `FAMILIES` has now."""

    def __getitem__(self, name: str) -> tuple[str, str]:
        if (place := self.place_of(name)) is None:
            plugins.load()
            place = self.place_of(name)
        if place is None:
            raise KeyError(name)
        return place

    def __iter__(self) -> Iterator[str]:
        plugins.load()
        for name, family in FAMILIES.items():
            yield from (f"{name}_{size}" for part in family.backbones for size in part.sizes)

    def __len__(self) -> int:
        return len(list(iter(self)))

    def place_of(self, name: str) -> tuple[str, str] | None:
        """Return family and size of an architecture, without a look for plugins; None: there is none of that name."""
        for family_name, family in FAMILIES.items():
            size = name.removeprefix(f"{family_name}_")
            if size != name and any(size in part.sizes for part in family.backbones):
                return family_name, size
        return None


ARCHITECTURES = _Architectures()


def parts_of(name: str) -> tuple[Family, Backbone]:
    """Return the family and the backbone of an architecture.

    Raises:
        UnknownNameError: there is no such architecture.
    """
    if name not in ARCHITECTURES:
        raise unknown_name("model", name, ARCHITECTURES)
    family, size = ARCHITECTURES[name]
    return FAMILIES[family], FAMILIES[family].backbone(size)


def data_of(name: str) -> str | None:
    """Return the data set that an architecture is for, mostly the one it is named after; None if there is none."""
    size = ARCHITECTURES[name][1] if name in ARCHITECTURES else ""
    home = parts_of(name)[1].homes.get(size, size) if size else ""
    return home if home in DATASETS else None


def task_of(name: str) -> str:
    """Return the name of the task that an architecture is for.

    Raises:
        UnknownNameError: there is no such architecture.
    """
    return parts_of(name)[1].task


def is_stochastic(name: str) -> bool:
    """Tell whether an architecture draws noise at test time.

    Attacks on such models average gradients over the noise (expectation over transformation).
    """
    return parts_of(name)[0].stochastic


def shape_of(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the shape of the backbone that `create_model` would build.

    Raises:
        UnknownNameError: there is no such architecture.
    """
    shape = asdict(parts_of(name)[1].sizes[ARCHITECTURES[name][1]])
    return {key: options.get(key, value) for key, value in shape.items()}


def typed_options(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with the type of their fields: 1 becomes 1.0 where the architecture has a float, such as `lam`.

    Raises:
        UnknownNameError: there is no such architecture.
    """
    defaults = shape_of(name, {}) | parts_of(name)[0].options
    return {
        key: float(value) if type(value) is int and isinstance(defaults.get(key), float) else value
        for key, value in options.items()
    }


def normalisation_of(name: str, options: Mapping[str, Any]) -> tuple[Sequence[float], Sequence[float]]:
    """Return mean and standard deviation of each channel, as `create_model` puts them inside the model.

    Raises:
        BadInputError: an unknown normalisation.
    """
    normalisation = shape_of(name, options).get("normalisation", "deit")
    if normalisation not in NORMALISATIONS:
        choices = " or ".join(f"'{choice}'" for choice in NORMALISATIONS)
        raise BadInputError(f"normalisation = {normalisation!r}", expected=choices)
    return NORMALISATIONS[normalisation]
