"""`padir benchmark roofline`: times each phase of a request and compares it with the limits of the machine."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from padir.benchmark.facts import run_facts
from padir.benchmark.measure import take_turns
from padir.benchmark.systems import Opened, System, open_systems
from padir.decoding.sampling import greedy
from padir.decoding.verified import Verified
from padir.errors import PadirError
from padir.files.atomic import write_text
from padir.inference.decoder import source_width
from padir.models.autoregressive import AutoregressiveModel
from padir.nn import flops
from padir.nn.weights import project
from padir.types import UNK_ID, Array, PyTree

# The reference product multiplies rows by 24 weights [2048, 512]: 100 MB of float32, more than caches hold.
_WEIGHTS, _OUT, _IN = 24, 2048, 512
# The reference read sums this many float32 numbers: 256 MB.
_READ = 64 * 2**20


@dataclass(frozen=True)
class Phase:
    """One compiled part of a request.

    Attributes:
      run: runs the phase once, on arrays that exist already, and waits for the result.
      work: floating-point (or integer) operations of its matrix products.
      bytes: a lower bound of the bytes that it reads.
      rows: the number of rows of its matrix products.
      product_type: the type in which weights are multiplied.
    """

    run: Callable[[], Any]
    work: int
    bytes: int
    rows: int
    product_type: str


def roofline(
    *,
    systems: Sequence[System],
    output: str,
    source: int = 32,
    target: int = 32,
    repeats: int = 20,
    num_pieces: int = 32_000,
    seed: int = 0,
) -> dict[str, Any]:
    """Times the phases of batch-1 requests, and a reference product and a reference read in the same process.

    Each phase has a lower bound of its time (Williams et al., 2009): its operations at the rate of the reference
    product with as many rows in the same type, or its bytes at the rate of the reference read, whichever is longer.
    `of_bound` is this bound divided by the measured time: 1 means that the phase is as fast as the machine allows.

    Args:
      systems: the systems whose phases are timed, trained or untrained.
      output: the JSON file to write.
      source, target: lengths in tokens.
      repeats: how often each phase is timed.
      num_pieces: vocabulary size of untrained models.
      seed: random seed of the order in which phases are timed.

    Returns:
      The contents of the JSON file: 'machine' (GFLOP/s by type and rows, and GB/s) and the phases of each system.

    Raises:
      PadirError: a system cannot be opened, or its model does not allow these lengths.
    """
    facts = run_facts()
    opened = open_systems(systems, num_pieces)
    phases = _all_phases(opened, source, target)
    products = sorted({(phase.product_type, phase.rows) for phase in phases.values()})
    machine = {("machine", f"{rows} rows, {kind}"): _product(kind, rows) for kind, rows in products}
    machine["machine", "read"] = _read()
    everything = machine | phases
    timings = take_turns(
        {" / ".join(key): lambda _, phase=phase: phase.run() for key, phase in everything.items()},
        [None],
        repeats=repeats,
        seed=seed,
    )
    seconds = {key: float(np.median(timings[" / ".join(key)].samples)) / 1e3 for key in everything}
    rates = {key: machine[name := ("machine", f"{key[1]} rows, {key[0]}")].work / seconds[name] for key in products}
    read = machine["machine", "read"].bytes / seconds["machine", "read"]
    result = {
        "facts": facts | {"load_average_after": list(os.getloadavg())},
        "source": source,
        "target": target,
        "repeats": repeats,
        "machine": {
            "gflops_per_second": {
                kind: {rows: rates[kind, rows] / 1e9 for other, rows in products if other == kind}
                for kind in dict.fromkeys(kind for kind, _ in products)
            },
            "read_gigabytes_per_second": read / 1e9,
        },
        "systems": {name: {} for name in opened},
    }
    for (name, label), phase in phases.items():
        rate = rates[phase.product_type, phase.rows]
        result["systems"][name][label] = _against(phase, seconds[name, label], rate, read)
    write_text(output, json.dumps(result, indent=2) + "\n")
    print(roofline_table(result))
    return result


def _all_phases(opened: dict[str, Opened], source: int, target: int) -> dict[tuple[str, str], Phase]:
    """The phases of all systems, by (name of the system, name of the phase)."""
    phases = {}
    for name, system in opened.items():
        if isinstance(system.decode, Verified):
            raise PadirError(
                f"benchmark roofline: system {name!r} has the phases of two models; give each as a system of its own"
            )
        if not 0 < source < system.model.max_source_length or not 0 < target <= system.model.max_target_length:
            raise PadirError(
                f"benchmark roofline: system {name!r} does not take {source} source and {target} target tokens; "
                f"its model allows at most {system.model.max_source_length - 1} and {system.model.max_target_length}"
            )
        phases |= {(name, label): phase for label, phase in phases_of(system, source, target).items()}
    return phases


def _against(phase: Phase, seconds: float, flops_rate: float, read_rate: float) -> dict[str, float]:
    """What a phase achieved in `seconds`, and its bound on a machine with these rates per second."""
    bound = max(phase.work / flops_rate, phase.bytes / read_rate)
    return {
        "ms": 1e3 * seconds,
        "rows": phase.rows,
        "product_type": phase.product_type,
        "gflops": phase.work / 1e9,
        "gflops_per_second": phase.work / seconds / 1e9,
        "gigabytes_per_second": phase.bytes / seconds / 1e9,
        "bound_ms": 1e3 * bound,
        "of_bound": bound / seconds,
    }


def phases_of(system: Opened, source: int, target: int) -> dict[str, Phase]:
    """The phases of a batch-1 request.

    Args:
      system: the opened system.
      source: source length in tokens; it is padded to its bucket, as in a request.
      target: target length in tokens; it is taken as one of the target buckets, so it is not padded.

    Returns:
      The phases 'encode', 'plan' (what the decoder computes once per request), 'step' (one decoder step), and
      'step: logits' (the part of a step that computes logits).
    """
    source = source_width(system.model, source)
    model, params, hypotheses = system.model, system.decoder.inputs(system.decode)[0], system.hypotheses
    network, causal = model.network, isinstance(model, AutoregressiveModel)
    tokens = jnp.full((1, source), UNK_ID + 1, jnp.int32)
    targets = jnp.full((hypotheses, target), UNK_ID + 1, jnp.int32)

    def encode(params: PyTree, tokens: Array) -> tuple[Array, Array | None]:
        if causal:
            return model.encode(model.module(params).network, tokens), None
        return model.encode(params, tokens)

    def plan(params: PyTree, encoded: Array, tokens: Array) -> PyTree:
        return model.module(params).network.plan(encoded, tokens, target if causal else targets)

    def step(params: PyTree, targets: Array, made: PyTree) -> tuple[Array, Array, PyTree]:
        net = model.module(params).network
        # The last token of the target, when the cache is otherwise full.
        cache = net.empty_cache(hypotheses, target).replace(position=jnp.int32(target - 1)) if causal else None
        output = net.decode(targets[:, -1:] if causal else targets, made, cache)
        return *greedy(net.logits(output.hidden)), output.cache if causal else None

    def logits(params: PyTree, hidden: Array) -> tuple[Array, Array]:
        return greedy(model.module(params).network.logits(hidden))

    queries = 1 if causal else target
    encoded = jax.jit(encode)(params, tokens)[0]
    made = jax.jit(plan)(params, encoded, tokens)
    hidden = jnp.ones((hypotheses, queries, network.embed_dim), network.dtype)
    positions = source + model.source_prefix

    def cost(with_logits: bool) -> flops.Cost:
        return flops.decoder_pass(network, hypotheses, queries, target, source, sources=1, logits=with_logits)

    def phase(run: Callable[[], Any], cost: flops.Cost, rows: int) -> Phase:
        return Phase(run, cost.flops, system.bytes(cost), rows, system.decoder.product_type)

    rows, planned = hypotheses * queries, flops.plan(network, 1, source, target, prepared=True)
    return {
        "encode": phase(_timed(encode, params, tokens), flops.encode(network, 1, positions), positions),
        "plan": phase(_timed(plan, params, encoded, tokens), planned, source),
        "step": phase(_timed(step, params, targets, made), cost(True), rows),
        "step: logits": phase(_timed(logits, params, hidden), cost(True) - cost(False), rows),
    }


def _timed(function: Callable[..., Any], *arguments: Any) -> Callable[[], Any]:
    compiled = jax.jit(function)
    return lambda: jax.block_until_ready(compiled(*arguments))


def _product(kind: str, rows: int) -> Phase:
    """The reference product with `rows` rows in one type, with the operands in the order that the network uses."""
    draw, dtype = np.random.default_rng(0).standard_normal, jnp.dtype(kind)
    # The factor 10 gives int8 a range of values; the values do not affect the speed.
    weights = [jnp.asarray(10.0 * draw((_OUT, _IN))).astype(dtype) for _ in range(_WEIGHTS)]
    x = jnp.asarray(10.0 * draw((rows, _IN))).astype(dtype)
    summed = jnp.dtype("int32" if kind == "int8" else "float32")

    def run(x: Array, weights: list[Array]) -> list[Array]:
        return [project(weight, x, summed) for weight in weights]

    numbers = _OUT * _IN * _WEIGHTS
    return Phase(_timed(run, x, weights), 2 * rows * numbers, dtype.itemsize * numbers, rows, kind)


def _read() -> Phase:
    # A sum and not a copy, because decoding reads weights and writes little. Writing to new pages would cost more.
    block = jnp.ones((_READ // 2048, 2048), jnp.float32)
    return Phase(_timed(lambda x: x.sum(axis=0), block), 0, 4 * _READ, 0, "float32")


def roofline_table(result: dict[str, Any]) -> str:
    """A result as a Markdown table."""
    machine = result["machine"]
    lines = []
    for kind, by_rows in machine["gflops_per_second"].items():
        rates = ", ".join(f"{rate:.0f} with {rows} rows" for rows, rate in by_rows.items())
        lines.append(f"reference product in {kind}, GFLOP/s: {rates}")
    lines += [
        f"reference read: {machine['read_gigabytes_per_second']:.1f} GB/s",
        "| system | phase | ms | rows | GFLOP/s | GB/s | bound ms | of bound |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, phases in result["systems"].items():
        for label, phase in phases.items():
            lines.append(
                f"| {name} | {label} | {phase['ms']:.2f} | {phase['rows']} | {phase['gflops_per_second']:.0f} | "
                f"{phase['gigabytes_per_second']:.1f} | {phase['bound_ms']:.2f} | {100 * phase['of_bound']:.0f}% |"
            )
    return "\n".join(lines)
