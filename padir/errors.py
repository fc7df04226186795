"""The one exception type that means "the user can fix this" (layer 0)."""


class PadirError(ValueError):
    """Bad input, named clearly: which file, line or option, and what to do about it.

    The `padir` command prints the message as one line and exits with status 2; any other
    exception is a defect of ours and keeps its traceback.
    """
