"""`run_task` tests a task in three lines: write raw rows, run it, compare exact features."""

import pytest


@pytest.fixture
def run_task(tmp_path):
    """Returns run(module, split, **options) -> list of the Seqio task's examples as plain Python values.

    The vocabulary is trained on the split's own text with the fewest pieces it needs, so that most words
    are spelt letter by letter: features then follow from the text by hand.
    """
    from padir.data import vocabulary

    def run(module, split, *, num_pieces, **options):
        path = tmp_path / "run_task.model"
        registered = module.register("run_task", str(path), **options)
        text = [side for pair in registered.pairs[split] for side in pair]
        vocabulary.train(text, path, num_pieces=num_pieces)
        dataset = registered.task.get_dataset(split=split, sequence_length=None, shuffle=False)
        loaded = vocabulary.Vocabulary.load(path)
        return [_plain(example, loaded) for example in dataset.as_numpy_iterator()]

    def _plain(example, loaded):
        pieces = {side: loaded.pieces(example[side]) for side in ("inputs", "targets")}
        texts = {f"{side}_pretokenized": example[f"{side}_pretokenized"].decode() for side in pieces}
        assert example.keys() == pieces.keys() | texts.keys()
        return pieces | texts

    return run
