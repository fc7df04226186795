"""CTranslate2 behind the server of `padir serve`, with an autoregressive model that padir has trained.

Queue, batches, limits and routes are those of `padir serve`; only the decoding is CTranslate2's. So `padir benchmark
serve` compares engines and nothing else. The model is converted in the environment of benchmarks/peers/run.py. The
server needs padir[serve] and ctranslate2 in one environment:

  padir export --run_dir=tatoeba_de_en_ar --output_dir=runs/ar_float32
  peers/bin/ct2-transformers-converter --model runs/ar_float32 --output_dir runs/ctranslate2
  pip install 'ctranslate2>=4.6'
  python benchmarks/peers/serve.py --engine=runs/ctranslate2 --port=8001

With --compare=FILE it serves nothing, but says how many lines of a file both engines translate alike.
"""

from __future__ import annotations

import argparse
import functools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import padir
from padir.decoding.autoregressive import Autoregressive
from padir.decoding.beam import BeamSearch
from padir.files.lines import lines_of
from padir.inference.translation import Translation
from padir.models.kinds import DecodeConfig
from padir.serving.app import Server
from padir.serving.limits import Limits
from padir.serving.listen import listen
from padir.serving.models import ServedModel, batch_sizes
from padir.types import UNK_ID


@dataclass(frozen=True, eq=False)
class EngineModel(ServedModel):
    """A model that CTranslate2 decodes.

    Attributes:
      engine: a ctranslate2.Translator of the same model.
      beam_size: hypotheses of beam search; 1 for greedy.
    """

    engine: Any
    beam_size: int

    @functools.cached_property
    def _ids(self) -> dict[str, int]:
        pieces = self.translator.vocabulary.pieces(range(self.translator.vocabulary.num_pieces))
        return {piece: index for index, piece in enumerate(pieces)}

    def translate(self, sources: Sequence[Sequence[int]], decode: DecodeConfig) -> list[Translation]:
        """Translates one batch; the engine pads and decodes as it likes."""
        vocabulary, longest = self.translator.vocabulary, self.translator.model.max_target_length
        found = self.engine.translate_batch(
            [[*vocabulary.pieces(source[:-1]), "</s>"] for source in sources],
            beam_size=self.beam_size,
            max_decoding_length=longest,
        )
        best = [each.hypotheses[0] for each in found]
        # A pass of the decoder for each token, and one for EOS.
        return [
            Translation(
                vocabulary.decode(self._ids.get(piece, UNK_ID) for piece in pieces), 0.0, *[len(pieces) + 1] * 2
            )
            for pieces in best
        ]


def alike(model: EngineModel, texts: Sequence[str]) -> int:
    """How many of some texts padir and the engine translate to the same text, by the model's decode."""
    sources = [model.tokenize(text, "a line") for text in texts]
    ours = model.translator.translate_ids(sources, model.decode, batch_size=model.sizes[-1])
    theirs = model.translate(sources, model.decode)
    return sum(one.text == other.text for one, other in zip(ours, theirs, strict=True))


def main() -> None:
    """Serves until it is told to stop, or compares the engines."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run_dir", default="tatoeba_de_en_ar", help="the model: its vocabulary and limits")
    parser.add_argument("--engine", required=True, help="folder of the converted model")
    parser.add_argument("--compute_type", default="float32", choices=("float32", "int8"))
    parser.add_argument("--beam_size", type=int, default=1)
    parser.add_argument("--max_batch_size", type=int, default=16)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--port", type=int, default=8001)
    parser.add_argument("--compare", help="file with a text on each line, which both engines translate")
    options = parser.parse_args()

    # Only here, so that the tests, which have a stand-in for it, can import this file.
    import ctranslate2

    engine = ctranslate2.Translator(
        options.engine, compute_type=options.compute_type, intra_threads=options.threads, inter_threads=1
    )
    translator = padir.load(options.run_dir)
    sizes = batch_sizes(options.max_batch_size)
    name = f"CTranslate2 {options.compute_type}"
    decode = Autoregressive() if options.beam_size == 1 else BeamSearch(beam_size=options.beam_size)
    model = EngineModel(name, translator, decode, sizes, engine, options.beam_size)
    if options.compare:
        texts = [line.raw.decode("utf-8") for line in lines_of(options.compare) if line.raw.strip()]
        print(f"{alike(model, texts)} of {len(texts)} lines are translated alike")
        return
    # There is nothing to compile.
    listen(Server([model], Limits(), warm_up=False), host="127.0.0.1", port=options.port)


if __name__ == "__main__":
    main()
