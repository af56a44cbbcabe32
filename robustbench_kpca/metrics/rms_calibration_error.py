"""RMS calibration error, bins of 100 images (Hendrycks et al. 2019, arXiv:1812.04606); equation in `_calibration`."""

from robustbench_kpca.metrics.shared.calibrated import calibration_metric
from robustbench_kpca.metrics.shared.calibration import rms_calibration_error

METRIC = calibration_metric(rms_calibration_error, name="rms_calibration_error", title="RMS calibration error")
