"""What identifies an evaluation: model, data and protocol; and the environment in which it was made. No torch."""

import json
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, Field, model_validator

from robustbench_kpca._core.files import safe_name, sha256
from robustbench_kpca._core.strict import STRICT
from robustbench_kpca.protocols.scenario import Scenario, parse_scenario


class ModelInfo(BaseModel):
    """The network that was evaluated.

    `parameters_sha256` identifies its weights whatever file they came from; `probe_sha256`, of its logits on the first
    batch, its function: code and settings that are no parameters show there. `pixel_std` is that of the normalisation
    inside the model, per channel; empty where it cannot be seen.
    """

    model_config = STRICT
    name: str
    source: str
    parameters: int
    parameters_sha256: str
    probe_sha256: str
    pixel_std: tuple[Annotated[float, Field(gt=0, allow_inf_nan=False)], ...]
    config: dict[str, Any]

    @property
    def network(self) -> tuple[str, str]:
        """Weights and configuration: what identifies the model on every machine, whatever its name."""
        return self.parameters_sha256, json.dumps(self.config, sort_keys=True)

    def agrees(self, options: Mapping[str, Any]) -> bool:
        """Whether its configuration has no other value for any of these options; it need not have all of them."""
        return all(self.config.get(key, value) == value for key, value in options.items())


class DataInfo(BaseModel):
    """The samples that it was evaluated on.

    digest: over ids, labels and contents, in any order.
    known: of a pair for out-of-distribution detection, how many samples are of known classes.
    class_names: names of classes 0, 1, ..., where the data knows them.
    task: what the samples are for, such as `classification`.
    matched: how the classes of the data were matched with those of the model, in words.
    resized: the rule by which pictures were resized and cropped; None if they were shown as they are.
    entropy: entropy of the source of a text, in nats a word, where it is known: no model can do better on average.

    Task, names, `matched`, `resized` and `entropy` are not part of a specification's digest: what they change is in
    the digest of the data.

    Raises:
        pydantic.ValidationError: names, but not one a class.
    """

    model_config = STRICT
    name: str
    split: str
    n: int
    classes: int
    digest: str
    known: Annotated[int, Field(ge=1)] | None = None
    class_names: tuple[str, ...] | None = None
    task: str
    matched: str | None = None
    resized: str | None = None
    entropy: float | None = None

    @model_validator(mode="after")
    def _check_names(self) -> "DataInfo":
        if self.class_names is not None and len(self.class_names) != self.classes:
            raise ValueError(f"{len(self.class_names)} names for {self.classes} classes")
        return self


class ProtocolInfo(BaseModel):
    """What was done to them: the preset's label, the digest of what it resolved to, and that itself."""

    model_config = STRICT
    name: str
    digest: str
    resolved: dict[str, Any]

    @property
    def scenario(self) -> Scenario:
        """The protocol that it resolved to.

        Raises:
            BadInputError: it is none.
        """
        return parse_scenario(dict(self.resolved), self.name)


class Spec(BaseModel):
    """Everything that determines the outcomes on one machine.

    `code` is of what comes from outside the package: what it is, such as `attack my-attack` -> SHA-256 of its files. It
    is part of the digest of the specification where there is any.
    """

    model_config = STRICT
    model: ModelInfo
    data: DataInfo
    protocol: ProtocolInfo
    seed: int
    batch_size: int
    code: dict[str, str] = {}

    def digest(self) -> str:
        """SHA-256 over the whole specification, but for how the data are described."""
        described = {"class_names", "task", "matched", "resized", "entropy"}
        content = self.model_dump(mode="json", exclude={"data": described} | ({} if self.code else {"code": True}))
        return sha256(json.dumps(content, sort_keys=True).encode())

    def stem(self) -> str:
        """File name (without suffix) of this evaluation's record: readable, and one a specification."""
        parts = [self.model.name, f"{self.data.name}-{self.data.split}", self.protocol.name, f"seed{self.seed}"]
        return f"{safe_name('__'.join(safe_name(part) for part in parts))}__{self.digest()[:8]}"


class Environment(BaseModel):
    """Where it ran, and how the model was computed there.

    compiled: mode of `torch.compile`; None: not compiled.
    float32: how exact products of single precision were on a CUDA device, `ieee` or `tf32`; None: on another device,
        or not recorded.
    """

    model_config = STRICT
    python: str
    platform: str
    processor: str
    device: str
    threads: int
    deterministic: bool
    packages: dict[str, str]
    revision: str | None
    compiled: str | None = None
    float32: str | None = None


class Passes(BaseModel):
    """Model passes summed over samples (padding not counted)."""

    model_config = STRICT
    forwards: int
    backwards: int
