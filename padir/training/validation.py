"""Evaluation during training: loss and accuracy on a held-out split."""

from __future__ import annotations

from collections.abc import Callable

import jax
from jax.sharding import Mesh

from padir.data.batching import Buckets, eval_batches
from padir.data.records import PreparedSet
from padir.models.kinds import Model
from padir.runtime import sharding
from padir.runtime.sharding import AxisRules
from padir.training.step import make_eval_step, model_features
from padir.types import PAD_ID, PyTree

# Validation metrics that are means over sentences; the others are means over target tokens.
ROW_METRICS = ("loss/length", "length_accuracy")


class Evaluator:
    """Loss and accuracy on a held-out split, teacher-forced, under a corruption that never changes."""

    def __init__(
        self,
        model: Model,
        data: PreparedSet,
        split: str,
        buckets: Buckets,
        batch_size: int,
        mesh: Mesh,
        rules: AxisRules = AxisRules(),
    ):
        self._split, self._buckets, self._batch_size, self._mesh = data.split(split), buckets, batch_size, mesh
        self._name = split
        self._step = make_eval_step(model, mesh, rules)

    def __call__(self, params: PyTree, stop: Callable[[], bool] = lambda: False) -> dict[str, float] | None:
        """Metrics of the split, named `<split>/<metric>`.

        A metric of tokens is averaged over the split's target tokens, one of lengths over its sentences, so the
        batch size makes no difference. `loss`, to which a PaDIR model adds both kinds, is averaged over tokens.

        Args:
          params: of the model.
          stop: asked after every batch; True ends it without metrics, and None is returned.
        """
        totals: dict[str, float] = {}
        rows = tokens = 0
        batches = eval_batches(
            self._split,
            buckets=self._buckets,
            batch_size=self._batch_size,
            share=sharding.row_share(self._mesh),
        )
        for batch in batches:
            placed = sharding.place_batch(model_features(batch), self._mesh)
            # Counted on the global batch: every host has only its own rows.
            batch_tokens = (placed["decoder_target_tokens"] != PAD_ID).sum()
            metrics, batch_tokens = jax.device_get((self._step(params, placed), batch_tokens))
            batch_rows = int(metrics.pop("rows"))
            rows, tokens = rows + batch_rows, tokens + int(batch_tokens)
            for name, value in metrics.items():
                weight = batch_rows if name in ROW_METRICS else int(batch_tokens)
                totals[name] = totals.get(name, 0.0) + float(value) * weight
            if stop():
                return None
        return {
            f"{self._name}/{name}": total / (rows if name in ROW_METRICS else tokens) for name, total in totals.items()
        }
