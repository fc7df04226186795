"""A stand-in for a model, for jobs over many lines."""

import pytest
from stand_in import StandIn, train_vocabulary

from padir.inference import translate


@pytest.fixture(scope="session")
def vocabulary(tmp_path_factory):
    return train_vocabulary(tmp_path_factory.mktemp("vocabulary") / "vocabulary.model")


@pytest.fixture
def stand_in(vocabulary, monkeypatch):
    """What `padir translate` opens instead of a run."""
    made = StandIn(vocabulary)
    monkeypatch.setattr(translate, "load", lambda run_dir, **options: made)
    return made
