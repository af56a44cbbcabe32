"""Where the batches of a recipe come from: the table that it has chooses the source."""

from pathlib import Path

from accelerate import Accelerator

from robustbench_kpca._core.registry import unknown_name
from robustbench_kpca.data import DATASETS
from robustbench_kpca.data.load import kind_of
from robustbench_kpca.training.image_files import ImageFileSource
from robustbench_kpca.training.recipe import Recipe
from robustbench_kpca.training.scene_files import SceneSource
from robustbench_kpca.training.source import InMemory, Source
from robustbench_kpca.training.text_windows import TextSource

TABLES: dict[str, type[Source]] = {"images": ImageFileSource, "scenes": SceneSource, "text": TextSource}
"""Table of a recipe -> what reads its data. Recipes without such a table use data sets that fit into memory."""


def source_of(recipe: Recipe, folder: Path | None, accelerator: Accelerator) -> Source:
    """Return the source of a recipe's batches.

    Raises:
        UnknownNameError: a recipe without a table names data that is not held in memory.
        BadInputError: the data cannot be used.
    """
    for table, source in TABLES.items():
        if getattr(recipe, table) is not None:
            return source(recipe, folder, accelerator)
    in_memory = [name for name in DATASETS.names() if issubclass(kind_of(name), InMemory.reads)]
    if recipe.data.partition(":")[0] not in in_memory:
        kind = kind_of(recipe.data)
        table = next((table for table, source in TABLES.items() if issubclass(kind, source.reads)), "images")
        raise unknown_name("data set", recipe.data, in_memory, f"such files need the table [{table}]")
    return InMemory(recipe, folder, accelerator)
