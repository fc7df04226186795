"""A causal language model of Hugging Face's Transformers, as the samplers in plain Python read it (`stepwise`).

Transformers and PyTorch are no requirements of padir: the extra padir[transformers] brings them. They are
imported when a model is loaded.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from padir.decoding.stepwise import Start
from padir.errors import PadirError, how_to_install


@dataclass
class _Read:
    """What a model has read of one sequence.

    Attributes:
      tokens: whose keys and values `cache` holds, those before the prompt included.
      cache: the model's own, or None if it has read nothing.
    """

    tokens: list[int] = field(default_factory=list)
    cache: Any = None


class CausalLM:
    """A `StepModel` of one sequence, whose features are the hidden states of one layer.

    Erased tokens are cut off the model's cache. If it cannot be cut, as one with a sliding window cannot, the tokens
    that are left are read again, together with the new one.

    Attributes:
      model: of Transformers, a `…ForCausalLM`.
      tokenizer: that goes with it.
      layer: index into the model's `hidden_states`: 0 are the embeddings, k is the output of the k-th layer; -1 is the
        last, which most models give after their final norm.
      begins: the token that every text begins with, if the tokenizer has one, else none.
      eos_id: the token that ends a text.
    """

    def __init__(self, model: Any, tokenizer: Any, *, layer: int = -1, torch: Any = None):
        """Wraps a model.

        Args:
          model, tokenizer, layer: see the attributes.
          torch: the module; None imports PyTorch.

        Raises:
          PadirError: there is no such layer, the tokenizer has no EOS, or PyTorch is missing.
        """
        self._torch = _imported("torch") if torch is None else torch
        self.model, self.tokenizer, self.layer = model, tokenizer, layer
        count = model.config.num_hidden_layers
        if layer not in range(-count - 1, count + 1):
            raise PadirError(f"layer: {layer} is none of the model's, 0 (embeddings) to {count}; -1 is the last")
        if tokenizer.eos_token_id is None:
            raise PadirError("tokenizer: has no EOS token, so that no text would end; set tokenizer.eos_token")
        self.eos_id = int(tokenizer.eos_token_id)
        self.begins = [] if tokenizer.bos_token_id is None else [int(tokenizer.bos_token_id)]

    @classmethod
    def load(cls, path: str | os.PathLike, *, layer: int = -1, device: str = "cpu", dtype: str = "auto") -> CausalLM:
        """Opens a folder of Transformers, or the name of a model that its hub or its own cache has.

        Args:
          path: folder or name.
          layer: see the attributes.
          device: of PyTorch, such as 'cuda'.
          dtype: of PyTorch, such as 'bfloat16'; 'auto' is that of the file.

        Raises:
          PadirError: Transformers or PyTorch is missing, or the model cannot be opened.
        """
        transformers = _imported("transformers")
        try:
            model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=dtype)
            tokenizer = transformers.AutoTokenizer.from_pretrained(path)
        except (OSError, ValueError) as error:
            raise PadirError(f"{path}: Transformers cannot open it: {str(error).splitlines()[0]}") from error
        return cls(model.to(device).eval(), tokenizer, layer=layer)

    def start(self, prompt: str, new_tokens: int) -> Start:
        """What a sampler starts from; all of the prompt but its last token is read, in one pass.

        Args:
          prompt: text.
          new_tokens: most tokens to generate, EOS counted.
        """
        tokens = [int(token) for token in self.tokenizer.encode(prompt, add_special_tokens=False)]
        state = _Read()
        if before := [*self.begins, *tokens][:-1]:
            state = self._read(before, state)[1]
        return Start(self, state, tokens, len(tokens) + new_tokens, self.eos_id)

    def step(self, token: int, position: int, state: _Read) -> tuple[np.ndarray, np.ndarray, _Read]:
        """See `StepModel`: log-probabilities [V] float32, features [E] float32, the state.

        The state is changed in place: only the one that is returned is valid.

        Raises:
          PadirError: the prefix is empty, and the tokenizer has no token that a text begins with.
        """
        if position == 0:
            if not self.begins:
                raise PadirError("this tokenizer has no token that a text begins with; give a prompt")
            token = self.begins[-1]
        left = max(position - 1 + len(self.begins), 0)
        new = [token]
        if len(state.tokens) > left and not self._cut(state, left):
            state, new = _Read(), [*state.tokens[:left], token]
        output, state = self._read(new, state)
        hidden = output.hidden_states[self.layer][0, -1]
        return log_softmax(_floats(output.logits[0, -1])), _floats(hidden), state

    def text(self, start: Start, tokens: Sequence[int]) -> str:
        """What was written behind the prompt, without EOS.

        Args:
          start: of `start`.
          tokens: prompt and generated ones, as the samplers return them.
        """
        # Together with the prompt: by themselves, some tokenizers drop a first space.
        return self._decoded(tokens)[len(self._decoded(tokens[: len(start.prompt)])) :]

    def pieces(self, start: Start, tokens: Sequence[int]) -> list[str]:
        """The text that each generated token adds, "" of EOS; together they are the `text`."""
        lengths = [len(self._decoded(tokens[:end])) for end in range(len(start.prompt), len(tokens) + 1)]
        text = self._decoded(tokens)
        return [text[begin:end] for begin, end in zip(lengths, lengths[1:], strict=False)]

    def line_ends(self) -> tuple[int, ...]:
        """All tokens whose text ends a line, as delimiters of a `Block`."""
        count = len(self.tokenizer)
        return tuple(token for token in range(count) if self.tokenizer.decode([token]).endswith("\n"))

    def _decoded(self, tokens: Sequence[int]) -> str:
        options = {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}
        return self.tokenizer.decode(list(tokens), **options)

    def _read(self, tokens: list[int], state: _Read) -> tuple[Any, _Read]:
        with self._torch.inference_mode():
            ids = self._torch.tensor([tokens], device=self.model.device)
            given = {"past_key_values": state.cache} if state.cache is not None else {}
            output = self.model(input_ids=ids, use_cache=True, output_hidden_states=True, **given)
        return output, _Read([*state.tokens, *tokens], output.past_key_values)

    def _cut(self, state: _Read, length: int) -> bool:
        """Leaves the first `length` tokens in the cache; whether it could."""
        if length == 0:
            state.tokens, state.cache = [], None
            return True
        try:
            state.cache.crop(length)
        except (AttributeError, NotImplementedError, RuntimeError, ValueError):
            return False
        del state.tokens[length:]
        return state.cache.get_seq_length() == length


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Log-probabilities of logits [V] float32."""
    shifted = logits.astype(np.float64) - logits.max()
    return (shifted - np.log(np.exp(shifted).sum())).astype(np.float32)


def _floats(tensor: Any) -> np.ndarray:
    """A tensor of PyTorch as float32: NumPy knows no bfloat16."""
    return tensor.float().cpu().numpy()


def _imported(name: str) -> Any:
    try:
        return __import__(name)
    except ImportError as error:
        raise PadirError(
            f"{name} is not installed, which models of Transformers need: {how_to_install('transformers')}"
        ) from error
