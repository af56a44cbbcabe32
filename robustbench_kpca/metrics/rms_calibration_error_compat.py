"""RMS calibration error as the code of natural-adv-examples computes it: without its last, most confident bin."""

from functools import partial

from robustbench_kpca.metrics.shared.calibrated import calibration_metric
from robustbench_kpca.metrics.shared.calibration import rms_calibration_error

METRIC = calibration_metric(
    partial(rms_calibration_error, compat=True), needs=2, name="rms_calibration_error_compat",
    title="RMS calibration error as published, without the last bin",
)  # fmt: skip
