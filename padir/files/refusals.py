"""What it is called when a storage refuses or does not answer, whichever library asked, and what to do about it."""

from __future__ import annotations

import re

from padir.errors import PadirError, StorageError

# How TensorStore says why a request failed. It raises the same errors for damage, with other statuses.
_STATUS = re.compile(r"\b(UNAVAILABLE|DEADLINE_EXCEEDED|ABORTED|UNAUTHENTICATED|PERMISSION_DENIED)\b")


def no_credentials(path: object, said: str) -> PadirError:
    """The storage does not know who asks for `path`, and has `said` so."""
    return PadirError(
        f"{path}: no valid credentials ({said}); run `gcloud auth application-default login`, or give this machine a "
        "service account"
    )


def no_permission(path: object, said: str) -> PadirError:
    """The storage knows who asks, and refuses."""
    return PadirError(
        f"{path}: permission denied ({said}); give this account the roles Storage Object User and Storage Legacy "
        "Bucket Reader of the bucket"
    )


def no_answer(path: object, said: str) -> StorageError:
    """The storage is busy, or cannot be reached."""
    return StorageError(f"{path}: the storage did not answer after several tries ({said})")


def of_status(path: object, error: Exception) -> PadirError | None:
    """What an error of TensorStore about `path` is called; None if no storage has refused anything."""
    found = _STATUS.search(str(error))
    if found is None:
        return None
    kinds = {"UNAUTHENTICATED": no_credentials, "PERMISSION_DENIED": no_permission}
    return kinds.get(found[1], no_answer)(path, " ".join(str(error).split())[:300])
