"""Where a translation comes from: what a view of it needs besides its trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from padir.data.vocabulary import Vocabulary
from padir.models.kinds import DecodeConfig


@dataclass(frozen=True)
class Origin:
    """Where a translation comes from.

    Attributes:
      vocabulary: of source and target.
      decode: the configuration that it was decoded with.
      source: token ids, ending in EOS.
      tokens: token ids of the best hypothesis, without padding.
      steps_run: decoder passes of each hypothesis until it stopped, best first.
      clamped: of a hypothesis that somebody has edited, which positions no step could change; otherwise empty.
      edited: its tokens as they were before the first step; otherwise empty.
    """

    vocabulary: Vocabulary
    decode: DecodeConfig
    source: Sequence[int]
    tokens: Sequence[int]
    steps_run: Sequence[int]
    clamped: Sequence[bool] = ()
    edited: Sequence[int] = ()
