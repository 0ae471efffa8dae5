"""The hub of models and data sets: whether it answers, found out in seconds. Its libraries try for half a minute and more."""

from __future__ import annotations

import os
import ssl
import threading
import urllib.error
import urllib.request
from typing import Any

PATIENCE_SECONDS = 5.0


def answers() -> bool:
    """Whether the hub can be reached from here, at HF_ENDPOINT and by the proxy of this environment."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return False
    found = threading.Event()
    url = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"

    def ask() -> None:
        try:
            with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=PATIENCE_SECONDS):
                found.set()
        except (urllib.error.HTTPError, ssl.SSLError):
            found.set()  # Somebody is there. What it thinks of the request is for the library to say.
        except urllib.error.URLError as error:
            if isinstance(error.reason, ssl.SSLError):
                found.set()
        except (OSError, ValueError):
            pass

    # A thread, since nothing bounds the time that the resolver takes.
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(PATIENCE_SECONDS)
    return found.is_set()


def rows(dataset: str, split: str) -> Any:
    """A data set of the hub. Where the hub does not answer, it is the copy of an earlier run, if there is one.

    Raises:
        OSError: there is neither; or the package `datasets` is not installed (ImportError).
    """
    if not answers():
        os.environ["HF_HUB_OFFLINE"] = "1"  # Read when it is imported: what is not here is refused at once.
    import datasets

    try:
        return datasets.load_dataset(dataset, split=split)
    except ValueError as error:  # as it says that there is no copy of this split
        raise OSError(str(error)) from error
