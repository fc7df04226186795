"""Can the data pipeline feed a TPU v3-32: `python benchmarks/feed.py --data FOLDER --output FILE.json`.

Makes a synthetic prepared set in FOLDER, unless it is there: random ids and text, with lengths like those of WMT14
German to English. Reads it as `padir train` does on one of `--hosts` hosts with the buckets and batch size of
`gin/runs/wmt_base.gin`, in two ways:

- as fast as possible: the padded tokens per second that the host's pipeline delivers, and their CPU time. They are
  compared with what the host needs: its share of an update of 2,048 pairs of 64 → 64 tokens, in the time that XLA's
  compiler for TPU estimates for it (`tpu_programs.json`).
- at the pace of the accelerator: the reader sleeps after each batch for as long as its update would take, in proportion
  to its padded tokens. The mean wait for a batch within an epoch is the `data_seconds` of training. At the end of an
  epoch, where the order of the next one is computed, the longest wait is measured.

Files are read into the page cache first, so that no disk is measured, or with --cold are dropped from it. Prints the
figures and writes JSON.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from padir.benchmark.facts import run_facts
from padir.data.batching import PREFETCHED_BATCHES, READ_THREADS, Batch, Buckets, train_batches
from padir.data.manifest import MANIFEST_NAME, Manifest, PrepareSettings, TaskConfig, recorded_settings
from padir.data.records import PreparedSet, PreparedSplit, SplitWriter
from padir.errors import PadirError
from padir.files.atomic import make_folder, write_text
from padir.types import EOS_ID, UNK_ID, RowShare

ESTIMATES = Path(__file__).parent / "results" / "tpu_programs.json"
PROGRAM = "training PaDIR, bfloat16, v3-32"
PROGRAM_TOKENS = 64 + 64  # Padded tokens of a pair in that program, on both sides.
BUCKETS, BATCH_SIZE = (16, 24, 32, 48, 64, 96, 128), 2048
NUM_PIECES, LONGEST = 32_000, 128
BYTES_PER_TOKEN = 5
_PAIRS_AT_ONCE = 50_000

Pipeline = Callable[..., Iterator[Batch]]


def main() -> None:
    """Makes the set if needed, measures, prints the figures and writes them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", required=True, help="JSON file to write")
    parser.add_argument("--data", required=True, help="folder of the synthetic set; made if missing")
    parser.add_argument("--pairs", type=int, default=4_500_000)
    parser.add_argument("--batch_size", type=int, default=BATCH_SIZE, help="pairs per update, over all hosts")
    parser.add_argument("--hosts", type=int, default=4, help="hosts that share a batch; a v3-32 has 4")
    parser.add_argument("--batches", type=int, default=200, help="batches to measure in each way")
    parser.add_argument("--cold", action="store_true", help="drop the files from the page cache first")
    options = parser.parse_args()
    facts = run_facts()
    make_set(options.data, options.pairs)
    for path in Path(options.data).iterdir():
        with path.open("rb") as file:
            if options.cold:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            else:
                while file.read(1 << 24):
                    pass
    result = {"cold": options.cold} | measure(options.data, options.batch_size, options.hosts, options.batches)
    write_text(Path(options.output), json.dumps({"facts": facts} | result, indent=2) + "\n")
    rate, paced, turn = result["unpaced"], result["paced"], result["wait_seconds_at_end_of_epoch"]
    print(
        f"{options.pairs} pairs, one of {options.hosts} hosts: {rate['padded_tokens_per_second']:.3g} padded tokens/s, "
        f"{result['delivered_over_needed']:.2f} times what it needs ({result['cores_needed']:.2f} cores); first batch "
        f"after {rate['seconds_to_first_batch']:.2f} s; data_seconds {paced['data_seconds']:.5f}, p99 "
        f"{paced['wait_seconds_p99']:.5f}; longest wait at the end of an epoch {turn:.2f} s"
    )


def make_set(directory: str, pairs: int) -> None:
    """Writes random pairs as a train split in the format of `padir prepare`, without a vocabulary, unless it is there.

    Raises:
      PadirError: the folder has a set of another size.
    """
    folder = Path(directory)
    if (folder / MANIFEST_NAME).exists():
        if (found := Manifest.load(folder).splits["train"].num_examples) != pairs:
            raise PadirError(f"{folder}: has {found} pairs, not {pairs}; choose another folder or delete this one")
        return
    make_folder(folder)
    settings = PrepareSettings(num_pieces=NUM_PIECES, max_source_length=LONGEST, max_target_length=LONGEST)
    writer = SplitWriter(folder, "train", settings.records_per_shard)
    generator = np.random.default_rng(0)
    text = generator.choice(np.frombuffer(b"abcdefghijklmnopqrstuvwxyz      ", np.uint8), 1 << 20).tobytes()
    for first in range(0, pairs, _PAIRS_AT_ONCE):
        ends = draw_lengths(generator, min(_PAIRS_AT_ONCE, pairs - first)).ravel().cumsum()
        ids = generator.integers(UNK_ID + 1, NUM_PIECES, ends[-1], np.int32)
        ids[ends - 1] = EOS_ID
        sides = np.split(ids, ends[:-1])
        places = generator.integers(0, len(text) - BYTES_PER_TOKEN * LONGEST, len(sides)).tolist()
        texts = [text[at : at + BYTES_PER_TOKEN * len(side)] for at, side in zip(places, sides, strict=True)]
        for i in range(0, len(sides), 2):
            writer.write(sides[i], sides[i + 1], texts[i], texts[i + 1])
    split = writer.close(dropped=0, truncated=0, skipped_empty=0)
    task = TaskConfig("benchmarks.feed", "feed", {"pairs": pairs})
    Manifest(task, recorded_settings(settings), "", NUM_PIECES, {"train": split}).save(folder)


