"""The small experiment of test cases (thesis, section 3.2.2, in miniature): a language model of lines, and samplers.

    python benchmarks/append_tests_mini.py --output=benchmarks/results/append_tests_mini_cpu.json

It trains a model of about 700,000 parameters, a linear verifier of every layer, and compares backtracking with plain
sampling, a random verifier and block best-of-4: distinct correct test cases, and tokens generated. Beside the result it
draws them, as in the thesis's Figure 3.3.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from pathlib import Path

from padir.appending import pictures
from padir.appending.mini import MiniConfig, mini
from padir.appending.protocol import Row
from padir.benchmark.facts import run_facts
from padir.files.atomic import write_text
from padir.nn.network import NetworkConfig


def main() -> None:
    """Runs it, prints rows and claims, and writes the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=MiniConfig.steps)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    network = NetworkConfig(
        embed_dim=128,
        num_heads=4,
        head_dim=32,
        mlp_dim=256,
        num_encoder_layers=1,
        num_decoder_layers=3,
        tied_logits=False,
        causal=True,
        positional_attention=False,
        dropout_rate=0.0,
    )
    config, begin = MiniConfig(network, steps=options.steps, seed=options.seed), time.monotonic()
    facts = run_facts()
    result = mini(config)
    facts |= {"seconds": time.monotonic() - begin, "config": dataclasses.asdict(config)}
    write_text(options.output, json.dumps({"facts": facts, **result}, indent=1) + "\n")
    rows = {name: Row(**row) for name, row in result["rows"].items()}
    pictures.draw(options.output.with_suffix(".png"), rows, f"A model of {result['parameters']:,} parameters")
    for name, row in result["rows"].items():
        print(f"{name}: {row['accuracy'][0]:.3f} ± {row['accuracy'][1]:.3f}, C {row['queries'][0]:.0f}")
    print("\n".join(claim["line"] for claim in result["claims"]))


if __name__ == "__main__":
    main()
