"""The Hugging Face hub, from which libraries load weights: nothing is logged, and no dead network is waited for."""

import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit
from urllib.request import getproxies


@contextmanager
def silent_hub() -> Iterator[None]:
    """Switch off the log of the hub's client, and its minute of retries where the hub cannot be reached.

    Files that the client has already are found all the same.
    """
    from huggingface_hub import constants

    disabled, offline = logging.root.manager.disable, constants.HF_HUB_OFFLINE
    logging.disable(logging.CRITICAL)
    constants.HF_HUB_OFFLINE = offline or not _reachable(constants.ENDPOINT)
    try:
        yield
    finally:
        logging.disable(disabled)
        constants.HF_HUB_OFFLINE = offline


def _reachable(url: str) -> bool:
    """Tell whether a server answers within a second; true where a proxy stands between, which is not asked."""
    parts = urlsplit(url)
    if getproxies() or parts.hostname is None:
        return True
    try:
        socket.create_connection((parts.hostname, parts.port or 443), timeout=1).close()
    except OSError:
        return False
    return True
