"""What ends a command other than success or a defect."""

import errno


class PadirError(ValueError):
    """Bad input, named clearly: which file, line or option, and what to do about it.

    The `padir` command prints the message as one line and exits with `status`; any other
    exception is a defect of ours and keeps its traceback.
    """

    status = 2


class StorageError(PadirError):
    """Nothing is wrong with the input: its storage failed, and may not another time (EX_IOERR of sysexits.h)."""

    status = 74


# Of a disk or a network, rather than of a path that was given.
_PASSING = (errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN, errno.EHOSTDOWN, errno.EREMOTEIO)


def kind_of(error: Exception) -> type[PadirError] | None:
    """What a user is told of an error as: its own kind of PadirError, StorageError, or None for a defect."""
    if isinstance(error, OSError):
        return StorageError if error.errno in _PASSING else PadirError
    return type(error) if isinstance(error, PadirError) else None


class Preempted(Exception):
    """The job was told to stop, has saved, and ends; the same command goes on from there.

    The `padir` command prints the message and exits with `PREEMPTED_STATUS`.
    """


# EX_TEMPFAIL of sysexits.h: try again later.
PREEMPTED_STATUS = 75


def how_to_install(extra: str) -> str:
    """What a message says of an extra that is missing. (padir is on no index, so that a name would find another's.)"""
    return f"pip install '.[{extra}]' in a clone of padir"
