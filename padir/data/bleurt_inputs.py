"""The inputs of BLEURT-20: the files of its checkpoint, and pairs of sentences as ids (no TensorFlow).

A checkpoint is the folder that BLEURT's authors distribute: a TensorFlow SavedModel (saved_model.pb, variables/) and
`bleurt_config.json`. This file names the SentencePiece model beside it ('sp_model', without the suffix .model), the
longest input ('max_seq_length') and whether shorter inputs need no padding ('dynamic_seq_length').

A pair of sentences becomes these arrays (Sellam et al., 2020; Pu et al., 2021)::

    input_ids     [CLS] reference [SEP] candidate [SEP] 0 …
    input_mask    1     1         1     1         1     0 …
    segment_ids   0     0         0     1         1     0 …
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import sentencepiece

from padir.errors import PadirError
from padir.files.paths import local_path

CONFIG_NAME = "bleurt_config.json"
MODEL_NAME = "saved_model.pb"
# The number of special pieces in an input: [CLS] and two [SEP].
_MARKS = 3


@dataclass(frozen=True)
class BleurtCheckpoint:
    """A checkpoint folder that contains all required files.

    Attributes:
      folder: the folder.
      name: the name in its configuration, e.g. 'BLEURT-20'.
      sentencepiece_file: its SentencePiece model.
      max_length: length of the longest input, in ids.
      dynamic: whether the model takes shorter inputs without padding.
    """

    folder: Path
    name: str
    sentencepiece_file: Path
    max_length: int
    dynamic: bool

    @classmethod
    def open(cls, folder: str | os.PathLike) -> BleurtCheckpoint:
        """Reads the configuration of a checkpoint and checks that its files exist.

        Raises:
          PadirError: a file is missing or damaged, or the checkpoint is older than BLEURT-20 and has no SentencePiece
            model.
        """
        # TensorFlow reads it.
        folder = local_path(folder)
        hint = "give the unzipped folder of a BLEURT-20 checkpoint"
        try:
            config = json.loads((folder / CONFIG_NAME).read_text(encoding="utf-8"))
        except OSError as error:
            raise PadirError(f"{folder / CONFIG_NAME}: {error.strerror}; {hint}") from error
        except ValueError as error:
            raise PadirError(f"{folder / CONFIG_NAME}: damaged ({error}); {hint}") from error
        if not config.get("sp_model"):
            raise PadirError(f"{folder}: has no SentencePiece model because it is older than BLEURT-20; {hint}")
        try:
            checkpoint = cls(
                folder=folder,
                name=str(config["name"]),
                sentencepiece_file=folder / f"{config['sp_model']}.model",
                max_length=int(config["max_seq_length"]),
                dynamic=bool(config.get("dynamic_seq_length", False)),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise PadirError(f"{folder / CONFIG_NAME}: damaged ({error!r}); {hint}") from error
        for path in (checkpoint.sentencepiece_file, folder / MODEL_NAME):
            if not path.is_file():
                raise PadirError(f"{path}: no such file; {hint}")
        return checkpoint


class BleurtEncoder:
    """Encodes pairs of texts as ids."""

    def __init__(self, checkpoint: BleurtCheckpoint):
        """Loads the SentencePiece model.

        Raises:
          PadirError: the file is not a SentencePiece model, or has no pieces [CLS] and [SEP].
        """
        self._room = checkpoint.max_length - _MARKS
        path = checkpoint.sentencepiece_file
        try:
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=path.read_bytes())
        except RuntimeError as error:
            raise PadirError(f"{path}: not a SentencePiece model") from error
        self._begin, self._end = (self._processor.piece_to_id(piece) for piece in ("[CLS]", "[SEP]"))
        if self._processor.unk_id() in (self._begin, self._end):
            raise PadirError(f"{path}: has no pieces [CLS] and [SEP]; it is not the SentencePiece model of BLEURT-20")

    def __call__(self, reference: str, candidate: str) -> tuple[list[int], list[int]]:
        """Encodes one pair without padding; returns its ids and segment ids, at most `max_length` of each.

        If the pair is too long, the end of the longer text is cut off until both texts have the same length. After
        that, both are shortened in turn.
        """
        first, second = (self._processor.encode(text) for text in (reference, candidate))
        if len(first) + len(second) > self._room:
            shorter = min(len(first), len(second))
            if 2 * shorter >= self._room:
                first, second = first[: self._room - self._room // 2], second[: self._room // 2]
            else:
                first, second = first[: self._room - shorter], second[: self._room - shorter]
        ids = [self._begin, *first, self._end, *second, self._end]
        return ids, [0] * (len(first) + 2) + [1] * (len(second) + 1)


def padded(pairs: Sequence[tuple[list[int], list[int]]], length: int) -> dict[str, np.ndarray]:
    """A padded batch under the names of the model's signature.

    Args:
      pairs: ids and segment ids of each pair, from `BleurtEncoder`.
      length: the padded length.

    Returns:
      {'input_ids', 'input_mask', 'segment_ids'}, each int64 [B, length].
    """
    batch = {name: np.zeros((len(pairs), length), np.int64) for name in ("input_ids", "input_mask", "segment_ids")}
    for row, (ids, segments) in enumerate(pairs):
        batch["input_ids"][row, : len(ids)] = ids
        batch["input_mask"][row, : len(ids)] = 1
        batch["segment_ids"][row, : len(ids)] = segments
    return batch
