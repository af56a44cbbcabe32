# ruff: noqa: SLF001 (torch has no public names for these)
"""A device that is none: its tensors say that they lie elsewhere, and what a real device would be asked is counted.

Every tensor of the stand-in device holds one on the CPU, which does the work: a program runs as on a GPU, with its own
numbers. Torch takes the device for `meta`, the only one that needs no driver. Tensors of host and device in one
operator are refused, as a GPU refuses them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from robustbench_kpca._engine.attack_loop.engine import Engine
from robustbench_kpca._engine.inference.runner import Presentation, Runner, call
from robustbench_kpca.tasks import task_named
from robustbench_kpca.verification.conformance.attack import scenario

DEVICE = torch.device("meta")
LARGE = 1024  # numbers: more than a few of every row
_LOOKS = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "_unique2", "unique_dim", "bincount"}
_IDLE = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}


@dataclass
class Load:
    """What a device was asked.

    Attributes:
        uploaded: bytes that went from the host to the device.
        downloaded: bytes that went back, beside single numbers.
        waits: how often the host waited until all work was done: to look at values, or for a copy that blocks.
        operators: operators launched; views are none.
        doubles: those of them that read or write a large tensor in double precision.

    """

    uploaded: int = 0
    downloaded: int = 0
    waits: int = 0
    operators: int = 0
    doubles: int = 0

    def since(self, before: "Load") -> "Load":
        """Return what was asked after `before`."""
        return Load(*(getattr(self, one.name) - getattr(before, one.name) for one in fields(self)))


class Elsewhere(Tensor):
    """A tensor of the stand-in device; `numbers` lies on the CPU."""

    numbers: Tensor

    @staticmethod
    def __new__(cls, numbers: Tensor) -> "Elsewhere":
        own = torch.Tensor._make_wrapper_subclass(
            cls, numbers.size(), numbers.stride(), numbers.storage_offset(), dtype=numbers.dtype, device=DEVICE
        )
        own.numbers = numbers
        return own

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """Refuse work where nothing counts it."""
        raise RuntimeError(f"{func} on the stand-in device outside of stand_in()")


class _Lists(TorchFunctionMode):
    """Tensors of lists, and lists of tensors, which torch makes without an operator."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.tensor and kwargs.get("device") == DEVICE:
            return func(*args, **kwargs | {"device": "cpu"}).to(DEVICE)
        if func is Tensor.new_tensor and isinstance(args[0], Elsewhere):
            return torch.tensor(args[1], dtype=kwargs.get("dtype", args[0].dtype)).to(DEVICE)
        if func is Tensor.tolist and isinstance(args[0], Elsewhere):
            return args[0].cpu().tolist()
        return func(*args, **kwargs)


