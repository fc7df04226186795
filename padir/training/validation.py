"""Validation during training: loss and accuracy on a held-out split."""

from __future__ import annotations

from collections.abc import Callable

import jax
from jax.sharding import Mesh

from padir.data.batching import Buckets, eval_batches, evaluation_schedule
from padir.data.records import PreparedSet
from padir.errors import PadirError
from padir.models.kinds import Model
from padir.runtime import sharding
from padir.runtime.sharding import AxisRules
from padir.training.step import make_eval_step, model_features
from padir.types import PAD_ID, PyTree

# Validation metrics that are means over sentences; the others are means over target tokens.
ROW_METRICS = frozenset({"loss/length", "length_accuracy", "loss/ranker", "ranker_f1", "ranker_f1/best"})


class Evaluator:
    """Computes loss and accuracy on a held-out split, teacher-forced and with a fixed corruption."""

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
        """Compiles nothing yet.

        Args:
          model: the model.
          data: the prepared set.
          split: the name of the split to evaluate on.
          buckets: the padded lengths.
          batch_size: the number of examples per batch, over all devices.
          mesh: the devices.
          rules: how parameters and activations are split over the mesh.

        Raises:
          PadirError: the set has no such split, one of its examples fits no bucket, or sizes do not divide evenly over
            the mesh.
        """
        self._split, self._buckets, self._batch_size, self._mesh = data.split(split), buckets, batch_size, mesh
        try:
            evaluation_schedule(self._split.lengths, buckets=buckets, batch_size=batch_size)
        except PadirError as error:
            raise PadirError(f"split {split}: {error}") from None
        self._name = split
        self._step = make_eval_step(model, mesh, rules)

    def __call__(self, params: PyTree, stop: Callable[[], bool] = lambda: False) -> dict[str, float] | None:
        """Returns the metrics of the split, named `<split>/<metric>`.

        Metrics of tokens are averaged over the target tokens of the split, and metrics of lengths and of a ranker over
        its sentences. `loss`, in which a PaDIR model adds both kinds, is averaged over tokens, where it has only the
        latter over sentences. So they do not depend on the batch size, with two exceptions. Where a model corrupts its
        targets, all batches of a shape get the same noise. And of a first stage in which not every token counts, the
        loss and accuracy of batches are averaged by their tokens.

        Args:
          params: the parameters, nested dict of float32 arrays.
          stop: called after every batch. If it returns True, the evaluation stops and returns None.
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
            # Tokens are counted on the global batch, because a host's own batch holds only its rows.
            batch_tokens = (placed["decoder_target_tokens"] != PAD_ID).sum()
            metrics, batch_tokens = jax.device_get((self._step(params, placed), batch_tokens))
            batch_rows = int(metrics.pop("rows"))
            rows, tokens = rows + batch_rows, tokens + int(batch_tokens)
            of_rows = ROW_METRICS if set(metrics) - ROW_METRICS - {"loss"} else ROW_METRICS | {"loss"}
            for name, value in metrics.items():
                weight = batch_rows if name in of_rows else int(batch_tokens)
                totals[name] = totals.get(name, 0.0) + float(value) * weight
            if stop():
                return None
        return {f"{self._name}/{name}": total / (rows if name in of_rows else tokens) for name, total in totals.items()}
