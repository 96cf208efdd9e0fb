"""Processes that do not outlive the one that started them."""

import multiprocessing
import os
import threading


def end_with_parent() -> None:
    """Let this process of `multiprocessing` end when the one that started it does, even if that one is killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, name="parent", daemon=True).start()
