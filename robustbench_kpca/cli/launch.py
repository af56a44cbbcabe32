"""`rbk launch`: write what Slurm or Kubernetes needs to run an evaluation or a training."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from robustbench_kpca.cli import _console
from robustbench_kpca.launch.request import Engine

Words = Annotated[list[str] | None, typer.Argument(metavar="-- COMMAND", help="eval or train with its options.")]
Name = Annotated[str, typer.Option(help="Name of the job.")]
Nodes = Annotated[int, typer.Option(min=1, max=10_000, help="Number of machines.")]
Gpus = Annotated[int, typer.Option("--gpus-per-node", min=0, max=64, help="GPUs of each; 0: none.")]
Cpus = Annotated[int, typer.Option("--cpus-per-node", min=1, max=4096, help="Cores of each.")]
Memory = Annotated[
    str, typer.Option("--memory-per-node", help="Memory of each, such as 64G for Slurm, 64Gi for Kubernetes.")
]
Env = Annotated[list[str], typer.Option("--env", help="KEY=VALUE: a variable of the environment. Repeatable.")]
With = Annotated[
    Engine | None,
    typer.Option(
        "--engine",
        help="What spreads the work: by default torchrun for train; for eval processes on one machine, Ray on several.",
        show_default=False,
    ),
]
Out = Annotated[Path | None, typer.Option("--out", "-o", help="File to write; by default it is printed.")]
Print = Annotated[
    bool, typer.Option("--print", help="Print it with --out, too; without, it is printed. Nothing is ever submitted.")
]


def slurm(
    words: Words = None,
    nodes: Nodes = 1,
    gpus: Gpus = 1,
    cpus: Cpus = 8,
    memory: Memory = "",
    time: Annotated[str, typer.Option(help="Limit of time as sbatch takes it; the job goes on after it.")] = "24:00:00",
    name: Name = "rbk",
    sbatch: Annotated[
        list[str], typer.Option(help="Another option of sbatch: KEY=VALUE or KEY, such as partition=gpu. Repeatable.")
    ] = [],  # noqa: B006 (typer reads the default)
    module: Annotated[list[str], typer.Option(help="Environment module to load. Repeatable.")] = [],  # noqa: B006
    venv: Annotated[str, typer.Option(help="Full path of the Python environment that has rbk.")] = "",
    env: Env = [],  # noqa: B006
    engine: With = None,
    out: Out = None,
    print_: Print = False,
) -> None:
    """Print an sbatch script that runs `rbk eval` or `rbk train` on Slurm, and goes on after every interruption."""
    from robustbench_kpca.launch.request import Command, Machines, parse_environment, parse_name, parse_time
    from robustbench_kpca.launch.slurm import Site, script

    command = Command.of(words or [], engine, nodes)
    _understood(command.words)
    machines = Machines(parse_name("--name", name), nodes, gpus, cpus, memory, parse_environment(env))
    _give(script(command, machines, Site(parse_time(time), sbatch, module, venv)), out, shown=print_)


def kubernetes(
    image: Annotated[str, typer.Option(help="Container image that has rbk, and Ray for several machines.")],
    words: Words = None,
    claim: Annotated[
        list[str],
        typer.Option(help="CLAIM:FOLDER: where a volume appears; the first is the working folder. Repeatable."),
    ] = [],  # noqa: B006
    nodes: Nodes = 1,
    gpus: Gpus = 1,
    cpus: Cpus = 8,
    memory: Memory = "",
    name: Name = "rbk",
    namespace: Annotated[str, typer.Option(help="Namespace; by default that of kubectl.")] = "",
    env: Env = [],  # noqa: B006
    engine: With = None,
    out: Out = None,
    print_: Print = False,
) -> None:
    """Print manifests for Kubernetes: a Job for one machine, for several a RayJob of KubeRay.

    Without a command a RayCluster is printed, for several evaluations.
    """
    from robustbench_kpca.launch.kubernetes import Place, manifest, parse_claim
    from robustbench_kpca.launch.request import Command, Machines, parse_environment

    command = Command.of(words, engine, nodes) if words else None
    if command is not None:
        _understood(command.words)
    machines = Machines(name, nodes, gpus, cpus, memory, parse_environment(env))
    place = Place(image, [parse_claim(text) for text in claim], namespace)
    _give(manifest(command, machines, place), out, shown=print_)


def _understood(words: tuple[str, ...]) -> None:
    """Refuse options, protocols and recipes that there are not, now and not after hours in a queue.

    Files, models and data may be on the cluster only, so they are not looked for.
    """
    from robustbench_kpca.cli import evaluate, train
    from robustbench_kpca.cli._evaluating import split_settings
    from robustbench_kpca.protocols.loading import load_scenario
    from robustbench_kpca.strict import parse_assignments
    from robustbench_kpca.training.recipe import load_recipe

    known: dict[str, Callable[..., Any]] = {"eval": evaluate.evaluate, "train": train.train}
    single = typer.Typer(add_completion=False)
    single.command(context_settings={"help_option_names": []})(known[words[0]])
    asked = typer.main.get_command(single).make_context(f"rbk {words[0]}", list(words[1:])).params
    settings = parse_assignments(asked["set_"] or [])
    if words[0] == "train":
        if not asked["recipe"].endswith(".toml"):
            load_recipe(asked["recipe"], settings)
        return
    overrides = split_settings(settings)[1]
    for protocol in asked["protocol"]:
        if not protocol.endswith(".toml"):
            load_scenario(protocol, overrides)


def _give(text: str, out: Path | None, *, shown: bool) -> None:
    from robustbench_kpca.files import write_atomic

    if shown or out is None:
        print(text, end="")
    if out is not None:
        write_atomic(out, text.encode())
        _console.note(f"{out} is written; nothing was submitted")
