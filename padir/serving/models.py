"""The models that a server offers by name, and what of a query each can do."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from padir.decoding.beam import BeamSearch
from padir.decoding.refinement import Refinement
from padir.errors import PadirError
from padir.inference.decoder import SOURCE_BUCKETS, source_width
from padir.inference.trace import LENGTHS_SHOWN, traced, watch, watch_further
from padir.inference.translation import Translation
from padir.inference.translator import Translator
from padir.models.kinds import DecodeConfig
from padir.models.padir import PadirModel
from padir.serving.limits import RequestRefused
from padir.serving.queries import Edit, Query
from padir.types import EOS_ID


@dataclass(frozen=True, eq=False)
class ServedModel:
    """A model that the server offers.

    Attributes:
      name: what clients call it.
      translator: the opened model.
      decode: how it decodes if a query does not say otherwise.
      sizes: the numbers of rows that it is compiled for, ascending.
      examples: texts that the page offers.
    """

    name: str
    translator: Translator
    decode: DecodeConfig
    sizes: tuple[int, ...]
    examples: tuple[str, ...] = field(default=(), kw_only=True)

    @property
    def longest_source(self) -> int:
        """The most tokens that a source may have, EOS counted."""
        return self.translator.longest_source

    def described(self) -> dict[str, Any]:
        """Returns name and kind of the model, whether it refines, and examples, for the page and for clients."""
        model, refines = self.translator.model, isinstance(self.decode, Refinement)
        kind = "padir" if isinstance(model, PadirModel) else "autoregressive"
        told = {"name": self.name, "kind": kind, "refines": refines, "longestSource": self.longest_source}
        if refines:
            told |= {"steps": self.page_decode.num_steps, "lengths": self.page_decode.num_hypotheses}
        return told | {"examples": list(self.examples)}

    @property
    def page_decode(self) -> DecodeConfig:
        """How the page decodes unless its user says otherwise: with several lengths, to compare them."""
        decode = self.decode
        if not isinstance(decode, Refinement) or decode.num_hypotheses > 1:
            return decode
        most = self.translator.model.max_target_length // decode.length_beam
        return dataclasses.replace(decode, num_hypotheses=min(LENGTHS_SHOWN, most))

    def decode_for(self, query: Query) -> DecodeConfig:
        """Returns how a query is decoded.

        Raises:
          RequestRefused: 400 if the model cannot decode so.
        """
        decode = self.decode
        wanted = query.num_hypotheses or (query.alternatives + 1 if query.alternatives else None)
        try:
            if isinstance(decode, Refinement):
                changes = {} if query.steps is None else {"num_steps": query.steps}
                if wanted is not None and (query.num_hypotheses or wanted > decode.hypotheses_per_source):
                    changes |= {"num_hypotheses": wanted}
                changes |= self._all_returned(query, wanted)
                if changes:
                    decode = self.translator.checked(dataclasses.replace(decode, **changes))
                return decode
            for name in ("steps", "num_hypotheses"):
                if getattr(query, name) is not None:
                    raise RequestRefused(400, f"{name}: model {self.name!r} does not decode by refinement")
            if isinstance(decode, BeamSearch) and wanted is not None:
                returned = min(wanted, decode.beam_size)
                decode = self.translator.checked(dataclasses.replace(decode, num_hypotheses=returned))
            return decode
        except PadirError as error:
            raise RequestRefused(400, str(error)) from None

    def _all_returned(self, query: Query, wanted: int | None) -> dict[str, Any]:
        """What a query of several hypotheses changes of a refinement that returns only some of those it decodes."""
        decode, changes = self.decode, {}
        if wanted is not None and decode.likeliest_first:
            changes["likeliest_first"] = False
        if query.alternatives and decode.keep_hypotheses is not None:
            changes["keep_hypotheses"] = None
        elif wanted is not None and decode.keep_hypotheses is not None:
            changes["keep_hypotheses"] = min(decode.keep_hypotheses, wanted)
        return changes

    def tokenize(self, text: str, what: str, *, may_split: bool = False) -> list[int]:
        """Returns the token ids of a text, ending in EOS.

        Args:
          text: the text; not blank (`Translator.is_blank`).
          what: what the message calls it.
          may_split: whether the message says that `split` would help.

        Raises:
          RequestRefused: 413 if it is longer than the model allows.
        """
        ids = [*self.translator.vocabulary.encode(text), EOS_ID]
        longest = self.longest_source
        if len(ids) > longest:
            hint = "; with split=true it is split at its sentence ends" if may_split else ""
            raise RequestRefused(
                413, f"{what}: {len(ids)} tokens are more than the {longest} that the model allows{hint}"
            )
        return ids

    def width(self, ids: Sequence[int]) -> int:
        """Returns the number of tokens that a source is padded to."""
        return source_width(self.translator.model, len(ids))

    def translate(self, sources: Sequence[Sequence[int]], decode: DecodeConfig) -> list[Translation]:
        """Translates one batch, which is padded with copies of its last source to one of `sizes`."""
        rows = next((size for size in self.sizes if size >= len(sources)), len(sources))
        padded = [*sources, *[sources[-1]] * (rows - len(sources))]
        return self.translator.translate_ids(padded, decode, batch_size=rows)[: len(sources)]

    def watch(self, source: Sequence[int], decode: DecodeConfig, text: str) -> tuple[Translation, dict[str, Any]]:
        """Translates one source, and returns the document of its trace with it.

        Of a refinement the document's `timings` also tell, as `served_ms`, how long the same source takes with as many
        steps as a request without a trace, and with the number of lengths that the server decodes by itself.

        Args:
          source: token ids, ending in EOS.
          decode: how.
          text: the source as it was written.
        """
        refines = isinstance(decode, Refinement)
        plain = dataclasses.replace(self.decode, num_steps=decode.num_steps) if refines else None
        return watch(self.translator, source, decode, name=self.name, text=text, plain=plain)

    def go_on(self, edit: Edit, decode: DecodeConfig) -> tuple[Translation, dict[str, Any]]:
        """Goes on from an edited hypothesis, and returns the translation and the document of its trace.

        Raises:
          PadirError: see `continue_from`.
        """
        asked = edit.text, edit.tokens, edit.clamped, edit.length
        return watch_further(self.translator, *asked, decode=decode, name=self.name)

    def warm_up(self) -> list[Callable[[], None]]:
        """Returns a call for each program that queries without options need; each compiles one.

        Those for one source come first, as they are the first that are needed.
        """
        return [
            lambda rows=rows, width=width: self.translate([self._source(width)] * rows, self.decode) and None
            for rows in self.sizes
            for width in self._widths
        ]

    def warm_up_page(self) -> list[Callable[[], None]]:
        """Returns a call for each width that the page needs besides, for sentences of up to 32 tokens.

        It compiles the trace and going on from an edited hypothesis.
        """
        return [lambda width=width: self._watch_any(width) for width in self._widths if width <= 32]

    def _watch_any(self, width: int) -> None:
        source, translator = self._source(width), self.translator
        watch(translator, source, self.page_decode)
        if isinstance(self.decode, Refinement) and translator.constraint is None:
            # Some decode in a way that nothing goes on from; then the page is told so.
            with contextlib.suppress(PadirError):
                translator.continue_ids(source, [EOS_ID], [False], traced(self.decode))

    @property
    def _widths(self) -> list[int]:
        prefix, longest = self.translator.model.source_prefix, self.longest_source
        widths = {self.width([EOS_ID]), longest}
        return sorted(widths | {bucket - prefix for bucket in SOURCE_BUCKETS if 1 <= bucket - prefix < longest})

    def _source(self, length: int) -> list[int]:
        # Any piece will do.
        return [*[self.translator.vocabulary.num_pieces - 1] * (length - 1), EOS_ID]


def batch_sizes(largest: int) -> tuple[int, ...]:
    """Returns the numbers of rows that programs are compiled for: powers of 4 below the largest batch, and that.

    With powers of 2, batches would have less padding, but starting would take longer.

    Raises:
      PadirError: `largest` is no power of 2.
    """
    if largest < 1 or largest & (largest - 1):
        raise PadirError(f"serve.max_batch_size: {largest} is not a power of 2")
    return (*(size for size in (1, 4, 16, 64, 256) if size < largest), largest)
