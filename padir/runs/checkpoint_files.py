"""The files of a checkpoint: whether they are whole, and what becomes of those that are not."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from padir.errors import PadirError, kind_of
from padir.files import refusals
from padir.files.atomic import remove_folder
from padir.files.checksums import check_files, read_checksums
from padir.files.paths import is_bucket
from padir.runtime.distributed import say

# Where Orbax keeps the metrics of a checkpoint, here its validation loss.
LOSS_FILE = Path("metrics", "metrics")

# The suffix that Orbax gives a checkpoint's folder until the save is complete.
HALF_WRITTEN = ".orbax-checkpoint-tmp*"

# Orbax's last file of a checkpoint in a bucket: without it the checkpoint does not count.
COMMIT_FILE = "commit_success.txt"


class DamagedCheckpointError(PadirError):
    """A checkpoint exists, but its content cannot be read or has changed since it was saved."""


def has_ema(folder: Path) -> bool:
    """Whether a checkpoint was saved with a moving average, even if its files are now missing."""
    with naming_damage(folder):
        return (folder / "ema").is_dir() or any(name.startswith("ema/") for name in read_checksums(folder) or ())


def check_parts(folder: Path, items: Iterable[str]) -> bool:
    """Verifies the checksums of some parts of a checkpoint.

    Returns:
      False if the checkpoint has no checksums, because an older padir saved it.

    Raises:
      DamagedCheckpointError: a file has changed since it was saved.
    """
    with naming_damage(folder):
        if (hashes := read_checksums(folder)) is None:
            return False
        check_files(folder, items, hashes)
        return True


@contextlib.contextmanager
def naming_damage(folder: Path) -> Iterator[None]:
    """Turns the errors of reading a checkpoint into PadirErrors that name its folder."""
    try:
        yield
    except (ValueError, KeyError, TypeError, FileNotFoundError) as error:
        if isinstance(error, PadirError):
            raise
        # TensorStore raises ValueError for this and for damage.
        if refused := refusals.of_status(folder, error):
            raise (refused if is_bucket(folder) else PadirError(f"{folder}: cannot be read ({error})")) from error
        reason = (str(error).strip() or repr(error)).splitlines()[0][:300]
        raise DamagedCheckpointError(f"{folder}: cannot be restored; it is damaged ({reason})") from error
    except Exception as error:
        if (known := kind_of(error)) is None:
            with naming_storage(folder):
                raise
        # The storage failed, not this checkpoint: older checkpoints could not be read either.
        raise known(f"{folder}: cannot be read ({error})") from error


@contextlib.contextmanager
def naming_storage(folder: Path) -> Iterator[None]:
    """Turns the errors of what Orbax asks a bucket with into PadirErrors that name the folder and what to do."""
    try:
        yield
    except Exception as error:
        if isinstance(error, PadirError) or not is_bucket(folder):
            raise
        refused = refusals.of_status(folder, error)
        if type(error).__module__.split(".")[0] in ("google", "requests", "aiohttp"):
            from padir.files import objects

            refused = objects.explained(folder, error)
        if refused is None:
            raise
        raise refused from error


def tidy(folder: Path) -> None:
    """Removes incomplete saves and unreadable losses, which Orbax would fail to read, and reports each."""
    for path in _half_written(folder):
        remove_folder(path, ignore_errors=True)
        removed = "could not be removed" if path.exists() else "removed"
        say(f"{path}: incomplete, because its save was killed; {removed}")
    for path in sorted(folder.glob(f"*/{LOSS_FILE}")):
        content = path.read_bytes()
        try:
            json.loads(content)["loss"] + 0.0
        except (ValueError, KeyError, TypeError):
            say(f"{path}: damaged and removed; its checkpoint does not count among the best")
            remove_folder(path.parent)


def _half_written(folder: Path) -> list[Path]:
    """The checkpoints whose save was killed. In a bucket they are those without Orbax's last file."""
    if not is_bucket(folder):
        return sorted(folder.glob(f"*{HALF_WRITTEN}"))
    return [path for path in folder.glob("[0-9]*") if path.name.isdigit() and not (path / COMMIT_FILE).exists()]
