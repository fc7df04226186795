"""A translator that answers at once: tests of jobs over many lines need no model. Subprocesses import it, too."""

import time

import numpy as np

from padir.data import vocabulary
from padir.decoding.state import Hypotheses
from padir.inference.translator import Translator
from padir.models.padir import PadirModel
from padir.nn.network import NetworkConfig
from padir.types import EOS_ID

LONGEST_SOURCE, LONGEST_TARGET = 40, 80


def train_vocabulary(path):
    """A piece for every character of `sentence`."""
    vocabulary.train([sentence(number) for number in range(300)], path, num_pieces=50)
    return str(path)


def sentence(number):
    """Of 3 to 7 words, another for every number; what goes through the vocabulary comes out unchanged."""
    return " ".join([f"no {number}", "is here", *["now"] * (number % 5)])


class StandIn(Translator):
    """Writes the words of the source, the last first; keeps the lengths of the sources in each batch."""

    def __init__(self, path, *, seconds_per_batch=0.0, step=7):
        self.vocabulary = vocabulary.Vocabulary.load(path)
        self.model = PadirModel(
            self.vocabulary.ids, NetworkConfig(num_encoder_layers=1), LONGEST_SOURCE, LONGEST_TARGET
        )
        self.step, self.batches = step, []
        self.helper, self.verifies_itself, self.compute_type = None, False, None
        self.judge = self.constraint = None
        self.params = self._decoding_params = {"weights": np.arange(3)}
        self._seconds = seconds_per_batch

    def decode_ids(self, sources, decode, lengths=None, automaton=None):
        time.sleep(self._seconds)
        self.batches.append([len(ids) for ids in sources])
        tokens = np.zeros((len(sources), 1, LONGEST_TARGET), np.int32)
        for row, ids in enumerate(sources):
            words = self.vocabulary.decode(ids).split()
            written = [*self.vocabulary.encode(" ".join(reversed(words))), EOS_ID]
            tokens[row, 0, : len(written)] = written
        sizes = np.array([[len(ids)] for ids in sources], np.int32)
        return Hypotheses(tokens, -sizes.astype(np.float32), sizes, np.ones_like(sizes), np.int32(1), None)


def translated(text):
    """What `StandIn` makes of a text."""
    return " ".join(reversed(text.split()))
