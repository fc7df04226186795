"""What it is called when a storage refuses or does not answer, whichever library asked, and what to do about it."""

from __future__ import annotations

import re

from padir.errors import PadirError, StorageError

# How TensorStore says why a request failed. It raises the same errors for damage, with other statuses.
_STATUS = re.compile(r"\b(UNAVAILABLE|DEADLINE_EXCEEDED|ABORTED|UNAUTHENTICATED|PERMISSION_DENIED)\b")


def no_credentials(said: str) -> tuple[type[PadirError], str]:
    """The storage does not know who asks."""
    return PadirError, (
        f"no valid credentials ({said}); run `gcloud auth application-default login`, or give this machine a service "
        "account"
    )


def no_permission(said: str) -> tuple[type[PadirError], str]:
    """The storage knows who asks, and refuses."""
    return PadirError, (
        f"permission denied ({said}); give this account the roles Storage Object User and Storage Legacy Bucket "
        "Reader of the bucket"
    )


def no_answer(said: str) -> tuple[type[PadirError], str]:
    """The storage is busy, or cannot be reached."""
    return StorageError, f"the storage did not answer, tried several times ({said})"


def of_status(error: Exception) -> tuple[type[PadirError], str] | None:
    """Returns the kind of an error of TensorStore, and the reason with what to do; None if it is of another kind."""
    found = _STATUS.search(str(error))
    if found is None:
        return None
    said = " ".join(str(error).split())[:300]
    kinds = {"UNAUTHENTICATED": no_credentials, "PERMISSION_DENIED": no_permission}
    return kinds.get(found[1], no_answer)(said)
