"""SentencePiece vocabularies: training, encoding text to ids, and decoding ids to text (no TensorFlow).

The lowest ids are 0 for pad, 1 for EOS and 2 for UNK. The other pieces follow; the SentencePiece model has `num_pieces`
ids in total. Above them are 100 extra ids, among them MASK, BOS and LENGTH; see `padir.types.TokenIds`. No encoded text
contains extra ids.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
from collections.abc import Iterable
from pathlib import Path

import sentencepiece

from padir.errors import PadirError
from padir.files.atomic import write_bytes
from padir.files.paths import as_path
from padir.types import EOS_ID, PAD_ID, UNK_ID, TokenIds

# Below this number of sentences every character gets a piece. Rare characters cost few pieces, but the model can
# never write a target word that contains an UNK.
SMALL_CORPUS_SENTENCES = 500_000

# Fixed, because SentencePiece's sums depend on the number of threads and the model must not depend on the machine.
TRAINING_THREADS = 4


def train(
    sentences: Iterable[str],
    path: str | os.PathLike,
    *,
    num_pieces: int,
    model_type: str = "unigram",
    byte_fallback: bool = False,
    character_coverage: float | None = None,
) -> None:
    """Trains a SentencePiece model. The same sentences always give the same bytes.

    Args:
      sentences: training text of both languages, one sentence per item; held in memory.
      path: the model file, which is written atomically.
      num_pieces: size of the model, including pad, EOS, UNK and, with `byte_fallback`, the 256 byte pieces.
      model_type: 'unigram' or 'bpe'. On text with few different words, unigram keeps only substrings that several
        words share, while BPE goes on until whole words are pieces.
      byte_fallback: whether to spell unknown characters as bytes instead of UNK.
      character_coverage: share of the text's characters for which the model must have a piece. None chooses 1.0 for
        fewer than 500,000 sentences and 0.9995 otherwise.

    Raises:
      PadirError: the text is empty, or it supports fewer pieces or needs more pieces than `num_pieces`.
    """
    texts = list(sentences)
    if not texts:
        raise PadirError("vocabulary: there is no training text to learn pieces from")
    if character_coverage is None:
        character_coverage = 1.0 if len(texts) < SMALL_CORPUS_SENTENCES else 0.9995
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts),
            model_writer=model,
            model_type=model_type,
            vocab_size=num_pieces,
            character_coverage=character_coverage,
            byte_fallback=byte_fallback,
            num_threads=TRAINING_THREADS,
            pad_id=PAD_ID,
            eos_id=EOS_ID,
            unk_id=UNK_ID,
            bos_id=-1,
            hard_vocab_limit=True,
            # In bytes; SentencePiece silently skips longer sentences.
            max_sentence_length=max(4192, *(len(text.encode()) for text in texts)),
            minloglevel=2,
        )
    except (RuntimeError, OSError) as error:
        raise PadirError(_training_message(str(error), num_pieces, len(texts))) from error
    write_bytes(path, model.getvalue())


def _training_message(message: str, num_pieces: int, num_sentences: int) -> str:
    """Turns SentencePiece's error message, which quotes its source code, into one line that says what to do."""
    if too_many := re.search(r"too high \(\d+\)\. Please set it to a value <= (\d+)", message):
        return (
            f"vocabulary: num_pieces={num_pieces} is more than {num_sentences} training sentences support; "
            f"the largest possible value is {too_many[1]}"
        )
    if too_few := re.search(r"smaller than required_chars\. \d+ vs (\d+)", message):
        return (
            f"vocabulary: num_pieces={num_pieces} is too small for the characters of the text; "
            f"it must be above {too_few[1]}, or lower character_coverage"
        )
    if "all_chars_count" in message or "sentences_.empty()" in message:
        return (
            f"vocabulary: no usable text in {num_sentences} training sentences; SentencePiece's normalisation removes "
            "all of their characters"
        )
    return f"vocabulary: SentencePiece could not learn {num_pieces} pieces: {' '.join(message.split())}"


class Vocabulary:
    """A SentencePiece model and the reserved ids around it.

    Attributes:
      path: the model file.
      hash: SHA-256 of the model file in hexadecimal. Two vocabularies with the same hash are the same.
      num_pieces: size of the SentencePiece model, including pad, EOS and UNK.
      ids: the reserved ids above the pieces.
    """

    def __init__(self, path: Path, model: bytes):
        self.path = path
        self.hash = hashlib.sha256(model).hexdigest()
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        self.num_pieces = self._processor.get_piece_size()
        self.ids = TokenIds(self.num_pieces)

    @classmethod
    def load(cls, path: str | os.PathLike) -> Vocabulary:
        """Reads a model file.

        Raises:
          PadirError: the file cannot be read, is not a SentencePiece model, or has other ids for pad, EOS and UNK.
        """
        path = as_path(path)
        try:
            model = path.read_bytes()
        except OSError as error:
            raise PadirError(f"{path}: cannot read the vocabulary: {error.strerror}") from error
        try:
            vocabulary = cls(path, model)
        except RuntimeError as error:
            raise PadirError(f"{path}: not a SentencePiece model") from error
        processor = vocabulary._processor
        found = (processor.pad_id(), processor.eos_id(), processor.unk_id())
        if found != (PAD_ID, EOS_ID, UNK_ID):
            raise PadirError(
                f"{path}: pad, EOS and UNK have ids {found} but must have (0, 1, 2); train the model with these ids"
            )
        return vocabulary

    def encode(self, text: str) -> list[int]:
        """Returns the ids of a text, without EOS."""
        return self._processor.encode(text)

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        """Returns the ids of each text, without EOS."""
        return self._processor.encode(texts)

    def decode(self, ids: Iterable[int]) -> str:
        """Returns the text of ids as one line. Decoding stops at the first EOS and ignores pad and reserved ids."""
        # Byte pieces can spell a line break, which would shift all later lines of an output file.
        return " ".join(self._processor.decode(self._text_ids(ids)).split())

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Returns a printable name for each id, including EOS and reserved ids, for figures of decoding."""
        reserved = self.ids
        names = {PAD_ID: "<pad>", EOS_ID: "</s>"}
        names |= {reserved.mask_id: "<mask>", reserved.bos_id: "<s>", reserved.length_id: "<len>"}
        return [
            names.get(int(i)) or (self._processor.id_to_piece(int(i)) if int(i) < self.num_pieces else f"<{int(i)}>")
            for i in ids
        ]

    def pieces_as_written(self, text: str) -> list[str]:
        """Returns the pieces of a text, without EOS, as `encode` cuts it; what no piece spells stands as written."""
        return self._processor.encode(text, out_type=str)

    def spellings(self) -> list[str | None]:
        """The characters that each piece spells, with spaces; None of ids that spell none by themselves.

        Those are pad, EOS and other control pieces, UNK, and pieces that stand for a single byte.
        """
        processor = self._processor
        silent = (processor.is_control, processor.is_unknown, processor.is_byte, processor.is_unused)
        return [
            None if any(kind(i) for kind in silent) else processor.id_to_piece(i).replace("\u2581", " ")
            for i in range(self.num_pieces)
        ]

    def _text_ids(self, ids: Iterable[int]) -> list[int]:
        kept, num_pieces = [], self.num_pieces
        for i in map(int, ids):
            if i == EOS_ID:
                break
            if i != PAD_ID and i < num_pieces:
                kept.append(i)
        return kept
