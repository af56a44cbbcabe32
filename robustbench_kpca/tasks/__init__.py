"""What can be evaluated: one folder a task. A data set names its task; no other room asks which one it is."""

from robustbench_kpca.registry import Family
from robustbench_kpca.tasks.task import Task

TASKS = Family("task", __name__, "TASK", folders=True)


def task_named(name: str) -> Task:
    """Return the task called `name`.

    Raises:
        UnknownNameError: there is no such task.

    """
    task: Task = TASKS.get(name)
    return task
