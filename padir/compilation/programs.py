"""Our programs, traced and compiled for devices that are not there: an update of training, and a batch's decode."""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding

from padir import rng
from padir.compilation.topologies import Topology
from padir.decoding.automaton import Automaton
from padir.decoding.refinement import Refinement
from padir.decoding.verifiers import Probe
from padir.errors import PadirError
from padir.inference.decoder import on_devices
from padir.inference.program import decode_program
from padir.models.autoregressive import AutoregressiveModel
from padir.models.guided import Judge
from padir.models.kinds import DecodeConfig, Model
from padir.models.verification import Verifier
from padir.nn.fastest_type import resolved_for_training
from padir.runs.train_state import abstract_train_state
from padir.runtime import sharding
from padir.runtime.platforms import tracing_for
from padir.runtime.sharding import Layout
from padir.training.optimizers import OptimizerConfig
from padir.training.step import MODEL_FEATURES, make_train_step
from padir.types import PyTree


@dataclass(frozen=True)
class Compiled:
    """A compiled program.

    Attributes:
      executable: of JAX; it can be analysed and serialised, but not run.
      text: the scheduled program.
      seconds: what compiling took, tracing included.
      peak_bytes: the most memory of a device that it uses.
      program_bytes: the size of the program itself; 0 if the compiler does not say.
    """

    executable: jax.stages.Compiled
    text: str
    seconds: float
    peak_bytes: int
    program_bytes: int


@dataclass(frozen=True)
class Refused:
    """What is said of a program that does not fit into memory.

    Attributes:
      reason: in one line; the compiler's, as on a TPU, if it refuses the program by itself.
      missing_bytes: how much more memory a device would need; None if the compiler does not say.
    """

    reason: str
    missing_bytes: int | None


def compiled(lower: Callable[[], jax.stages.Lowered], gibibytes: float | None = None) -> Compiled | Refused:
    """Compiles the program that `lower` traces.

    Args:
      lower: traces it.
      gibibytes: memory of a device; None if the compiler itself refuses what is too large, as that for TPUs does.
    """
    start = time.perf_counter()
    lowered = lower()
    try:
        executable = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return _refused(str(error))
    seconds = time.perf_counter() - start
    memory = executable.memory_analysis()
    if gibibytes is not None and (missing := memory.peak_memory_in_bytes - int(gibibytes * 2**30)) > 0:
        needed = memory.peak_memory_in_bytes / 2**30
        return Refused(f"the program needs {needed:.2f} GiB of a device, which has {gibibytes}", missing)
    return Compiled(
        executable,
        executable.as_text(),
        seconds,
        memory.peak_memory_in_bytes,
        memory.generated_code_size_in_bytes,
    )


_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def _refused(message: str) -> Refused:
    missing = None
    if found := re.search(r"[Ee]xceeded? \w+ capacity by ([\d.]+[KMGT]?)", message):
        missing = _bytes(found.group(1))
    elif found := re.search(r"\(([\d.]+[KMGT]?)\) exceeds available \w+ \(([\d.]+[KMGT]?)\)", message):
        missing = _bytes(found.group(1)) - _bytes(found.group(2))
    return Refused(" ".join(message.splitlines()[0].split()), missing)


def _bytes(text: str) -> int:
    """'1.5G' → bytes."""
    digits = text.rstrip("KMGT")
    return int(float(digits) * _UNITS[text[len(digits) :]])


@dataclass(frozen=True)
class Update:
    """An update of training, as `padir train` would do it.

    Attributes:
      model: the model.
      num_steps: updates of the run.
      batch_size: examples of an update, over all devices.
      length: tokens that source and target are padded to.
      optimizer: its settings.
      layout: how the devices share the work.
      remat: what the backward pass recomputes.
      accumulate: micro-batches.
      skip_non_finite: as in `training.guards.Guards`.
      scan_layers: whether layers are gone through in a loop.
      compute_type: what the factors of products with weights are rounded to; may be 'auto' for devices that need not be
        measured.
    """

    model: Model
    num_steps: int
    batch_size: int
    length: int
    optimizer: OptimizerConfig = OptimizerConfig()
    layout: Layout = Layout()
    remat: str = "none"
    accumulate: int = 1
    skip_non_finite: bool = False
    scan_layers: bool = False
    compute_type: str | None = None

    def lower(self, topology: Topology) -> jax.stages.Lowered:
        """Traces it for the devices of `topology`; raises PadirError if sizes do not divide over them."""
        mesh = sharding.make_mesh(topology.devices(), self.layout)
        sharding.check_batch_size(self.batch_size, mesh)
        with tracing_for(topology.platform):
            return self._traced(mesh)

    def _traced(self, mesh: Mesh) -> jax.stages.Lowered:
        optimizer, rules = self.optimizer.build(self.num_steps), self.layout.rules
        ema = self.optimizer.ema_decay
        state = abstract_train_state(self.model, optimizer, mesh, rules, ema=ema is not None)
        step = make_train_step(
            self.model,
            optimizer,
            self.optimizer.schedule(self.num_steps),
            0,
            mesh,
            self.accumulate,
            rules=rules,
            remat=self.remat,
            ema_decay=ema,
            skip_non_finite=self.skip_non_finite,
            scan_layers=self.scan_layers,
            compute_type=resolved_for_training("train.compute_type", self.compute_type),
        )
        tokens = jax.ShapeDtypeStruct((self.batch_size, self.length), jnp.int32, sharding=sharding.batch_sharding(mesh))
        return step.lower(state, dict.fromkeys(MODEL_FEATURES, tokens))

    def flops(self) -> int:
        """Operations of an update, over all devices, by our own count."""
        return self.model.training_flops(self.batch_size, self.length, self.length)


