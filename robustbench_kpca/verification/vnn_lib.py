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
from robustbench_kpca._core.files import replace_file
from robustbench_kpca.models.source import library
from robustbench_kpca.types import Images

OPSET = 17


def write_questions(model: nn.Module, images: Images, eps: float, folder: Path, seconds: int = 300) -> list[Path]:
    """Write `model.onnx`, `image-0000.vnnlib`, … and `instances.csv`; return the questions.

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
    folder.mkdir(parents=True, exist_ok=True)
    network = copy.deepcopy(model).eval()
    _export(network, images[:1], folder / "model.onnx")
    with torch.no_grad():
        answers = network(images).argmax(1).tolist()
        classes = network(images[:1]).shape[1]
    questions = []
    for number, (image, answer) in enumerate(zip(images, answers, strict=True)):
        questions.append(folder / f"image-{number:04}.vnnlib")
        replace_file(questions[-1], _question(image, eps, answer, classes).encode(), durable=False)
    rows = "".join(f"model.onnx,{question.name},{seconds}\n" for question in questions)
    replace_file(folder / "instances.csv", rows.encode(), durable=False)
    return questions


def _export(network: nn.Module, image: Images, file: Path) -> None:
    library("onnx", "the export of a network", "onnx")
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
