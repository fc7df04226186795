"""Time of a training update at the paper's size: `python benchmarks/train_step.py --output FILE.json`.

Measures the autoregressive model and PaDIR with one and two stages, untrained, on one batch of random tokens without
padding. The models are measured one after another, because a training run holds only one model. An update includes
noise, forward pass, backward pass and Adafactor, in float32 with dropout. It is timed from the batch on the host to the
new state and the metrics on the host.

Timed updates take turns, in a random order, with plain matrix products: the forward and backward products of a dense
layer. The rate of the fastest product is the machine's rate, with which the rate of the model is compared. An update
that is not timed precedes each timed one. Prints a table and writes JSON.

With `--compute_type`, updates whose products are rounded take turns with those in float32. With `--data_dir`, a
prepared set, models of the size of gin/models/small.gin are trained on batches of it, evenly spread over an epoch in
the order of their lengths: in each type and with each set of buckets, in turns. What they do in a second is counted in
target tokens, padding left out:

    python benchmarks/train_step.py --compute_type=auto --data_dir=runs/tatoeba --output=FILE.json
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from padir.benchmark.facts import run_facts
from padir.benchmark.measure import Timing, take_turns
from padir.data.batching import Buckets, load_batch, schedule
from padir.data.records import PreparedSet
from padir.files.atomic import write_text
from padir.models.autoregressive import AutoregressiveModel
from padir.models.kinds import Model
from padir.models.padir import PadirModel
from padir.nn.fastest_type import resolved_for_training
from padir.nn.network import NetworkConfig
from padir.runs.train_state import create_train_state
from padir.runtime import host_memory, sharding
from padir.runtime.device_peaks import peak_flops
from padir.training.optimizers import OptimizerConfig
from padir.training.step import make_train_step, model_features
from padir.types import EOS_ID, PAD_ID, UNK_ID, TokenIds

# Milliseconds per update of T5X with the same shapes on 2 cores of the same kind, measured outside this repository.
# T5X looks up embeddings by one-hot products, and its PaDIR runs the encoder again in each stage.
T5X_MS = {"AR": 1586.0, "PaDIR, 2 stages": 3311.0}
_NUM_STEPS = 100_000
# By name, those of gin/runs/tatoeba_base.gin at commit 92fc87a and now.
BUCKETS = {"6 buckets": (8, 12, 16, 24, 32, 64), "10 buckets": (7, 9, 11, 13, 15, 17, 20, 25, 34, 64)}
# Models that are measured on a corpus, and their sizes in gin/models/small.gin.
_ON_CORPUS = ("AR", "PaDIR, 2 stages")
_SMALL = {"embed_dim": 256, "layers": 4}


class Updates:
    """A model in training. Each call performs one update, on the first batch or another.

    Attributes:
      model: the model.
      compile_seconds: time that XLA took to compile the update on the first batch.
      xla_flops: operations of that update as counted by XLA, including element-wise ones.
    """

    def __init__(
        self,
        model: Model,
        batch: dict[str, np.ndarray],
        compute_type: str | None = None,
        optimizer: OptimizerConfig = OptimizerConfig(),
    ):
        self.model, self._batch = model, batch
        self._mesh = sharding.make_mesh(jax.devices()[:1])
        updates = optimizer.build(_NUM_STEPS)
        self._state = create_train_state(model, updates, 0, self._mesh)
        schedule = optimizer.schedule(_NUM_STEPS)
        self._step = make_train_step(model, updates, schedule, 0, self._mesh, compute_type=compute_type)
        self._compiled: dict[Any, jax.stages.Compiled] = {}
        began = time.perf_counter()
        program = self._program(batch)
        self.compile_seconds = time.perf_counter() - began
        self.xla_flops = program.cost_analysis()["flops"]

    def _program(self, batch: dict[str, np.ndarray]) -> jax.stages.Compiled:
        shape = tuple(array.shape for array in batch.values())
        if shape not in self._compiled:
            lowered = self._step.lower(self._state, sharding.place_batch(batch, self._mesh))
            self._compiled[shape] = lowered.compile()
        return self._compiled[shape]

    def __call__(self, batch: dict[str, np.ndarray] | None = None) -> dict[str, float]:
        """Performs an update; returns its metrics after the new state has been computed."""
        batch = self._batch if batch is None else batch
        self._state, metrics = self._program(batch)(self._state, sharding.place_batch(batch, self._mesh))
        jax.block_until_ready(self._state)
        return {name: float(value) for name, value in jax.device_get(metrics).items()}


def main() -> None:
    """Compiles the updates, measures them, prints a table and writes the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", required=True, help="JSON file to write")
    sizes = {"batch": 16, "source": 32, "target": 32, "repeats": 30, "embed_dim": 512, "layers": 6, "pieces": 32_000}
    for name, default in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--compute_type", help="measure updates in this type, too: bfloat16 or auto")
    parser.add_argument("--data_dir", help="measure small models on this prepared set, too")
    parser.add_argument("--corpus_batches", type=int, default=16, help="batches of an epoch that are measured")
    parser.add_argument("--corpus_batch", type=int, default=512, help="pairs in each of them")
    options = parser.parse_args()
    host_memory.keep_freed_before_jax()  # As `padir train` does.
    kind = resolved_for_training("--compute_type", options.compute_type)

    def write(result: dict[str, Any]) -> None:
        write_text(Path(options.output), json.dumps(result, indent=2) + "\n")

    # What has been measured stays if the time on a machine ends.
    result = measure(**{name: getattr(options, name) for name in sizes}, compute_type=kind, written=write)
    print(table(result))
    if options.data_dir is not None:
        # Of many batches each is timed less often.
        counts = {"count": options.corpus_batches, "repeats": max(options.repeats // 10, 1)}
        result["corpus"] = measure_on_corpus(options.data_dir, kind, batch=options.corpus_batch, **counts)
        print(corpus_table(result["corpus"]))
        write(result)


def measure(
    *,
    batch: int,
    source: int,
    target: int,
    repeats: int,
    embed_dim: int,
    layers: int,
    pieces: int,
    compute_type: str | None = None,
    written: Callable[[dict[str, Any]], None] = lambda result: None,
) -> dict[str, Any]:
    """Times updates and plain products in turns; returns the result, which `written` is given after each system.

    With a `compute_type`, each system has a part of that name for its updates in this type.
    """
    facts = run_facts()
    features = random_batch(batch, source, target, pieces)
    built = models(embed_dim, layers, pieces, source, target)
    products = plain_products(batch * target, built["AR"].network)
    shape = {"batch": batch, "source": source, "target": target}
    options = products, repeats, shape, compute_type
    result = {"facts": facts, **shape, "systems": {}}
    for name, model in built.items():
        result["systems"][name] = timed(name, model, features, *options)
        result["facts"]["load_average_after"] = list(os.getloadavg())
        written(result)
    return result


def timed(
    name: str,
    model: Model,
    features: dict[str, np.ndarray],
    products: dict[str, tuple[Callable[[Any], Any], int]],
    repeats: int,
    shape: dict[str, int],
    compute_type: str | None = None,
) -> dict[str, Any]:
    """Times the updates of one model in turns with plain products; returns its part of the result."""
    updates = {name: Updates(model, features)}
    if compute_type is not None:
        updates[compute_type] = Updates(model, features, compute_type)
    runs: dict[str, Callable[[Any], Any]] = {**updates, **{name: run for name, (run, _) in products.items()}}
    timings = take_turns(runs, [None], repeats=repeats, untimed=1)
    machine = {name: flop / _seconds(timings[name]) / 1e9 for name, (_, flop) in products.items()}
    described = describe(updates[name], timings[name], max(machine.values()), shape)
    described |= {"machine_gflops_per_second": machine} | _against_t5x(name, timings[name])
    if compute_type is not None:
        # The plain products are in float32, so that they say nothing of the machine's rate in another type.
        rounded = describe(updates[compute_type], timings[compute_type], max(machine.values()), shape)
        del rounded["of_machine"]
        faster = {"speed_up": _seconds(timings[name]) / _seconds(timings[compute_type])}
        described[compute_type] = rounded | faster | _against_t5x(name, timings[compute_type])
    return described


def measure_on_corpus(
    data_dir: str, compute_type: str | None, *, batch: int, count: int, repeats: int
) -> dict[str, Any]:
    """Times updates of small models on batches of a prepared set, in turns; returns that part of the result.

    Args:
      data_dir: the prepared set.
      compute_type: measured beside float32 unless it is None.
      batch: pairs in a batch.
      count: batches of each set of buckets. They are of even ranks in an epoch sorted by length, and therefore have the
        set's own distribution of lengths.
      repeats: timed updates on each batch.
    """
    data = PreparedSet.open(data_dir)
    pieces, longest = data.vocabulary().num_pieces, max(map(max, BUCKETS.values()))
    built = models(**_SMALL, pieces=pieces, source=longest, target=longest)
    batches = {name: spread_batches(data, lengths, batch, count) for name, lengths in BUCKETS.items()}
    types = dict.fromkeys((None, compute_type))
    found = {}
    for name in _ON_CORPUS:
        # All sets of buckets of a type share its state and its programs.
        updates = {kind: Updates(built[name], batches["6 buckets"][0], kind) for kind in types}
        runs = {
            f"{kind or 'float32'}, {which}": lambda at, run=updates[kind], of=batches[which]: run(of[at])
            for kind, which in itertools.product(types, BUCKETS)
        }
        found[name] = compared(take_turns(runs, range(count), repeats=repeats, untimed=1), batches)
    facts = {"pieces": pieces, "batch": batch, "batches": count, "buckets": BUCKETS}
    return facts | {"examples": len(data.split("train")), "models": found}


def spread_batches(data: PreparedSet, lengths: Sequence[int], batch: int, count: int) -> list[dict[str, np.ndarray]]:
    """Returns `count` batches of the first epoch, of even ranks when it is sorted by length."""
    split, buckets = data.split("train"), Buckets.square(lengths)
    epoch = schedule(split.lengths, buckets=buckets, batch_size=batch, seed=0, epoch=0)
    ranked = np.argsort(epoch.bucket, kind="stable")
    chosen = ranked[((np.arange(count) + 0.5) / count * len(ranked)).astype(int)]
    padded = [buckets.boundaries[bucket] for bucket in epoch.bucket[chosen]]
    return [
        model_features(load_batch(split, rows, shape)) for rows, shape in zip(epoch.rows[chosen], padded, strict=True)
    ]


def compared(
    timings: Mapping[str, Timing], batches: Mapping[str, Sequence[dict[str, np.ndarray]]]
) -> dict[str, dict[str, Any]]:
    """Target tokens per second of each system, and how many times those of the first.

    Args:
      timings: by 'TYPE, BUCKETS'; requests are the numbers of the batches.
      batches: by the name of the buckets.
    """
    found: dict[str, dict[str, Any]] = {}
    for name, timing in timings.items():
        targets = [batch["decoder_target_tokens"] for batch in batches[name.partition(", ")[2]]]
        tokens, places = sum(int((rows != PAD_ID).sum()) for rows in targets), sum(rows.size for rows in targets)
        # Each batch by its median, because a pause of the machine would otherwise count as many updates.
        seconds = sum(np.median(timing.samples[timing.requests == at]) for at in range(len(targets))) / 1e3
        row = {"target_tokens_per_second": tokens / seconds, "target_tokens": tokens, "filled": tokens / places}
        first = next(iter(found.values()), row)
        faster = row["target_tokens_per_second"] / first["target_tokens_per_second"]
        found[name] = row | {"speed_up": faster, "step_ms": timing.to_dict()}
    return found


def models(embed_dim: int, layers: int, pieces: int, source: int, target: int) -> dict[str, Model]:
    """The measured models by name; the default options give the sizes of `gin/models/paper_base*.gin`."""
    sizes = {
        "embed_dim": embed_dim,
        "num_heads": max(embed_dim // 64, 1),
        "mlp_dim": 4 * embed_dim,
        "num_encoder_layers": layers,
        "num_decoder_layers": layers,
    }
    lengths = {"max_source_length": max(source, 128), "max_target_length": max(target, 128)}
    ids, parallel = TokenIds(pieces), NetworkConfig(**sizes)
    causal = NetworkConfig(**sizes, causal=True, positional_attention=False)
    return {
        "AR": AutoregressiveModel(ids, causal, **lengths),
        "PaDIR, 1 stage": PadirModel(ids, parallel, **lengths, num_stages=1),
        "PaDIR, 2 stages": PadirModel(ids, parallel, **lengths, num_stages=2),
    }


def random_batch(batch: int, source: int, target: int, pieces: int) -> dict[str, np.ndarray]:
    """Random tokens, int32 [batch, source] and [batch, target]; each row is full and ends with EOS."""
    generator = np.random.default_rng(0)

    def rows(length: int) -> np.ndarray:
        tokens = generator.integers(UNK_ID + 1, pieces, (batch, length), dtype=np.int32)
        tokens[:, -1] = EOS_ID
        return tokens

    return {"encoder_input_tokens": rows(source), "decoder_target_tokens": rows(target)}


def plain_products(rows: int, network: NetworkConfig) -> dict[str, tuple[Callable[[Any], Any], int]]:
    """The float32 products of a feed-forward layer and of the logits, forward and backward.

    Forward, activations [rows, in] are multiplied with a weight [out, in]. Backward, the gradient of the output
    [rows, out] is multiplied with the weight for the gradient of the activations, and with the activations for the
    gradient of the weight.

    Returns:
      By name, a function that computes the product and its number of operations.
    """
    draw = np.random.default_rng(0).standard_normal

    def array(*shape: int) -> jax.Array:
        return jnp.asarray(draw(shape), jnp.float32)

    products = {}
    for what, outer in (("feed-forward", network.mlp_dim), ("logits", network.vocab_size)):
        x, weight, gradient = array(rows, network.embed_dim), array(outer, network.embed_dim), array(rows, outer)
        directions = {
            "forward": ("ri,oi->ro", x, weight),
            "gradient of activations": ("ro,oi->ri", gradient, weight),
            "gradient of the weight": ("ro,ri->oi", gradient, x),
        }
        for direction, (axes, left, right) in directions.items():
            product = jax.jit(lambda left, right, axes=axes: jnp.einsum(axes, left, right))

            def run(_: Any, product=product, left=left, right=right) -> None:
                jax.block_until_ready(product(left, right))

            products[f"{what}, {direction}"] = (run, 2 * rows * outer * network.embed_dim)
    return products


def describe(updates: Updates, timing: Timing, machine: float, shape: dict[str, int]) -> dict[str, Any]:
    """The figures of one model: time, tokens per second, operations, and their rate over the machine's [GFLOP/s]."""
    flop = updates.model.training_flops(**shape)
    rate = flop / _seconds(timing) / 1e9
    return {
        "parameters": updates.model.parameter_count(),
        "compile_seconds": updates.compile_seconds,
        "step_ms": timing.to_dict(),
        "tokens_per_second": shape["batch"] * (shape["source"] + shape["target"]) / _seconds(timing),
        "gflop": flop / 1e9,
        "xla_gflop": updates.xla_flops / 1e9,
        "gflops_per_second": rate,
        "of_machine": rate / machine,
    } | _of_peak(rate)


def _of_peak(rate: float) -> dict[str, float]:
    """A rate [GFLOP/s] over the device's peak in bfloat16, whatever the type of the products; {} if it is not known."""
    peak = peak_flops(jax.devices()[0].device_kind)
    return {} if peak is None else {"of_bfloat16_peak": 1e9 * rate / peak}


def _against_t5x(name: str, timing: Timing) -> dict[str, float]:
    if name not in T5X_MS or jax.default_backend() != "cpu":
        return {}
    return {"t5x_ms": T5X_MS[name], "speed_up_over_t5x": T5X_MS[name] / (1e3 * _seconds(timing))}


def _seconds(timing: Timing) -> float:
    """The median, in seconds."""
    return float(np.median(timing.samples)) / 1e3


def table(result: dict[str, Any]) -> str:
    """Formats a result as a Markdown table."""
    rows = {}
    for name, row in result["systems"].items():
        rows[name] = row
        if "bfloat16" in row:
            rows[f"{name}, bfloat16"] = row["bfloat16"] | {
                "machine_gflops_per_second": row["machine_gflops_per_second"]
            }
    lines = [
        "| model | compile s | n | ms | 95% | p99 | tok/s | GFLOP | GFLOP/s | plain | share | of bf16 peak | T5X |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for name, row in rows.items():
        step, plain = row["step_ms"], max(row["machine_gflops_per_second"].values())
        low, high = step["median_ci95"]
        share = f"{100 * row['of_machine']:.0f}%" if "of_machine" in row else "–"
        of_peak = f"{100 * row['of_bfloat16_peak']:.1f}%" if "of_bfloat16_peak" in row else "–"
        against = f"{row['speed_up_over_t5x']:.2f}x" if "speed_up_over_t5x" in row else "–"
        lines.append(
            f"| {name} | {row['compile_seconds']:.0f} | {step['n']} | {step['median']:.0f} | {low:.0f}–{high:.0f} | "
            f"{step['p99']:.0f} | {row['tokens_per_second']:.0f} | {row['gflop']:.0f} | "
            f"{row['gflops_per_second']:.0f} | {plain:.0f} | {share} | {of_peak} | {against} |"
        )
    return "\n".join(lines)


def corpus_table(corpus: dict[str, Any]) -> str:
    """Formats what was measured on a corpus as a Markdown table."""
    lines = ["| model | products, lengths | n | p99 ms | filled | target tokens/s | times |"]
    lines.append("|---|---|---:|---:|---:|---:|---:|")
    for model, systems in corpus["models"].items():
        for name, row in systems.items():
            lines.append(
                f"| {model} | {name} | {row['step_ms']['n']} | {row['step_ms']['p99']:.0f} | "
                f"{100 * row['filled']:.0f}% | {row['target_tokens_per_second']:.0f} | {row['speed_up']:.2f}x |"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
