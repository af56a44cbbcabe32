"""Sources of models: one file a prefix. `timm:resnet18` is the model `resnet18` of the source `timm`.

Each file has a function `build(name, pretrained, options)`. It returns a module that maps images in [0, 1] to logits,
described by `models.source.describe`; `pretrained`: with its own trained weights.
"""

from robustbench_kpca._core.registry import Family

SOURCES = Family("source of models", __name__, "build", needs=("__call__",), by_address=False)

CERTIFIED = ("ablated", "masked", "smoothed")
"""Sources that make a model of another one: the rest of the name is that of the other."""

OURS = {"robustbench": ("Debenedetti2022Light_XCiT-", "Singh2023Revisiting_"), "cbsa": ("",)}
"""How names begin of networks that are code of this package alone, by source."""


def is_ours(source: str, name: str) -> bool:
    """Tell whether a network of a source is code of this package, whatever libraries are here."""
    return name.rpartition("/")[2].startswith(OURS.get(source, ()))


def base_name(name: str) -> str:
    """Return the name of the model that a certified one is made of, or the name itself."""
    source, rest = source_of(name)
    return base_name(rest) if source in CERTIFIED else name


def source_of(name: str) -> tuple[str, str]:
    """Return the source of a model and its name there; no source for a model of the package or `module:factory`."""
    prefix, colon, rest = name.partition(":")
    if name.endswith(".onnx") and not colon:
        return "onnx", name
    return (prefix, rest) if colon and prefix in SOURCES else ("", name)
