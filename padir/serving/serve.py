"""`padir serve`: answers requests for translations over HTTP."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import os
import sys
from collections.abc import Sequence

from padir.decoding.refinement import Refinement
from padir.errors import PadirError, how_to_install
from padir.files.paths import as_path
from padir.inference.translator import Translator, load
from padir.models.kinds import DecodeConfig
from padir.serving.limits import Limits
from padir.serving.models import ServedModel, batch_sizes

# The extra padir[serve].
_NEEDS = ("starlette", "uvicorn")


def serve(
    *,
    run_dir: str,
    name: str | None = None,
    others: Sequence[str] = (),
    host: str = "127.0.0.1",
    port: int = 8000,
    decode: DecodeConfig | None = None,
    rescore_with: str | None = None,
    verify_with: str | None = None,
    constraint: str | None = None,
    compute_type: str | None = None,
    max_batch_size: int = 16,
    max_wait_ms: float = 3.0,
    limits: Limits = Limits(),
    source_language: str | None = None,
    target_language: str | None = None,
    examples: Sequence[str] = (),
    cors_origins: Sequence[str] = (),
    hosts: Sequence[str] = (),
    warm_up: bool = True,
    seed: int = 0,
) -> None:
    """Serves translations until it is told to stop (SIGTERM, or Ctrl-C), and then finishes what is in flight.

    The server answers at once. `/health` says when all programs are compiled; before that, a request may have to wait
    for a compilation. One that nobody waits for does not delay the end: the process exits from here, with status 0.

    Args:
      run_dir: the run directory of the model, or another model that `padir.load` opens.
      name: what clients call it; the name of its folder by default.
      others: further models, each as NAME=RUN_DIR. They decode by their default configuration.
      host: the address to listen on. The default can only be reached from this machine.
      port: the port; 0 lets the system choose one, which is printed.
      decode: the decode configuration. None takes the model's default; of a refinement, with `compact_rows`.
      rescore_with: an autoregressive model that ranks the hypotheses of a parallel model.
      verify_with: an autoregressive model that verifies a parallel model's drafts; see `padir.load`.
      constraint: the JSON file of a constraint that every translation must obey; see `padir.data.constraints`.
      compute_type: 'bfloat16', 'int8' or 'auto' to round the factors of products with weights; see `padir.load`.
      max_batch_size: the most texts of one batch, a power of 2.
      max_wait_ms: how long a text may wait for others to share its batch. A request alone never waits.
      limits: what is accepted.
      source_language, target_language: codes such as 'de' and 'en'. If given, requests for others are refused.
      examples: texts that the page offers to begin with.
      cors_origins: origins, such as 'https://example.org', whose pages may call the server from a browser.
      hosts: names that requests may call the server by beside this machine's own, such as 'translate.example.org'. By
        default any, but a server that only this machine can reach answers to its own names alone.
      warm_up: whether to compile all programs at the start.
      seed: the seed of random decoding.

    Raises:
      PadirError: a model cannot be opened, an option is wrong, or the extra padir[serve] is not installed.
    """
    if missing := [name for name in _NEEDS if importlib.util.find_spec(name) is None]:
        raise PadirError(f"serve: needs {' and '.join(missing)}; {how_to_install('serve')}")
    # Only here, so that other commands need neither starlette nor uvicorn.
    from padir.serving.app import Server
    from padir.serving.listen import listen

    if (source_language is None) != (target_language is None):
        raise PadirError("serve: give both source_language and target_language, or neither")
    if constraint is not None and others:
        raise PadirError("serve.constraint: would hold for the first model only; serve the others without it")
    if wrong := [each for each in hosts if not each or set(each) & set("*/: ")]:
        raise PadirError(f"serve.hosts: {wrong[0]!r} is no name of a host; give names such as translate.example.org")
    if not 0 <= max_wait_ms <= 1000:
        raise PadirError(f"serve.max_wait_ms: {max_wait_ms} is not from 0 to 1000 milliseconds")
    paths = _named(run_dir, name, others)
    sizes = batch_sizes(max_batch_size)
    models = []
    for index, (called, path) in enumerate(paths.items()):
        options = {"rescore_with": rescore_with, "verify_with": verify_with, "constraint": constraint}
        translator = load(path, seed=seed, compute_type=compute_type, **({} if index else options))
        chosen = _for_batches(translator) if index or decode is None else decode
        chosen = translator.checked(chosen, has_lengths=False)
        models.append(ServedModel(called, translator, chosen, sizes, examples=() if index else tuple(examples)))
    languages = None if source_language is None else (source_language, target_language)
    server = Server(models, limits, max_wait=max_wait_ms / 1e3, languages=languages, warm_up=warm_up)
    listen(server, host=host, port=port, cors_origins=cors_origins, hosts=hosts)
    if server.batcher is not None and server.batcher.left_work_behind:
        # The interpreter would wait for the thread that compiles; all requests have been answered.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _for_batches(translator: Translator) -> DecodeConfig:
    """The translator's default configuration, of which a large batch drops rows that are finished if it can."""
    decode = translator.default_decode
    if isinstance(decode, Refinement):
        # Not every default can.
        with contextlib.suppress(PadirError):
            return translator.checked(dataclasses.replace(decode, compact_rows=True), has_lengths=False)
    return decode


def _named(run_dir: str, name: str | None, others: Sequence[str]) -> dict[str, str]:
    """The models' paths by name, the main one first."""
    paths = {name or as_path(run_dir).resolve().name: run_dir}
    for other in others:
        called, equals, path = other.partition("=")
        if not (called and equals and path):
            raise PadirError(f"serve.others: {other!r} is not of the form NAME=RUN_DIR")
        if called in paths:
            raise PadirError(f"serve.others: two models are called {called!r}; choose other names")
        paths[called] = path
    return paths
