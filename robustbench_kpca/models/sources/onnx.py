"""`onnx:FILE`, or `FILE.onnx`: a network in a file, run by onnxruntime; it has no gradients.

The first input takes images in [0, 1], (batch, 3, height, width), unless `--set model.mean=… --set model.std=…` say how
the network wants them normalised; the first output holds the logits. A file with a fixed batch size is called as often
as needed, with copies of the last image in the rows that are left.
"""

import hashlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from robustbench_kpca._core.errors import BadInputError, reason_of
from robustbench_kpca.data.request import View
from robustbench_kpca.models.source import describe, library, normalise_inside


class OnnxModel(nn.Module):
    """A file as a module. Its only state is the SHA-256 of the file, so that the file identifies the model."""

    differentiable = False

    def __init__(self, path: Path) -> None:
        super().__init__()
        runtime = library("onnxruntime", f"onnx:{path}", "onnx")
        try:
            content = path.read_bytes()
        except OSError as error:
            raise BadInputError(f"cannot read {path} ({reason_of(error)})", fix="check the path") from None
        settings = runtime.SessionOptions()
        settings.intra_op_num_threads, settings.log_severity_level = torch.get_num_threads(), 4
        try:
            self.session = runtime.InferenceSession(str(path), settings, providers=["CPUExecutionProvider"])
        except Exception as error:  # noqa: BLE001 (the library has its own exceptions)
            raise BadInputError(
                f"{path} cannot be run by onnxruntime ({reason_of(error)})",
                expected="a whole .onnx file",
            ) from None
        first = self.session.get_inputs()[0]
        if len(self.session.get_inputs()) != 1 or first.type != "tensor(float)" or len(first.shape) != 4:
            raise BadInputError(
                f"{path} takes {', '.join(f'{i.name}: {i.type} {i.shape}' for i in self.session.get_inputs())}",
                expected="one input of float images, (batch, 3, height, width)",
            )
        self.input = first.name
        self.rows, _, self.height, self.width = (size if isinstance(size, int) else 0 for size in first.shape)
        digest = torch.frombuffer(bytearray(hashlib.sha256(content).digest()), dtype=torch.uint8)
        self.register_buffer("file_sha256", digest)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits; without gradients."""
        size = self.rows or len(x)
        parts = [self._run(part, size) for part in x.detach().cpu().float().split(size)]
        return torch.cat(parts).to(x.device)

    def _run(self, x: Tensor, size: int) -> Tensor:
        full = torch.cat([x, x[-1:].expand(size - len(x), *x.shape[1:])]) if len(x) < size else x
        (logits, *_) = self.session.run(None, {self.input: full.contiguous().numpy()})
        return torch.from_numpy(logits[: len(x)])


def build(name: str, pretrained: bool, options: dict[str, Any]) -> nn.Module:
    """Return a model as `sources` says."""
    unknown = next((key for key in options if key not in ("mean", "std")), None)
    if unknown is not None or not pretrained:
        problem = f"'{unknown}' of" if unknown else "model.untrained or --checkpoint with"
        raise BadInputError(f"{problem} an ONNX file", expected="its own weights, and at most model.mean and model.std")
    model = OnnxModel(Path(name))
    if model.height != model.width:
        raise BadInputError(f"{name} takes images of {model.width} x {model.height}", expected="square images")
    view = View.between(model.height, model.height, "bilinear") if model.height else None
    return describe(normalise_inside(model, *(_triple(options, key) for key in ("mean", "std"))), view)


def _triple(options: dict[str, Any], key: str) -> list[float]:
    setting = options.get(key, 0.0 if key == "mean" else 1.0)
    values = list(setting) if isinstance(setting, (list, tuple)) else [setting]
    if not all(isinstance(value, (int, float)) for value in values) or len(values) not in (1, 3):
        raise BadInputError(f"model.{key} = {setting!r}", expected="one number, or three: red, green, blue")
    return [float(value) for value in values]
