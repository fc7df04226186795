"""The adapter of causal models, over a stand-in in NumPy; with Transformers and PyTorch, where they are installed."""

import causal_stand_in as stand_in
import numpy as np
import pytest
from causal_stand_in import BOS, EOS, Model, Tokenizer, WindowCache, hidden_of, random_logits

from padir.decoding import stepwise
from padir.decoding.backtracking import Backtracking
from padir.decoding.sampling import Sampling
from padir.errors import PadirError
from padir.interop.causal_lm import CausalLM, log_softmax


def adapter(layer=-1, **options):
    return CausalLM(Model(**options), Tokenizer(), layer=layer, torch=stand_in.torch)


def expected(tokens, layer=2):
    return log_softmax(random_logits(tokens)), np.array(hidden_of(tokens, layer), np.float32)


def assert_found(found, tokens, layer=2):
    log_probs, features, _ = found
    assert log_probs.dtype == features.dtype == np.float32
    np.testing.assert_allclose(log_probs, expected(tokens, layer)[0], atol=1e-6)
    np.testing.assert_array_equal(features, expected(tokens, layer)[1])


@pytest.mark.parametrize("cache", [stand_in.Cache, WindowCache])
def test_after_erasing_it_reads_as_anew(cache):
    model = adapter(cache=cache)
    start = model.start("ab", 9)
    a, b, c, d = Tokenizer().encode("abcd", False)
    assert (start.prompt, start.limit, start.eos_id, model.model.reads) == ([a, b], 11, EOS, [2])
    found = model.step(b, 2, start.state)
    assert_found(found, [BOS, a, b])
    for place, token in enumerate((c, d, c), 3):
        found = model.step(token, place, found[2])
    assert_found(found, [BOS, a, b, c, d, c])
    # Two tokens are erased, and another follows.
    found = model.step(b, 4, found[2])
    assert_found(found, [BOS, a, b, c, b])
    # All of it, the prompt included.
    found = model.step(0, 0, found[2])
    assert_found(found, [BOS])
    # Only a cache that cannot be cut is read again, five tokens at once.
    assert model.model.reads == [2, 1, 1, 1, 1, 5 if cache is WindowCache else 1, 1]


@pytest.mark.parametrize("layer", [0, 1, 2, -1, -3])
def test_features_of_a_layer(layer):
    model = adapter(layer)
    (token,) = Tokenizer().encode("x", False)
    assert_found(model.step(token, 1, model.start("x", 1).state), [BOS, token], layer % 3)


def test_a_tokenizer_without_a_first_token(monkeypatch):
    monkeypatch.setattr(Tokenizer, "bos_token_id", None)
    model = adapter()
    a, b = Tokenizer().encode("ab", False)
    found = model.step(b, 2, model.start("ab", 3).state)
    assert_found(found, [a, b])
    assert_found(model.step(a, 1, found[2]), [a])
    with pytest.raises(PadirError, match="no token that a text begins with; give a prompt"):
        model.step(0, 0, model.start("", 3).state)


def test_text_and_pieces():
    model = adapter()
    start = model.start("f(a)", 20)
    tokens = [*start.prompt, *Tokenizer().encode("b\nc", False), EOS]
    assert model.text(start, tokens) == "b\nc"
    assert model.pieces(start, tokens) == ["b", "\n", "c", ""]
    assert model.line_ends() == tuple(Tokenizer().encode("\n", False))


def test_backtracking_over_it_is_backtracking_over_a_table():
    """The same draws from log-probabilities that are computed from the whole text each time."""

    class Table:
        def step(self, token, position, state):
            text = [*state[: position - 1], token]
            return (*expected([BOS, *text]), text)

    prompt = Tokenizer().encode("ab", False)
    settings = Backtracking(quota=3, stride=3, sampling=Sampling(temperature=1.0, top_p=0.9), erasable_prompt=1)

    def judge(tokens, features):
        return 0.0 if features[3] % 3 == 0 else 1.0

    def run(start):
        return stepwise.backtracking(settings, start, judge, stepwise.numpy_draw(np.random.default_rng(4)))

    ours = run(adapter().start("ab", 20))
    assert ours == run(stepwise.Start(Table(), prompt[:1], prompt, 22, EOS))
    assert ours.queries.backtracks == 3 and len(ours.tokens) > 5


def test_what_does_not_fit_is_refused(monkeypatch):
    with pytest.raises(PadirError, match=r"layer: 3 is none of the model's, 0 \(embeddings\) to 2"):
        adapter(3)
    monkeypatch.setattr(Tokenizer, "eos_token_id", None)
    with pytest.raises(PadirError, match="has no EOS token"):
        adapter()


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    with pytest.raises(PadirError, match=r"transformers is not installed.*pip install '\.\[transformers\]' in a clone"):
        CausalLM.load("somewhere")


@pytest.mark.parametrize("kind", ["llama", "gpt2", "mistral"])
def test_models_of_transformers(kind):
    """Random weights: a step after erasing equals a pass over the whole text. Mistral has a window of 6 tokens."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"vocab_size": len(Tokenizer()), "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    wide = {"intermediate_size": 32, "num_key_value_heads": 1}
    config = {
        "llama": lambda: transformers.LlamaConfig(**sizes, **wide),
        "gpt2": lambda: transformers.GPT2Config(**sizes),
        "mistral": lambda: transformers.MistralConfig(**sizes, **wide, sliding_window=6),
    }[kind]()
    network = transformers.AutoModelForCausalLM.from_config(config).eval()
    model = CausalLM(network, Tokenizer(), layer=1)

    def fresh(tokens):
        with torch.inference_mode():
            output = network(input_ids=torch.tensor([[BOS, *tokens]]), output_hidden_states=True)
        log_probs = torch.log_softmax(output.logits[0, -1], -1)
        return log_probs.numpy(), output.hidden_states[1][0, -1].numpy()

    start = model.start("abcdef", 20)
    text, found = list(start.prompt), model.step(start.prompt[-1], 6, start.state)
    for token, kept in ((9, 6), (12, 7), (30, 8), (31, 9), (8, 6), (7, 3), (6, 4), (5, 5)):
        text = [*text[:kept], token]
        found = model.step(token, len(text), found[2])
        for ours, theirs in zip(found[:2], fresh(text), strict=True):
            np.testing.assert_allclose(ours, theirs, atol=2e-5)
