"""Tasks, such as classification: one folder per task. A data set names its task; other packages use `task_named`."""

from robustbench_kpca._core.registry import Family
from robustbench_kpca.tasks.task import Task

TASKS = Family("task", __name__, "TASK", folders=True, by_address=False)


def task_named(name: str) -> Task:
    """Return the task called `name`.

    Raises:
        UnknownNameError: there is no such task; the message suggests the closest name.
    """
    task: Task = TASKS.get(name)
    return task
