"""Questions for complete verifiers, such as alpha-beta-CROWN: a network as ONNX, one VNN-LIB file for each image.

Each file asks for an image within eps in L-infinity and in [0, 1], of which some other class has at least the logit of
the class that is answered; "unsat" is a proof. `instances.csv` lists the files as VNN-COMP does. Such verifiers need
other versions of torch, so they run in an environment of their own.
"""

import copy
import warnings
from pathlib import Path

import torch
from torch import Tensor, nn

from robustbench_kpca._core.errors import BadInputError, reason_of
from robustbench_kpca._core.files import replace_file, whole_folder
from robustbench_kpca.models.source import library
from robustbench_kpca.types import Images

OPSET = 17


def write_questions(model: nn.Module, images: Images, eps: float, folder: Path, seconds: int = 300) -> list[Path]:
    """Write `model.onnx`, `image-0000.vnnlib`, … and `instances.csv`, all or nothing; return the questions.

    Args:
        model: on the CPU, from images in [0, 1] to logits.
        images: all of one shape, in [0, 1].
        eps: of L-infinity, in pixel space.
        folder: a new one, or an empty one.
        seconds: the time limit that `instances.csv` states.

    Raises:
        BadInputError: the folder has files; the network cannot be exported; eps is not in (0, 1].
    """
    if not 0 < eps <= 1:
        raise BadInputError(f"eps = {eps:g}", expected="more than 0, at most 1")
    if folder.exists() and any(folder.iterdir()):
        raise BadInputError(f"{folder} has files", fix="name a new folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    network = copy.deepcopy(model).eval()
    with torch.no_grad():
        logits = network(images)
    names = [f"image-{number:04}.vnnlib" for number in range(len(images))]
    with whole_folder(folder, "questions") as made:
        _export(network, images[:1], made / "model.onnx")
        for image, answer, name in zip(images, logits.argmax(1).tolist(), names, strict=True):
            replace_file(made / name, _question(image, eps, answer, logits.shape[1]).encode(), durable=False)
        rows = "".join(f"model.onnx,{name},{seconds}\n" for name in names)
        replace_file(made / "instances.csv", rows.encode(), durable=False)
    return [folder / name for name in names]


def _export(network: nn.Module, image: Images, file: Path) -> None:
    library("onnx", type(network).__name__)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # tracing says that sizes become constants: one size is asked about
            torch.onnx.export(network, (image,), str(file), dynamo=False, opset_version=OPSET)
    except Exception as error:  # noqa: BLE001 (of many kinds)
        raise BadInputError(f"the network has no ONNX form: {reason_of(error)}", expected="functions of ONNX") from None


def _question(image: Tensor, eps: float, answer: int, classes: int) -> str:
    low, high = ((image.double() + sign * eps).clamp(0, 1).flatten().tolist() for sign in (-1, 1))
    lines = [f"; class {answer} within {eps:g} in L-infinity"]
    lines += [f"(declare-const X_{at} Real)" for at in range(len(low))]
    lines += [f"(declare-const Y_{at} Real)" for at in range(classes)]
    for at, (least, most) in enumerate(zip(low, high, strict=True)):
        lines += [f"(assert (<= X_{at} {most:.17f}))", f"(assert (>= X_{at} {least:.17f}))"]
    others = (f"    (and (>= Y_{other} Y_{answer}))" for other in range(classes) if other != answer)
    return "\n".join([*lines, "(assert (or", *others, "))", ""])
