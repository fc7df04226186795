"""A stand-in for a causal model of Transformers and for PyTorch, in NumPy: the interface that the adapter uses."""

import contextlib
from types import SimpleNamespace

import numpy as np

PAD, BOS, EOS = 0, 1, 2
CHARACTERS = "\n !()*,=[]_" + "0123456789" + "abcdefghijklmnopqrstuvwxyz" + "'+-:.ABCDEFGHIJKLMNOPQRSTUVWXYZ"
LAYERS, WIDTH = 2, 4


class Tensor(np.ndarray):
    """An array with the methods of a tensor that are called."""

    def float(self):
        return self.astype(np.float32).view(Tensor)

    def cpu(self):
        return self

    def numpy(self):
        return np.asarray(self)


def tensor(values):
    return np.asarray(values).view(Tensor)


torch = SimpleNamespace(tensor=lambda values, device=None: np.array(values), inference_mode=contextlib.nullcontext)


class Cache:
    """Keys and values: here the tokens themselves."""

    def __init__(self):
        self.tokens = []

    def get_seq_length(self):
        return len(self.tokens)

    def crop(self, length):
        del self.tokens[length:]


class WindowCache(Cache):
    """One that cannot be cut."""

    def crop(self, length):
        raise RuntimeError("some states are lost")


class Tokenizer:
    """A token for each character."""

    bos_token_id, eos_token_id = BOS, EOS

    def __len__(self):
        return 3 + len(CHARACTERS)

    def encode(self, text, add_special_tokens):
        assert not add_special_tokens
        return [3 + CHARACTERS.index(character) for character in text]

    def decode(self, tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False):
        del clean_up_tokenization_spaces
        special = {PAD: "<pad>", BOS: "<s>", EOS: "</s>"}
        return "".join(
            ("" if skip_special_tokens else special[token]) if token in special else CHARACTERS[token - 3]
            for token in tokens
        )


class Model:
    """A model whose logits of the next token are any function of all tokens.

    Attributes:
      logits_of: (tokens) → [V].
      reads: how many tokens each call was given.
    """

    def __init__(self, logits_of=None, cache=Cache):
        self.logits_of, self.cache, self.reads = logits_of or random_logits, cache, []
        self.config, self.device = SimpleNamespace(num_hidden_layers=LAYERS), "cpu"

    def __call__(self, input_ids, use_cache, output_hidden_states, past_key_values=None):
        assert use_cache and output_hidden_states and input_ids.shape[0] == 1
        cache = past_key_values or self.cache()
        self.reads.append(input_ids.shape[1])
        logits, hidden = [], []
        for token in input_ids[0].tolist():
            cache.tokens.append(token)
            logits.append(self.logits_of(cache.tokens))
            hidden.append([hidden_of(cache.tokens, layer) for layer in range(LAYERS + 1)])
        states = np.swapaxes(np.array(hidden), 0, 1)
        return SimpleNamespace(
            logits=tensor([logits]), hidden_states=tuple(tensor([state]) for state in states), past_key_values=cache
        )


def random_logits(tokens):
    return np.random.default_rng(tokens).normal(size=len(Tokenizer()))


def hidden_of(tokens, layer):
    """[layer, how many tokens, the last one, their sum]."""
    return [layer, len(tokens), tokens[-1], sum(tokens)]
