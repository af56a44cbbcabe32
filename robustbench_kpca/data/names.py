"""The names of data: a set of the package, or a folder; no torch."""

import os

from robustbench_kpca._core import address
from robustbench_kpca._core.registry import close_names, unknown_name
from robustbench_kpca.data import DATASETS


def is_published(source: str) -> bool:
    """Tell whether a source is a data set of the package, and not a folder of images."""
    name, colon, folder = source.partition(":")
    return name in DATASETS and bool(folder or not colon)


def is_outside(source: str) -> bool:
    """Tell whether a source is the address of a function `load(request)` outside the package."""
    return address.is_address(source) and source.partition(":")[0] not in DATASETS


def require_data(source: str) -> None:
    """Refuse data that are neither `NAME` nor `NAME:FOLDER` of `rbk list data`, nor a folder, nor an address."""
    if is_published(source) or os.path.isdir(source):  # noqa: PTH112 (a text that can be no path is False)
        return
    if is_outside(source) and (source.rpartition(":")[0].endswith(".py") or not close_names(source, DATASETS.names())):
        DATASETS.require(source)
        return
    name, _, folder = source.partition(":")
    hint = "give a folder that exists, or NAME:FOLDER"
    raise unknown_name("data set", name if folder else source, DATASETS.names(), hint)
