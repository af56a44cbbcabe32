"""Show what the rehearsal measured; whole, its tests take longer than others may."""

import form
import pytest
import trees


@pytest.fixture(scope="session")
def root(tmp_path_factory):
    """Folders of all sets, made once; `test_stopped.py`, the last that reads them, changes their pictures."""
    folder = tmp_path_factory.mktemp("true")
    whole = ["imagenet", "imagenet-a", "imagenet-o", "imagenet-r", "imagenet-v2", "imagenet-sketch", "ade20k"]
    trees.make(folder, sets=[*whole, *(["imagenet/train", "imagenet-c"] if form.WHOLE else [])])
    if not form.WHOLE:
        trees.make(folder, form.SHARE, ["imagenet/train", "imagenet-c"])
    return folder


def pytest_collection_modifyitems(items):
    """Let no test of the whole form be stopped after ten minutes."""
    for item in items if form.WHOLE else ():
        item.add_marker(pytest.mark.timeout(3600))


def pytest_terminal_summary(terminalreporter):
    """Print the table of seconds and memory."""
    for line in ["| what | n | seconds | of the processor | MB so far |", *form.LINES] if form.LINES else ():
        terminalreporter.write_line(line)
