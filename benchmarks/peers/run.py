"""Latency of T5 in other engines at the paper's size: `python benchmarks/peers/run.py --output peers_cpu.json`.

Measures Hugging Face Transformers and CTranslate2 (float32 and int8) with greedy and beam search on one T5 with random
weights and the size of `gin/models/paper_base_ar.gin`, and CTranslate2 on one with 12 encoder layers and one decoder
layer, too. A request has batch size 1 and 32 source ids, and its answer is
exactly 32 target ids: as in `gin/bench/fixed_32.gin`, no engine may stop early. The engines take turns in a random
order in one process. They need an environment of their own:

  python -m venv peers && peers/bin/pip install -r benchmarks/peers/requirements.txt
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path

import ctranslate2
import torch
import transformers
from tokenizers import Tokenizer, models

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
# Of padir, which is not installed here, only what needs no JAX.
from padir.runtime.cpu import cpu_info, x86_extensions

VOCAB = 32_128
CONFIG = {
    "vocab_size": VOCAB,
    "d_model": 512,
    "d_kv": 64,
    "d_ff": 2048,
    "num_heads": 8,
    "feed_forward_proj": "relu",
    "tie_word_embeddings": True,
    "dropout_rate": 0.0,
    "decoder_start_token_id": 0,
    "pad_token_id": 0,
    "eos_token_id": 1,
}


def main() -> None:
    """Builds and converts the model, measures the engines, prints the figures and writes them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", required=True, help="JSON file to write")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--length", type=int, default=32, help="tokens of source and target")
    options = parser.parse_args()
    if options.repeats < 2:
        parser.error(f"--repeats: {options.repeats} is not enough for quantiles; at least 2")
    torch.set_num_threads(options.threads)
    before = os.getloadavg()
    with tempfile.TemporaryDirectory() as folder:
        systems = _systems(Path(folder), options.length, options.threads)
        for answer in systems.values():
            answer()
            answer()
        samples: dict[str, list[float]] = {name: [] for name in systems}
        for _ in range(options.repeats):
            for name in random.sample(list(systems), len(systems)):
                began = time.perf_counter()
                systems[name]()
                samples[name].append(1e3 * (time.perf_counter() - began))
    packages = ("torch", "transformers", "ctranslate2")
    result = {
        "facts": {
            "commit": subprocess.run(
                ["git", "describe", "--always", "--dirty", "--abbrev=40"],
                capture_output=True,
                text=True,
                cwd=Path(__file__).parent,
            ).stdout.strip(),
            "command": " ".join(["benchmarks/peers/run.py", *sys.argv[1:]]),
            "date": datetime.date.today().isoformat(),
            "cpu": cpu_info("model name"),
            "cpu_features": sorted(x86_extensions() & {"avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_int8"}),
            "platform": platform.platform(),
            "cpu_count": os.cpu_count(),
            "threads": options.threads,
            "load_average": list(before),
            "load_average_after": list(os.getloadavg()),
            "versions": {name: metadata.version(name) for name in packages},
        },
        "length": options.length,
        "systems": {
            name: {
                "n": len(found),
                "median": statistics.median(found),
                "min": min(found),
                "p99": statistics.quantiles(found, n=100, method="inclusive")[98],
            }
            for name, found in samples.items()
        },
    }
    Path(options.output).write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    for name, found in result["systems"].items():
        print(f"{name}: median {found['median']:.1f} ms, fastest {found['min']:.1f} (n = {found['n']})")


def _systems(folder: Path, length: int, threads: int) -> dict:
    """Returns, by name, a function that answers one request and checks that the answer has `length` tokens."""
    random.seed(0)
    ids = [random.randrange(3, VOCAB) for _ in range(length - 1)] + [1]
    pieces = [_piece(token) for token in ids]
    systems = {}
    for shape, layers in {"": (6, 6), " 12-1": (12, 1)}.items():
        torch.manual_seed(0)
        config = transformers.T5Config(**CONFIG, num_layers=layers[0], num_decoder_layers=layers[1])
        model = transformers.T5ForConditionalGeneration(config).eval()
        saved = folder / f"t5{shape}"
        model.save_pretrained(saved)
        _tokenizer().save_pretrained(saved)
        if not shape:
            for name, beams in _SEARCHES.items():
                systems[f"Transformers float32, {name}"] = _transformers(model, torch.tensor([ids]), length, beams)
        for kind in ("float32", "int8"):
            converted = str(folder / f"{kind}{shape}")
            ctranslate2.converters.TransformersConverter(str(saved)).convert(converted, quantization=kind)
            translator = ctranslate2.Translator(converted, compute_type=kind, intra_threads=threads)
            for name, beams in _SEARCHES.items():
                systems[f"CTranslate2{shape} {kind}, {name}"] = _ctranslate2(translator, pieces, length, beams)
    return systems


def _transformers(model: transformers.T5ForConditionalGeneration, source: torch.Tensor, length: int, beams: int):
    options = {"num_beams": beams, "min_new_tokens": length, "max_new_tokens": length, "do_sample": False}

    def answer() -> None:
        with torch.inference_mode():
            found = model.generate(source, **options)
        # The output begins with the start token.
        assert found.shape == (1, length + 1), found.shape

    return answer


_SEARCHES = {"greedy": 1, "beam 5": 5}


def _ctranslate2(translator: ctranslate2.Translator, pieces: list[str], length: int, beams: int):
    options = {"beam_size": beams, "min_decoding_length": length, "max_decoding_length": length}

    def answer() -> None:
        found = translator.translate_batch([pieces], **options)
        assert len(found[0].hypotheses[0]) == length, len(found[0].hypotheses[0])

    return answer


def _piece(token: int) -> str:
    return {0: "<pad>", 1: "</s>", 2: "<unk>"}.get(token, f"piece{token}")


def _tokenizer() -> transformers.PreTrainedTokenizerFast:
    """A tokenizer with one made-up piece per id, because converters need a vocabulary."""
    vocabulary = [(_piece(token), -float(token)) for token in range(VOCAB)]
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.Unigram(vocabulary, unk_id=2)),
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
    )


if __name__ == "__main__":
    main()
