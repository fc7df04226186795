"""PaDIR: parallel decoding by iterative refinement (arXiv 2407.21046) in JAX and Flax.

Folders are layers. From the top floor down, each imports only from those below it:

    cli
    dyck, appending, topics, brackets
    demo, analysis, theory, compilation
    verifier
    serving
    evaluation, benchmark
    inference, training
    runs
    interop
    models
    decoding, objectives
    data
    nn
    metrics, runtime
    files

The modules of this folder itself are the ground that everything may use.
"""

__version__ = "0.1.0"


def load(path, **options):
    """Opens a run directory written by `padir train`, or a checkpoint from elsewhere, and returns a translator.

    Args:
      path: a run directory, a T5 folder of Hugging Face, or a T5X checkpoint (str or path-like).
      **options: passed on to `padir.inference.translator.load`, e.g. `step=1000` for another checkpoint, or
        `vocabulary="spiece.model"` for a checkpoint that has none beside it, or `rescore_with="runs/ar"`,
        or `verify_with="runs/ar"`, or `constraint="terms.json"`, which every translation obeys.

    Returns:
      A `padir.inference.translator.Translator`; `.translate(["…"])` returns one `Translation` per text.

    Raises:
      PadirError: there is no trained model, or its vocabulary does not match, or there is none.
    """
    # Imported here so that `import padir` alone costs nothing and starts no JAX backend.
    from padir.inference.translator import load as load_translator

    return load_translator(path, **options)
