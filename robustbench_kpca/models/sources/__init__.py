"""Sources of models: one file a prefix. `timm:resnet18` is the model `resnet18` of the source `timm`."""

from robustbench_kpca.registry import Family

SOURCES = Family("source of models", __name__, "SOURCE")
