"""A learnt sampler: a tiny PaDIR model trained on samples of Ising models, with its decoding loop as a Markov chain.

One network learns several Ising models. The source names the model: [token of the coupling, EOS]. The target has one
token per spin, then EOS. Training masks a random share of the spins, as in mask-predict. Decoding starts from MASK
everywhere. Each step then remasks k random spins and predicts them in parallel, and so independently of each other.

Since N is small, the network's predictions for all masked inputs fit into a table. This gives the exact Markov chain of
the decoding loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from padir.decoding.refinement import Refinement
from padir.decoding.remasking import RemaskPolicy
from padir.decoding.sampling import Sampling
from padir.decoding.state import StepView
from padir.decoding.stopping import StopNever
from padir.models.padir import PadirModel
from padir.nn.network import NetworkConfig
from padir.objectives.corruption import CorruptionConfig
from padir.progress import progress
from padir.runs.train_state import create_train_state
from padir.runtime.sharding import make_mesh
from padir.theory.chains import block_dynamics, block_marginals, product_dynamics
from padir.theory.claims import Claim
from padir.theory.ising import clique_parameters, log_probabilities, spins
from padir.theory.pseudolikelihood import uniform_law
from padir.theory.settings import require_ascending, require_in
from padir.training.optimizers import OptimizerConfig
from padir.training.step import make_train_step
from padir.types import EOS_ID, UNK_ID, Array, PyTree, TokenIds

MINUS_ID, PLUS_ID = UNK_ID + 1, UNK_ID + 2


@dataclass(frozen=True)
class LearnedSettings:
    """Settings of models, training and chains.

    Attributes:
      spins: N = `|C|`; all fields are 0.
      couplings: values of J.
      samples: number of training samples from each model.
      train_steps, batch_size: number of updates, and samples per update.
      decoder_layers: decoder layers of the network, which has d = 32 and one encoder layer.
      block_sizes: values of k, the number of spins that a decoding step writes.
      steps: values of T, the numbers of steps after which chains are compared with the truth.
      loop_steps: largest T for which the decoding loop is also run.
      runs: runs of the decoding loop for each J and k.
      seed: random seed of data, training and decoding.
    """

    spins: int = 4
    couplings: Sequence[float] = (0.1, 0.3, 0.6)
    samples: int = 50_000
    train_steps: int = 1500
    batch_size: int = 512
    decoder_layers: int = 1
    block_sizes: Sequence[int] = (1, 2, 4)
    steps: Sequence[int] = (1, 2, 4, 8, 16, 32, 64, 128, 256)
    loop_steps: int = 64
    runs: int = 2000
    seed: int = 0

    def __post_init__(self):
        require_in(self, "spins", 2, 8)
        require_in(self, "block_sizes", 1, self.spins)
        require_in(self, "steps", 1)
        require_in(self, "loop_steps", self.steps[0])
        for name in ("couplings", "block_sizes", "steps"):
            require_ascending(self, name)
        for name in ("samples", "train_steps", "batch_size", "runs"):
            require_in(self, name, 2)

    def model(self) -> PadirModel:
        """The PaDIR model: one training stage, with MASK as the only noise."""
        network = NetworkConfig(
            embed_dim=32, num_heads=2, head_dim=16, mlp_dim=64, dropout_rate=0.0,
            num_encoder_layers=1, num_decoder_layers=self.decoder_layers, max_positions=self.spins + 1,
        )  # fmt: skip
        noise = CorruptionConfig(
            keep_probability=0.0, min_noise_density=0.0, max_noise_density=1.0, loss_weighting="mask"
        )
        ids = TokenIds(PLUS_ID + 1 + len(self.couplings), extra_ids=3)
        return PadirModel(ids, network, 2, self.spins + 1, corruption=noise, num_stages=1, length_predictor="oracle")

    def steps_of_loop(self) -> list[int]:
        """The values of `steps` for which the decoding loop is run."""
        return [step for step in self.steps if step <= self.loop_steps]

    def sources(self) -> np.ndarray:
        """The source of each coupling: [J, 2] int32."""
        names = PLUS_ID + 1 + np.arange(len(self.couplings), dtype=np.int32)
        return np.stack([names, np.full_like(names, EOS_ID)], axis=1)


@dataclass(frozen=True)
class RemaskRandomBlocks(RemaskPolicy):
    """Remasks k random positions before the last one (EOS), drawn uniformly for each row and step.

    Attributes:
      counts: k of each source; the rows of a source follow each other.
      seed: random seed.
    """

    counts: tuple[int, ...]
    seed: int = 0

    changes_with_step: ClassVar[bool] = True

    def __call__(self, view: StepView) -> Array:
        before_last = view.inside & jnp.pad(view.inside[:, 1:], ((0, 0), (0, 1)))
        noise = jax.random.uniform(jax.random.fold_in(jax.random.key(self.seed), view.step), view.inside.shape)
        rank = jnp.argsort(jnp.argsort(jnp.where(before_last, noise, 2.0), axis=-1), axis=-1)
        counts = jnp.repeat(jnp.array(self.counts), len(noise) // len(self.counts))
        return (rank < counts[:, None]) & before_last


def to_tokens(states: np.ndarray, n: int, masked: np.ndarray | int = 0, mask_id: int = 0) -> np.ndarray:
    """Converts states [...] to targets [..., n + 1] int32, EOS last; spins in the block `masked` become `mask_id`."""
    plus = (np.asarray(states)[..., None] >> np.arange(n)) & 1
    hidden = (np.asarray(masked)[..., None] >> np.arange(n)) & 1
    tokens = np.where(hidden, mask_id, np.where(plus, PLUS_ID, MINUS_ID))
    return np.concatenate([tokens, np.full((*tokens.shape[:-1], 1), EOS_ID)], axis=-1).astype(np.int32)


def to_states(tokens: np.ndarray) -> np.ndarray:
    """Converts targets [..., n + 1] to states [...]; 2^n if a position holds no spin."""
    written = np.asarray(tokens)[..., :-1]
    n = written.shape[-1]
    states = np.sum((written == PLUS_ID) << np.arange(n), axis=-1)
    return np.where(np.isin(written, (MINUS_ID, PLUS_ID)).all(axis=-1), states, 2**n)


def train_sampler(settings: LearnedSettings, probabilities: np.ndarray) -> tuple[PyTree, float]:
    """Trains the network on samples of the Ising models.

    Args:
      settings: the settings.
      probabilities: [J, X], the distribution of each Ising model.

    Returns:
      (parameters, mean loss of the last 100 steps).
    """
    model, mesh = settings.model(), make_mesh(jax.devices("cpu")[:1])
    warmup = max(1, settings.train_steps // 10)
    config = OptimizerConfig(peak_learning_rate=0.08, momentum=0.8, warmup_steps=warmup)
    optimizer, schedule = config.build(settings.train_steps), config.schedule(settings.train_steps)
    state = create_train_state(model, optimizer, settings.seed, mesh)
    step = make_train_step(model, optimizer, schedule, settings.seed, mesh)
    random = np.random.default_rng(settings.seed)
    data = np.stack([random.choice(row.size, settings.samples, p=row) for row in probabilities])
    losses = []
    for _ in progress(range(settings.train_steps), label="learned sampler", unit="steps"):
        which = random.integers(len(data), size=settings.batch_size)
        states = data[which, random.integers(settings.samples, size=settings.batch_size)]
        batch = {
            "encoder_input_tokens": settings.sources()[which],
            "decoder_target_tokens": to_tokens(states, settings.spins),
        }
        state, metrics = step(state, batch)
        # Waiting for the loss keeps thousands of updates from queueing up.
        losses.append(float(metrics["loss"]))
    return state.params, float(np.mean(losses[-100:]))


def spin_table(settings: LearnedSettings, params: PyTree) -> tuple[np.ndarray, float]:
    """The network's predictions for every state with every block masked.

    Returns:
      (table, leak). The table [J, 2^N - 1, X, N] holds P(+1) among the two spin tokens; in row b - 1 the block b is
      masked. The leak is the largest probability that any masked position gives to other tokens.
    """
    model, n = settings.model(), settings.spins
    blocks = np.arange(1, 2**n)
    inputs = to_tokens(np.arange(2**n)[None], n, blocks[:, None], model.ids.mask_id).reshape(-1, n + 1)
    count = len(settings.couplings)

    @jax.jit
    def logits(params: PyTree, source: Array, tokens: Array) -> Array:
        module = model.module(params)
        plan = module.network.plan(model.encode(params, source)[0], source, tokens)
        return module.network.logits(module.network.decode(tokens, plan).hidden)

    said = np.asarray(jax.nn.softmax(logits(params, settings.sources(), np.tile(inputs, (count, 1)))))
    said = said.reshape(count, len(blocks), 2**n, n + 1, -1)[..., :n, :].astype(np.float64)
    pair = said[..., [MINUS_ID, PLUS_ID]]
    hidden = ((blocks[:, None, None] >> np.arange(n)) & 1) > 0
    other = np.where(hidden, 1.0 - pair.sum(axis=-1), 0.0)
    return pair[..., 1] / pair.sum(axis=-1), float(other.max())


def run_loop(settings: LearnedSettings, params: PyTree) -> np.ndarray:
    """Runs PaDIR's decoding loop for every J and k, all in one batch.

    Returns:
      Frequencies [J, k, T, X + 1] of the states after each T in `settings.steps_of_loop()`. The last entry counts
      outputs that are not sequences of spins.
    """
    model, n, steps = settings.model(), settings.spins, settings.steps_of_loop()
    sizes = len(settings.block_sizes)
    sources = np.repeat(settings.sources(), sizes, axis=0)
    config = Refinement(
        num_steps=max(2, steps[-1]),
        sampling=Sampling(temperature=1.0),
        rewrite_only_remasked=True,
        remask=RemaskRandomBlocks(tuple(settings.block_sizes) * len(settings.couplings), settings.seed),
        stop=StopNever(),
        drop_repeats=False,
        return_trace=True,
        target_buckets=(n + 1,),
    )
    # Each run is a hypothesis of its source; all have the same length but different random numbers.
    lengths = np.full((len(sources), settings.runs), n + 1, np.int32)
    decode = jax.jit(model.decode, static_argnames="config")
    trace = decode(params, sources, jax.random.key(settings.seed + 1), config, lengths=lengths).trace
    # [T, J·k, runs]: the output of each step, before any position is remasked.
    states = to_states(np.asarray(trace.proposals)[np.array(steps) - 1])
    found = [[np.bincount(row, minlength=2**n + 1) / settings.runs for row in rows] for rows in states]
    return np.moveaxis(np.array(found), 0, 1).reshape(-1, sizes, len(steps), 2**n + 1)


def after_steps(plus_from_nothing: Array, transition: Array, steps: Sequence[int]) -> np.ndarray:
    """Distributions [T, X] of a chain after each number of steps; the first step draws all spins independently.

    Args:
      plus_from_nothing: [N], P(+1) of each spin in the first step.
      transition: [X, X], transition matrix of all later steps.
      steps: values of T, each at least 1.
    """
    values = spins(len(plus_from_nothing))
    plus = np.asarray(plus_from_nothing)
    start = np.prod(np.where(values > 0, plus, 1.0 - plus), axis=1)
    return np.stack([start @ np.linalg.matrix_power(np.asarray(transition), t - 1) for t in steps])


def learned(settings: LearnedSettings) -> tuple[dict[str, Any], list[Claim]]:
    """Trains the network and compares its decoding loop, as a Markov chain, with the truth.

    Call it in float64; training and decoding use float32 all the same.

    Returns:
      (data, claims). For each J and k, the data have the total variation between four samplers and the truth, after
      each T.

      * loop: PaDIR's decoding loop, simulated up to `loop_steps`.
      * chain: the exact Markov chain of the loop.
      * ideal: the same chain with the true marginals instead of the network's predictions.
      * k_gibbs: the chain that draws each block jointly.

      There is also loop_deviation: the largest difference between the frequencies of the loop and the probabilities of
      its chain, in standard errors.
    """
    n = settings.spins
    log_ps = [log_probabilities(jnp.asarray(clique_parameters(n, n, j, 0.0))) for j in settings.couplings]
    truth = np.exp(np.stack(log_ps))
    with jax.enable_x64(False):
        params, loss = train_sampler(settings, truth)
        plus, leak = spin_table(settings, params)
        frequencies = run_loop(settings, params)
    by_coupling: dict[str, Any] = {}
    for j, coupling in enumerate(settings.couplings):
        by_coupling[str(coupling)] = {
            str(k): _compare(settings, k, log_ps[j], plus[j], frequencies[j, at])
            for at, k in enumerate(settings.block_sizes)
        }
    data = {"settings": asdict(settings), "loss": loss, "leak": leak, "by_coupling": by_coupling}
    return data, learned_claims(data)


def _compare(settings: LearnedSettings, k: int, log_p: Array, plus: np.ndarray, found: np.ndarray) -> dict[str, Any]:
    """The data of one J and k.

    Args:
      settings: the settings.
      k: spins per step.
      log_p: [X], log probabilities of the Ising model.
      plus: [2^N - 1, X, N], the network's predictions for this J; see `spin_table`.
      found: [T, X + 1], frequencies of the loop.
    """
    truth, law, steps = np.exp(log_p), uniform_law(settings.spins, k), settings.steps
    said = jnp.asarray(plus[np.asarray(law.blocks) - 1])
    even = np.full(settings.spins, 0.5)  # The true marginals, because all fields are 0.
    distributions = {
        # In the first step all positions are MASK, so it uses the last row of the table.
        "chain": after_steps(plus[-1, 0], product_dynamics(said, law.blocks), steps),
        "ideal": after_steps(even, product_dynamics(block_marginals(log_p, law), law.blocks), steps),
        "k_gibbs": after_steps(even, block_dynamics(log_p, law), steps),
    }
    chain = distributions["chain"][: len(found)]
    errors = np.sqrt(np.maximum(chain * (1.0 - chain), 1e-4) / settings.runs)
    return {
        **{name: _distance(p, truth) for name, p in distributions.items()},
        "loop": _distance(found, np.append(truth, 0.0)),
        "loop_deviation": np.max(np.abs(found[:, :-1] - chain) / errors, axis=1).tolist(),
    }


def _distance(distributions: np.ndarray, truth: np.ndarray) -> list[float]:
    """Total variation between distributions [T, X] and the truth [X]."""
    return (np.abs(distributions - truth).sum(axis=1) / 2.0).tolist()


def learned_claims(data: dict[str, Any]) -> list[Claim]:
    """The claims about the learnt sampler. Claims that compare values of k or J need at least two of them.

    Args:
      data: the data that `learned` returns.
    """
    entries = [entry for by_k in data["by_coupling"].values() for entry in by_k.values()]
    by_k = list(data["by_coupling"].values())
    sizes = sorted(map(int, by_k[0]))
    small, large = str(sizes[0]), str(sizes[-1])
    limits, ideal = (
        np.array([[entry[str(k)][kind][-1] for k in sizes] for entry in by_k]) for kind in ("chain", "ideal")
    )
    claims = [
        Claim(
            "PaDIR's loop follows the chain computed for it: largest difference in standard errors",
            max(max(entry["loop_deviation"]) for entry in entries), "<=", 5.0,
        ),
        Claim("masked positions become spins: largest probability of other tokens", data["leak"], "<=", 0.01),
        Claim(
            f"k = {small} ends near the truth for every J: largest total variation", limits[:, 0].max(), "<=", 0.05,
            "this is the network's error, which decreases with the number of training samples",
        ),
        Claim(
            "the error comes from parallel decoding, not from learning: largest difference in total variation between "
            "the learnt chain and the chain with true marginals",
            max(abs(entry["chain"][-1] - entry["ideal"][-1]) for entry in entries), "<=", 0.05,
            "this is the network's error, which decreases with the number of training samples",
        ),
        Claim(
            f"k-Gibbs with k = {large} reaches the truth: total variation after two steps, for the largest J",
            by_k[-1][large]["k_gibbs"][1], "<=", 1e-9,
        ),
    ]  # fmt: skip
    if len(sizes) > 1:
        # For neighbouring k the network's error can exceed the effect of k, so the learnt chain is checked only for
        # the smallest and the largest k.
        claims += [
            Claim(
                "larger k ends farther from the truth, with true marginals: smallest increase from one k to the next, "
                "for the largest J",
                np.diff(ideal[-1]).min(), ">", 0.0,
            ),
            Claim(
                f"larger k ends farther from the truth, as learnt: smallest increase from k = {small} to k = {large}",
                (limits[:, -1] - limits[:, 0]).min(), ">", 0.0,
            ),
        ]  # fmt: skip
    if len(by_k) > 1:
        claims.append(Claim(
            "larger J ends farther from the truth: smallest increase from one J to the next, for the largest k",
            np.diff(limits[:, -1]).min(), ">", 0.0,
        ))  # fmt: skip
    return claims
