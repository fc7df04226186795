"""The models that `quality.py` compares: how each is trained, and how it decodes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import gin as gin_config
from padir.cli import config
from padir.models.kinds import DecodeConfig

TEACHER = "ar"
REFERENCE = "AR, beam 5"  # What every system is compared with.
STEPS = (1, 4, 10)
LENGTHS = 5
BY_ITSELF = ", ranked by itself"  # Ends the name of a system in which a joint model ranks its own hypotheses.
# In the demo five lengths lose without their own probability (docs/results/lengths.md).
_BUCKETS = "Refinement.target_buckets=(8, 12, 16, 24)"  # Of Tatoeba's short sentences; each is compiled.
_RANKING = ("Refinement.num_hypotheses=5", "RankByLogProbability.length_weight=0.1")


@dataclass(frozen=True)
class Recipe:
    """How a model is trained.

    Attributes:
      title: what tables call it.
      decode: the kind of gin files in gin/decode that it decodes with.
      files: gin files that make it of the run's own model.
      shallow: whether all layers but one are the encoder's.
      distilled: whether it learns from the teacher's translations.
      start: the model whose parameters it starts with.
    """

    title: str
    decode: str = "padir"
    files: tuple[str, ...] = ()
    shallow: bool = False
    distilled: bool = True
    start: str | None = TEACHER

    @property
    def autoregressive(self) -> bool:
        """Whether it only writes token by token."""
        return self.decode == "ar"


# In the order of training: what others start from comes first, and what matters most.
MODELS = {
    TEACHER: Recipe("AR", "ar", distilled=False, start=None),
    "padir": Recipe("PaDIR"),
    "padir_raw": Recipe("PaDIR raw", distilled=False),
    "cmlm": Recipe("CMLM", "mask_predict", ("models/cmlm.gin",)),
    "disco": Recipe("DisCo", "disco", ("models/disentangled.gin",)),
    "sundae": Recipe("SUNDAE", "sundae", ("models/sundae.gin",)),
    "ar_shallow": Recipe("AR shallow", "ar", shallow=True, distilled=False, start=None),
    "padir_shallow": Recipe("PaDIR shallow", shallow=True, start="ar_shallow"),
    "joint": Recipe("joint", files=("models/joint.gin",)),
    # The baseline with a student's chances: the same data, start and seconds.
    "ar_distilled": Recipe("AR distilled", "ar"),
}


@dataclass(frozen=True)
class System:
    """A trained model with a way to decode.

    Attributes:
      model: its name in `MODELS`.
      decode_file: the gin file of the decode.
      bindings: what is set differently there.
      helper: 'rescore_with' or 'verify_with' for the teacher's help, else ''.
      averaged: whether its parameters are the mean of the last checkpoints, not the checkpoint of the lowest loss.
      likeliest_first: whether single sentences are decoded with `Refinement.likeliest_first`. Their translations are
        the same. In batches it does not pay: one unsure sentence keeps all waiting.
    """

    model: str
    decode_file: str
    bindings: tuple[str, ...] = field(default=())
    helper: str = ""
    averaged: bool = False
    likeliest_first: bool = False

    def decode(self) -> DecodeConfig:
        """The configuration for single sentences, of the same file and bindings as in `padir evaluate`."""
        config.parse([self.decode_file], list(self.bindings))
        decode = gin_config.query_parameter("evaluate.decode").scoped_configurable_fn()
        return replace(decode, likeliest_first=True) if self.likeliest_first else decode


def systems(models: Iterable[str]) -> dict[str, System]:
    """All systems of these models, by name."""
    found: dict[str, System] = {}
    for model in models:
        recipe = MODELS[model]
        # The loss of a student is measured on human translations; it can rise while its translations become better.
        mean = {"averaged": recipe.distilled}
        if recipe.autoregressive:
            found[f"{recipe.title}, greedy"] = System(model, "decode/ar_greedy.gin", **mean)
            found[main_system(model)] = System(model, "decode/ar_beam5.gin", **mean)
            found[_other(model)] = System(model, "decode/ar_beam5.gin", averaged=not recipe.distilled)
            continue
        for steps in STEPS:
            name = f"{recipe.title}, {steps} step{'s' if steps > 1 else ''}"
            found[name] = _parallel(model, steps, **mean)
            found[f"{name}, {LENGTHS} lengths"] = _parallel(model, steps, several=True, **mean)
            found[f"{name}, {LENGTHS} lengths, rescored"] = _parallel(model, steps, several=True, rescored=True, **mean)
        found[_other(model)] = _parallel(model, 4, several=True, averaged=not recipe.distilled)
        if model == "padir":
            found["AR verifies PaDIR"] = System(model, "decode/verified.gin", helper="verify_with", **mean)
        if model == "joint":
            judged = found[main_system(model)]
            bindings = (*judged.bindings, "Refinement.self_rescoring=True")
            found[f"{main_system(model)}{BY_ITSELF}"] = replace(judged, bindings=bindings)
            found["joint, greedy"] = System(model, "decode/ar_greedy.gin", **mean)
            found["joint verifies itself"] = System(model, "decode/verified.gin", **mean)
    return found


def main_system(model: str) -> str:
    """The name of the system by which a model is judged."""
    recipe = MODELS[model]
    return f"{recipe.title}, beam 5" if recipe.autoregressive else f"{recipe.title}, 4 steps, {LENGTHS} lengths"


def default_system(model: str) -> str:
    """The name of the system that decodes as a model does by default."""
    recipe = MODELS[model]
    return f"{recipe.title}, greedy" if recipe.autoregressive else f"{recipe.title}, 4 steps"


def _other(model: str) -> str:
    """The name of the same system with the other kind of checkpoint."""
    return f"{main_system(model)}, {'lowest loss' if MODELS[model].distilled else 'last 5 averaged'}"


def _parallel(
    model: str, steps: int, *, several: bool = False, rescored: bool = False, averaged: bool = False
) -> System:
    kind = MODELS[model].decode
    bindings = [f"Refinement.num_steps={steps}", _BUCKETS]
    if kind == "mask_predict" and steps == 1:
        # There is nothing to mask again; a schedule needs two steps.
        bindings.append("Refinement.remask=@RemaskNothing()")
    if several:
        bindings += _RANKING
    helper = "rescore_with" if rescored else ""
    first = several and not rescored and kind in ("padir", "mask_predict")
    return System(model, f"decode/{kind}_4.gin", tuple(bindings), helper, averaged, first)


def warm_up(num_steps: int) -> str:
    """The argument of `padir train` that warms up in a tenth of the run, whatever its number of updates."""
    return f"--gin.OptimizerConfig.warmup_steps={max(num_steps // 10, 1)}"


def training_arguments(
    model: str, preset_files: Iterable[str], bindings: Iterable[str], *, reverse: bool, layers: int
) -> list[str]:
    """Arguments of `padir train` that choose the model and its training.

    Args:
      model: its name in `MODELS`.
      preset_files: gin files of the preset, which go on top of the run.
      bindings: what else is set, as NAME=VALUE.
      reverse: whether to translate from English to German.
      layers: how many the encoder and the decoder have together.
    """
    recipe = MODELS[model]
    run = f"runs/tatoeba_de_en_{'ar' if recipe.autoregressive else 'padir'}.gin"
    files = [run, *preset_files, *(["runs/tatoeba_en_de.gin"] if reverse else []), *recipe.files]
    files += ["runs/distilled.gin"] if recipe.distilled else []
    shape = {"num_encoder_layers": layers - 1, "num_decoder_layers": 1} if recipe.shallow else {}
    bound = [*(f"NetworkConfig.{name}={value}" for name, value in shape.items()), *bindings]
    return [*(f"--gin_file={file}" for file in files), *(f"--gin.{binding}" for binding in bound)]
