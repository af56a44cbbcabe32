"""Expected calibration error, 15 equal bins (Guo et al. 2017, arXiv:1706.04599); equation in `_calibration`."""

from robustbench_kpca.metrics.shared.calibrated import calibration_metric
from robustbench_kpca.metrics.shared.calibration import expected_calibration_error

METRIC = calibration_metric(expected_calibration_error, name="ece", title="Expected calibration error")
