"""Division of input files into shards of equal size in bytes."""

from __future__ import annotations

import dataclasses
import stat
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from padir.errors import PadirError
from padir.files.lines import Line, is_compressed, lines_of
from padir.files.paths import as_path, is_bucket
from padir.files.reading import open_for_reading

_READ_BYTES = 1 << 20
# Parts of objects that are read at once.
_AT_ONCE = 8


@dataclass(frozen=True)
class Part:
    """The lines of one input file that begin in a range of its bytes.

    Attributes:
      file: the name of the file as given.
      begin: the start of the range; 0 for a compressed file.
      end: the end of the range, exclusive; the compressed size for a compressed file.
      first: the number of the first line, counted from 1 in each file.
      lines: the number of lines; None if they have not been counted, as in a compressed file.
    """

    file: str
    begin: int
    end: int
    first: int = 1
    lines: int | None = None


def split_inputs(inputs: Sequence[str], shards: int) -> list[list[Part]]:
    """Divides the bytes of all inputs, in their order, into `shards` ranges of the same size.

    A line belongs to the shard in which it begins. A compressed file can only be read from its start, so all its lines
    belong to the shard in which the file begins.

    Args:
      inputs: the names of regular files.
      shards: the number of shards; some may be empty.

    Returns:
      The parts of each shard, with lines not counted yet.

    Raises:
      PadirError: an input is not a regular file.
    """
    sizes = [_size(name) for name in inputs]
    total = sum(sizes)
    bounds = [total * shard // shards for shard in range(shards + 1)]
    parts: list[list[Part]] = [[] for _ in range(shards)]
    start, shard = 0, 0
    for name, size in zip(inputs, sizes, strict=True):
        stop = start + size
        position = start
        while position < stop:
            # Finds the first shard that ends beyond this position; empty shards are skipped.
            while bounds[shard + 1] <= position:
                shard += 1
            until = stop if is_compressed(name) else min(stop, bounds[shard + 1])
            parts[shard].append(Part(name, position - start, until - start))
            position = until
        start = stop
    return parts


def _size(name: str) -> int:
    status = as_path(name).stat()
    if not stat.S_ISREG(status.st_mode):
        raise PadirError(f"{name}: is not a regular file; only regular files can be divided into shards")
    return status.st_size


def number_lines(shards: Sequence[Sequence[Part]]) -> list[list[Part]]:
    """Counts the lines of the parts of plain files, and numbers the first line of each part.

    Every plain file is read once, in constant memory; of files in a bucket several parts at once.

    Args:
      shards: the parts of each shard, as returned by `split_inputs`.

    Returns:
      The same parts with `first` and `lines` set. Parts of compressed files do not change.

    Raises:
      PadirError: a file became shorter.
    """
    plain = [part for parts in shards for part in parts if not is_compressed(part.file)]
    if any(is_bucket(part.file) for part in plain):
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            counts = iter(list(pool.map(_count_ends, plain)))
    else:
        counts = map(_count_ends, plain)
    numbered = []
    carry, first = True, 1
    for parts in shards:
        numbered.append([])
        for part in parts:
            if is_compressed(part.file):
                numbered[-1].append(part)
                continue
            if part.begin == 0:
                carry, first = True, 1
            ends, last = next(counts)
            # A line begins after each end, except that the one after the last byte begins in the next part.
            lines, carry = carry + ends - last, last
            numbered[-1].append(dataclasses.replace(part, first=first, lines=lines))
            first += lines
    return numbered


def _count_ends(part: Part) -> tuple[int, bool]:
    """Returns how many lines end in a part, and whether one ends with its last byte."""
    count, left, last = 0, part.end - part.begin, False
    with open_for_reading(part.file, end=part.end, buffering=0) as stream:
        stream.seek(part.begin)
        while left:
            block = stream.read(min(left, _READ_BYTES))
            if not block:
                raise PadirError(f"{part.file}: became shorter than {part.end} bytes while it was read")
            count, last, left = count + block.count(b"\n"), block.endswith(b"\n"), left - len(block)
    return count, last


def lines_of_parts(parts: Sequence[Part]) -> Iterator[Line]:
    """Yields the lines of a shard, numbered as in their files.

    Raises:
      PadirError: a file cannot be read, or its number of lines has changed since they were counted.
    """
    for part in parts:
        found = 0
        for line in lines_of(part.file, part.begin, None if is_compressed(part.file) else part.end, part.first):
            found += 1
            yield line
        if part.lines not in (None, found):
            raise PadirError(
                f"{part.file}: has changed: {found} lines begin at bytes {part.begin} to {part.end}, but {part.lines} "
                "were counted at the start of the job; translate it into another folder"
            )