class Counter(TorchDispatchMode):
    """Does the work on the CPU, and counts it in `load`."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.load = Load()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given, kwargs = _tensors((args, kwargs)), dict(kwargs or {})
        there = any(isinstance(one, Elsewhere) for one in given)
        to_there = there if kwargs.get("device") is None else kwargs["device"] == DEVICE
        bare_args, bare = tree_map_only(Elsewhere, lambda one: one.numbers, (args, kwargs))
        result = func(*bare_args, **bare | ({"device": "cpu"} if bare.get("device") is not None else {}))
        name, results = func._schema.name.removeprefix("aten::"), _tensors(result)
        if name in ("_to_copy", "copy_") and len({there, to_there, *(isinstance(one, Elsewhere) for one in given)}) > 1:
            self._cross(results[0], blocks=not (kwargs.get("non_blocking") or args[2:3] == (True,)), up=to_there)
        elif there or to_there:
            self._work(func, name, args, given, results)
        if not to_there:
            return result
        known = {id(one.numbers): one for one in given if isinstance(one, Elsewhere)}
        return tree_map_only(Tensor, lambda one: known[id(one)] if id(one) in known else Elsewhere(one), result)

    def _cross(self, moved: Tensor, *, blocks: bool, up: bool) -> None:
        """Count a copy between host and device."""
        self.load.waits += blocks or not up
        if up:
            self.load.uploaded += moved.nbytes
        else:
            self.load.downloaded += moved.nbytes

    def _work(self, func: Any, name: str, args: Any, given: list[Tensor], results: list[Tensor]) -> None:
        """Count an operator on the device."""
        host = [one for one in given if not isinstance(one, Elsewhere) and one.ndim]
        indexed = [one for one in args[1] if one is not None] if name in ("index", "index_put_", "index_put") else []
        if indexed:
            host = [one for one in host if not any(one is index for index in indexed)]
            self.load.uploaded += sum(one.nbytes for one in indexed if not isinstance(one, Elsewhere))
        if host:
            raise RuntimeError(f"{func}: tensors of the host and of the device in one operator")
        filled = name.startswith("index_put") and args[2].ndim == 0
        masked = any(one.dtype == torch.bool or not isinstance(one, Elsewhere) for one in indexed) and not filled
        counted = name == "repeat_interleave" and len(args) < 3
        self.load.waits += name in _LOOKS or masked or counted
        inner = [one.numbers if isinstance(one, Elsewhere) else one for one in given]
        kept = {one.untyped_storage().data_ptr() for one in inner}
        view = not func._schema.is_mutable and all(one.untyped_storage().data_ptr() in kept for one in results)
        if name in _IDLE or (view and results):
            return
        self.load.operators += 1
        self.load.doubles += any(one.dtype == torch.float64 and one.numel() >= LARGE for one in [*inner, *results])


def _tensors(nested: Any) -> list[Tensor]:
    return [one for one in tree_leaves(nested) if isinstance(one, Tensor)]


@contextmanager
def stand_in() -> Iterator[Counter]:
    """Make the stand-in device usable, and count what it is asked."""
    with _Lists(), Counter() as counter:
        yield counter


def move(model: nn.Module) -> nn.Module:
    """Move a model's tensors to the stand-in device, within `stand_in`; they are frozen."""
    for module in model.modules():
        for own in (module._parameters, module._buffers):
            for name, values in own.items():
                own[name] = None if values is None else values.detach().to(DEVICE)  # type: ignore[assignment]
    return model


class Steady(nn.Module):
    """Ten logits of an image, or of every pixel, linear in it; class 0 leads by more than any image can change."""

    weight: Tensor
    lead: Tensor

    def __init__(self, side: int, *, dense: bool) -> None:
        super().__init__()
        own = torch.Generator().manual_seed(0)
        self.dense = dense
        values = 3 if dense else 3 * side * side
        self.register_buffer("weight", torch.randn(values, 10, generator=own) / values)
        self.register_buffer("lead", 20.0 * (torch.arange(10) == 0).float())

    def forward(self, x: Tensor) -> Tensor:
        if self.dense:
            return (x.movedim(1, 3) @ self.weight + self.lead).movedim(3, 1)
        return x.flatten(1) @ self.weight + self.lead


class _Taken(Presentation):
    """Takes every answer: tensors of the stand-in device say that they hold no numbers."""

    def require(self, logits: object, x: Tensor) -> None:
        """Accept it."""


@dataclass(frozen=True)
class Case:
    """An attack, its options, and the norm; `dense`: of every pixel."""

    attack: str
    options: dict[str, Any]
    norm: str = "linf"
    dense: bool = False
    clip: bool = True
    where: str = "grid"  # of patches, 4 pixels a side

    def loads(self, side: int, images: int = 8) -> list[Load]:
        """Attack a full batch; return what each step asked of the device."""
        stage = {"attack": self.attack, "restarts": 1, **self.options}
        more: dict[str, Any] = {"policy": "strongest"} if self.dense else {}
        more |= {"patch": 4, "corners": self.where} if self.norm == "patches" else {}
        protocol = scenario([stage], norm=self.norm, eps=EPS[self.norm], clip=self.clip, **more)
        task = task_named("segmentation" if self.dense else "classification")
        x, place = (
            torch.rand(images, 3, side, side, generator=torch.Generator().manual_seed(0)),
            [side] * 2 * self.dense,
        )
        found: list[Load] = []
        with stand_in() as counter:
            shown = _Taken(call, lambda *_: True, "any")
            runner = Runner(move(Steady(side, dense=self.dense).eval()), images, DEVICE, presentation=shown)
            engine = Engine(
                runner, protocol, task.compute.success, [str(row) for row in range(images)], seed=0, sink=lambda _: None
            )
            before, steps = replace(counter.load), 0

            def note() -> None:
                nonlocal before, steps
                if engine.pools[0].steps > steps:
                    found.append(counter.load.since(before))
                before, steps = replace(counter.load), engine.pools[0].steps

            engine.run(iter([(list(range(images)), x, torch.zeros(images, *place, dtype=torch.int64))]), note)
        return found


