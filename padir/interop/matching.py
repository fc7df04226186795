"""What the importers share: whose rows are whose, and what does not fit, by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from padir.errors import PadirError
from padir.models.kinds import Model
from padir.types import PAD_ID, Array, PyTree, TokenIds

# Rows and pieces of the vocabulary that T5 and its descendants were published with.
T5_ROWS, T5_PIECES = 32_128, 32_000


class Imported(NamedTuple):
    """A model and its parameters, as `model.init` lays them out: float32 `jax.Array`s."""

    model: Model
    params: PyTree


def token_ids(rows: int, num_pieces: int | None, *, parallel: bool) -> TokenIds:
    """How the rows of a foreign embedding table are to be read.

    Args:
      rows: of the table. T5's have some beyond the vocabulary, so they do not tell how many pieces there are.
      num_pieces: of the vocabulary; None if it is not known. Then T5's own 32,128 rows are read as its 32,000
        pieces, 100 extra ids and padding; the last 100 rows of another parallel model as its extra ids; and every
        row of another autoregressive model as something that it may write.
      parallel: of a PaDIR model, which has a MASK, BOS and LENGTH on top.

    Returns:
      Ids whose `vocab_size` is `rows`; but where a parallel model's rows are too few for its extra ids, those that the
      vocabulary asks for.

    Raises:
      PadirError: fewer rows than pieces, or than the extra ids need.
    """
    if num_pieces is None:
        if rows == T5_ROWS:
            num_pieces = T5_PIECES
        elif not parallel:
            num_pieces = rows
        elif rows <= TokenIds.extra_ids:
            raise PadirError(f"{rows} token ids are too few for pieces and 100 extra ids; give the model itself")
        else:
            num_pieces = rows - TokenIds.extra_ids
    if num_pieces > rows:
        raise PadirError(
            f"the vocabulary has {num_pieces} pieces, but the checkpoint has embeddings of only {rows} token ids; "
            "use the SentencePiece model that the checkpoint was trained with (for data: PrepareSettings.vocabulary)"
        )
    usual = TokenIds(num_pieces)
    fits = usual.unpadded_size <= rows <= usual.vocab_size
    ids = usual if fits or (parallel and rows < usual.vocab_size) else TokenIds(num_pieces, extra_ids=rows - num_pieces)
    return ids if rows == ids.vocab_size or rows < ids.unpadded_size else dataclasses.replace(ids, rows=rows)


def fill_rows(table: np.ndarray | Array, rows: int) -> np.ndarray | Array:
    """Pads a table [r, E] to [rows, E] with copies of padding's row.

    No text has the new ids and no decoding may write them. In a loss they count as padding does, which every
    trained model finds all but impossible; rows of zeros would not be.
    """
    arrays = jnp if isinstance(table, jax.Array) else np
    return arrays.concatenate([table, arrays.repeat(table[PAD_ID : PAD_ID + 1], rows - len(table), axis=0)])


def real_rows(tables: Sequence[np.ndarray], ids: TokenIds) -> int:
    """How many rows are left of tables [V, E] without those at the end that `fill_rows` made, pieces at least."""
    filled = np.logical_and.reduce([(table == table[PAD_ID]).all(axis=-1) for table in tables])
    return max(ids.num_pieces, int(np.flatnonzero(~filled).max(initial=-1)) + 1)


def check(source: str, wanted: Mapping[str, tuple[int, ...]], given: Mapping[str, tuple[int, ...]]) -> None:
    """Raises PadirError if names or shapes differ; lists every missing and unexpected name and every other shape."""
    shapes = [
        f"{name} is {list(given[name])} there, {list(wanted[name])} in the model"
        for name in wanted
        if name in given and tuple(given[name]) != tuple(wanted[name])
    ]
    parts = {
        "missing": sorted(wanted.keys() - given.keys()),
        "unexpected": sorted(given.keys() - wanted.keys()),
        "of another shape": shapes,
    }
    problems = [f"{len(names)} {what}: {', '.join(names)}" for what, names in parts.items() if names]
    if problems:
        raise PadirError(f"{source}: parameters do not fit the model; {'; '.join(problems)}")