def draw_lengths(generator: np.random.Generator, pairs: int) -> np.ndarray:
    """Draws lengths of sources and targets, int64 [pairs, 2], in tokens.

    Sources are log-normal with a mean of 28, targets are near their sources, and both have 2 to `LONGEST` tokens.
    """
    source = generator.lognormal(np.log(24.0), 0.6, pairs)
    target = source * generator.lognormal(0.0, 0.2, pairs)
    return np.clip(np.stack([source, target], axis=1), 2, LONGEST).astype(np.int64)


def measure(directory: str, batch_size: int, hosts: int, count: int) -> dict[str, Any]:
    """Measures the pipeline of the first of `hosts` hosts on `count` batches in each way; returns what to write."""
    estimates = json.loads(ESTIMATES.read_text(encoding="utf-8"))
    step_seconds = estimates["programs"][PROGRAM]["estimated_seconds"]
    needed = batch_size * PROGRAM_TOKENS / step_seconds / hosts
    split = PreparedSet.open(directory).split("train")
    pipeline = host_pipeline(split, batch_size, hosts)
    unpaced = deliver(pipeline, count)
    steps = len(split) // batch_size
    return {
        "pairs": len(split),
        "mean_lengths": split.lengths.mean(axis=0).tolist(),
        "bytes": sum(path.stat().st_size for path in Path(directory).iterdir()),
        "batch_size": batch_size,
        "buckets": BUCKETS,
        "hosts": hosts,
        "batches": count,
        "read_threads": READ_THREADS,
        "prefetched_batches": PREFETCHED_BATCHES,
        "step": {"program": PROGRAM, "seconds": step_seconds, "origin": estimates["estimated_by"]},
        "unpaced": unpaced,
        "needed_padded_tokens_per_second": needed,
        "delivered_over_needed": unpaced["padded_tokens_per_second"] / needed,
        "cores_needed": needed / unpaced["padded_tokens_per_core_second"],
        "paced": pace(pipeline, needed, 0, count),
        "steps_per_epoch": steps,
        "wait_seconds_at_end_of_epoch": pace(pipeline, needed, max(0, steps - count // 2), count)["wait_seconds_max"],
    }


def host_pipeline(split: PreparedSplit, batch_size: int, hosts: int) -> Pipeline:
    """Returns `train_batches` for the first of `hosts` hosts; it still takes `start_step` and `num_steps`."""
    order = {"buckets": Buckets.square(BUCKETS), "batch_size": batch_size, "seed": 0}
    return functools.partial(train_batches, split, **order, share=RowShare((0,), hosts))


def deliver(pipeline: Pipeline, count: int) -> dict[str, float]:
    """Takes batches as fast as they come; returns rates, and wall and CPU time per batch. The first do not count."""
    began = time.perf_counter()
    # More than are counted, so that the reader threads work until the end.
    batches = pipeline(start_step=0, num_steps=count + 4 * PREFETCHED_BATCHES)
    next(batches)
    first = time.perf_counter() - began
    for _ in range(2 * PREFETCHED_BATCHES):
        next(batches)
    began, cpu = time.perf_counter(), time.process_time()
    waits, found = zip(*(_timed(batches) for _ in range(count)), strict=True)
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    for _ in batches:
        pass
    padded = sum(map(padded_tokens, found))
    targets = sum(np.count_nonzero(batch["decoder_target_tokens"]) for batch in found)
    return {
        "seconds_to_first_batch": first,
        "padded_tokens_per_second": padded / seconds,
        "target_tokens_per_second": targets / seconds,
        "padded_tokens_per_core_second": padded / cpu,
        "padded_tokens_per_batch": padded / count,
        "seconds_per_batch_median": float(np.median(waits)),
        "seconds_per_batch_p99": float(np.percentile(waits, 99)),
        "cpu_seconds_per_batch": cpu / count,
    }


def pace(pipeline: Pipeline, tokens_per_second: float, start: int, count: int) -> dict[str, float]:
    """Takes batches from step `start` on as a device would that computes so many padded tokens of this host per second.

    Returns:
      'data_seconds', the mean wait for a batch, and median, 99th percentile and maximum; the first does not count.
    """
    batches = pipeline(start_step=start, num_steps=count + 1)
    batch, waits = next(batches), []
    for _ in range(count):
        time.sleep(padded_tokens(batch) / tokens_per_second)
        wait, batch = _timed(batches)
        waits.append(wait)
    return {
        "data_seconds": float(np.mean(waits)),
        "wait_seconds_median": float(np.median(waits)),
        "wait_seconds_p99": float(np.percentile(waits, 99)),
        "wait_seconds_max": max(waits),
    }


def padded_tokens(batch: Batch) -> int:
    """Returns the number of positions of a batch, on both sides, padding included."""
    return batch["encoder_input_tokens"].size + batch["decoder_target_tokens"].size


def _timed(batches: Iterator[Batch]) -> tuple[float, Batch]:
    """Returns the wait for the next batch, in seconds, and the batch."""
    began = time.perf_counter()
    batch = next(batches)
    return time.perf_counter() - began, batch


if __name__ == "__main__":
    main()