EPS = {"linf": 0.01, "l2": 0.5, "l1": 5.0, "l0": 4.0, "patches": 2.0}
_PGD = {"steps": 6, "step_size": "0.25 eps", "random_start": True}
_APGD = {"steps": 6, "loss": "ce", "targets": 1}
_FAB = {"steps": 6, "targets": 2, "alpha_max": 0.1, "eta": 1.05, "beta": 0.9, "random_start": False}
_CW = {"steps": 6, "lr": 0.01, "binary_steps": 1, "initial_const": 1e4, "confidence": 0.0}
_SPSA = {"steps": 5, "samples": 16, "delta": 0.01, "lr": 0.01}
_SLD = {"steps": 6, "step_size": 1.0, "sparsity": 99, "skip_clipped": False, "random_start": False}
_PATCH = {"steps": 6, "step_size": 0.1, "optimizer": "momentum", "decay": 1.0, "places": 1, "random_start": False}
_SIGMA = {"steps": 6, "lr": 1.0, "sigma": 0.001, "threshold": 0.3, "rise": 0.01, "unit": "value"}
CASES = {
    "PGD": Case("pgd", _PGD),
    "PGD in L2": Case("pgd", _PGD, "l2"),
    "MIM": Case("mim", {"steps": 6, "step_size": "0.1 eps", "decay": 1.0}),
    "APGD-CE": Case("apgd", _APGD | {"rho": 0.75}),
    "APGD-CE in L2": Case("apgd", _APGD | {"rho": 0.75}, "l2"),
    "APGD-T, 2 targets": Case("apgd", _APGD | {"loss": "dlr_targeted", "targets": 2, "rho": 0.75}),
    "APGD-CE in L1": Case("apgd_l1", _APGD, "l1"),
    "MALT, 2 targets": Case("malt", _APGD | {"loss": "dlr_targeted", "targets": 2, "candidates": 4, "rho": 0.75}),
    "FAB-T, 2 targets": Case("fab", _FAB),
    "FAB-T in L2": Case("fab", _FAB, "l2"),
    "FAB-T in L1": Case("fab", _FAB, "l1"),
    "FAB, untargeted": Case("fab", _FAB | {"targets": 0}),
    "Square": Case("square", {"queries": 12, "p_init": 0.8}),
    "Square in L2": Case("square", {"queries": 12, "p_init": 0.8}, "l2"),
    "Square in L1": Case("square", {"queries": 12, "p_init": 0.8}, "l1"),
    "SPSA, 16 samples": Case("spsa", _SPSA | {"random_start": True}),
    "SPSA of CleverHans": Case("spsa_cleverhans", _SPSA, clip=False),
    "C&W": Case("cw", _CW, "l2"),
    "C&W of CleverHans": Case("cw_cleverhans", _CW, "l2"),
    "DDN": Case("ddn", {"steps": 6, "gamma": 0.05, "init_norm": 1.0}, "l2"),
    "FMN": Case("fmn", {"steps": 6, "step_size": 1.0, "gamma": 0.05}, "l2"),
    "SLD": Case("sld", _SLD | {"projection": "euclidean"}, "l1"),
    "SegPGD, every pixel": Case("segpgd", _PGD, dense=True),
    "SEA's APGD, every pixel": Case("apgd_shrinking", {"steps": 6, "loss": "ce_masked", "rho": 0.75}, dense=True),
    "PGD in L0": Case("pgd", _PGD | {"step_size": 0.05}, "l0"),
    "PGD on patches": Case("pgd", _PGD | {"step_size": 0.05}, "patches"),
    "patch, by gradient": Case("patch", _PATCH | {"rank": "gradient"}, "patches"),
    "patch, anywhere": Case("patch", _PATCH | {"rank": "random"}, "patches", where="anywhere"),
    "patch in L0": Case("patch", _PATCH | {"rank": "gradient"}, "l0"),
    "sigma-zero": Case("sigma_zero", _SIGMA, "l0"),
    "Sparse-RS in L0": Case("sparse_rs", {"queries": 12, "alpha_init": 0.3}, "l0"),
    "Sparse-RS on patches": Case("sparse_rs", {"queries": 12, "alpha_init": 0.4}, "patches"),
    "Sparse-RS, patches anywhere": Case("sparse_rs", {"queries": 12, "alpha_init": 0.4}, "patches", where="anywhere"),
}
"""Attacks of several steps. Those on words need a language model."""
