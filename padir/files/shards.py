"""Dividing input files into shards by their bytes, whatever their size."""

from __future__ import annotations

import dataclasses
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from padir.errors import PadirError
from padir.files.lines import Line, is_compressed, lines_of

_READ_BYTES = 1 << 20


@dataclass(frozen=True)
class Part:
    """The lines of one input file that begin in a range of its bytes.

    Attributes:
      file: its name as given.
      begin, end: the range, `end` exclusive; of a compressed file 0 and its size, for all of it.
      first: number of the first of these lines, counted from 1 in each file.
      lines: how many there are; None where they have not been counted, as in a compressed file.
    """

    file: str
    begin: int
    end: int
    first: int = 1
    lines: int | None = None


def split_inputs(inputs: Sequence[str], shards: int) -> list[list[Part]]:
    """Divides the bytes of all inputs, in their order, into `shards` ranges of the same size.

    A line belongs to the shard in which it begins. So does a compressed file, which cannot be entered in its middle:
    the shard in which its first byte lies has all its lines.

    Args:
      inputs: names of regular files.
      shards: how many ranges; there may be empty ones.

    Returns:
      The parts of each shard, lines not counted yet.

    Raises:
      PadirError: an input is no regular file.
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
            # The first shard that ends beyond it: empty ones are passed over.
            while bounds[shard + 1] <= position:
                shard += 1
            until = stop if is_compressed(name) else min(stop, bounds[shard + 1])
            parts[shard].append(Part(name, position - start, until - start))
            position = until
        start = stop
    return parts


def _size(name: str) -> int:
    status = os.stat(name)
    if not stat.S_ISREG(status.st_mode):
        raise PadirError(f"{name}: is not a regular file, which is needed to divide it into shards")
    return status.st_size


def number_lines(shards: Sequence[Sequence[Part]]) -> list[list[Part]]:
    """Counts the lines of every part of a plain file, so that each knows the number of its first line.

    Every plain file is read once, in order and without looking at its lines, in constant memory.

    Raises:
      PadirError: a file has become shorter.
    """
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
            lines, carry = _count_beginnings(part, carry)
            numbered[-1].append(dataclasses.replace(part, first=first, lines=lines))
            first += lines
    return numbered


def _count_beginnings(part: Part, carry: bool) -> tuple[int, bool]:
    """How many lines begin in a part, and whether one begins at its end; `carry`: whether one does at its beginning."""
    count, left = 0, part.end - part.begin
    with open(part.file, "rb", buffering=0) as stream:
        stream.seek(part.begin)
        while left:
            block = stream.read(min(left, _READ_BYTES))
            if not block:
                raise PadirError(f"{part.file}: has become shorter than {part.end} bytes while it was read")
            ends = block.endswith(b"\n")
            count += carry + block.count(b"\n") - ends
            carry, left = ends, left - len(block)
    return count, carry


def lines_of_parts(parts: Sequence[Part]) -> Iterator[Line]:
    """The lines of a shard, numbered as in their files.

    Raises:
      PadirError: a file cannot be read, or has not the lines that were counted in it.
    """
    for part in parts:
        found = 0
        for line in lines_of(part.file, part.begin, None if is_compressed(part.file) else part.end, part.first):
            found += 1
            yield line
        if part.lines not in (None, found):
            raise PadirError(
                f"{part.file}: {found} lines begin at bytes {part.begin} to {part.end}, of which {part.lines} were "
                "counted: it has changed since; translate it into another folder"
            )
