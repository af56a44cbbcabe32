"""Diagnose a model on one source of samples, by a name."""

from robustbench_kpca.evaluation.requests import NamedModel
from robustbench_kpca.study.diagnostics.procedures import corrected
from robustbench_kpca.study.diagnostics.run import diagnose


def diagnosed(model, source, name="x", claims=None, **how):
    return diagnose(NamedModel(model, name, name), corrected(source, claims), **how)