@dataclass(frozen=True)
class Decode:
    """The decode of a batch, as `Translator` would do it with the devices of one host.

    Attributes:
      model: the model.
      decode: its decode configuration.
      rows: sources of a batch, a multiple of the devices.
      source: tokens that sources are padded to.
      devices: how many devices of the host are used.
      compute_type: what factors of products with weights are rounded to.
      given_lengths: whether target lengths are arguments of the program, as in benchmarks.
      verifier: of verified decoding, the model that verifies.
      judged: of generation under a verifier, whether a linear probe judges.
      constraint: of constrained decoding, states and classes of tokens of the table that all rows share; None without.
    """

    model: Model
    decode: DecodeConfig
    rows: int
    source: int
    devices: int
    compute_type: str | None = None
    given_lengths: bool = False
    verifier: AutoregressiveModel | None = None
    judged: bool = False
    constraint: tuple[int, int] | None = None

    def lower(self, topology: Topology) -> jax.stages.Lowered:
        """Traces it for the first devices of `topology`."""
        mesh = sharding.make_mesh(topology.devices()[: self.devices])
        if self.rows % self.devices:
            raise PadirError(f"a batch of {self.rows} does not divide evenly over {self.devices} devices")
        with tracing_for(topology.platform):
            return self._traced(mesh)

    def _traced(self, mesh: Mesh) -> jax.stages.Lowered:
        def prepared(model: Model) -> PyTree:
            return jax.eval_shape(lambda: model.for_decoding(model.init(0), self.compute_type))

        helper = None if self.verifier is None else Verifier(self.verifier, prepared(self.verifier))
        if self.judged:
            width = self.model.network.embed_dim
            helper = jax.eval_shape(lambda: Judge(Probe.fresh((width,), jax.random.key(0))))
        decode, steps = on_devices(self.decode, self.devices), ()
        if isinstance(decode, Refinement):
            decode, steps = decode.steps_as_data
        leaves, structure = jax.tree.flatten((prepared(self.model), helper))
        everywhere = sharding.replicated(mesh)
        program = decode_program(self.model, decode, structure)
        rows = sharding.batch_sharding(mesh)
        given = {}
        if self.given_lengths:
            several = (decode.num_hypotheses,) if isinstance(decode, Refinement) else ()
            given["lengths"] = jax.ShapeDtypeStruct((self.rows, *several), jnp.int32, sharding=rows)
        if self.constraint is not None:
            given["constraint"] = self._automaton(rows, everywhere)
        return program.lower(
            _placed(leaves, everywhere),
            jax.ShapeDtypeStruct((self.rows, self.source), jnp.int32, sharding=rows),
            _placed(jax.eval_shape(functools.partial(rng.stream, 0, "decode")), everywhere),
            *_placed(jax.eval_shape(lambda: tuple(map(jnp.asarray, map(np.int32, steps)))), everywhere),
            **given,
        )

    def _automaton(self, rows: NamedSharding, everywhere: NamedSharding) -> Automaton:
        """The shapes of one table, and which it is for each row."""
        states, classes = self.constraint

        def made(*shape: int) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct((1, *shape), jnp.int32, sharding=everywhere)

        which = jax.ShapeDtypeStruct((self.rows,), jnp.int32, sharding=rows)
        lengths = made(self.model.max_target_length + 1)
        return Automaton(which, made(self.model.ids.vocab_size), made(states, classes), made(states), lengths)


def _placed(tree: PyTree, where: NamedSharding) -> PyTree:
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where), tree)
