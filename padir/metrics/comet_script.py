"""Runs COMET in the interpreter that has it, which need not have padir: the standard library and COMET, nothing else.

Reads {"model": …, "rows": [{"src": …, "mt": …, "ref": …}, …]} from standard input, writes a score a row to standard
output, both as JSON. See `padir.metrics.comet_process`.
"""

import json
import os
import sys


def main() -> None:
    """Answers one request."""
    request = json.load(sys.stdin)
    # What COMET and its libraries print goes to standard error.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answer:
        os.dup2(2, 1)
        from comet import download_model, load_from_checkpoint

        path = request["model"]
        if not os.path.exists(path):
            path = download_model(path)
        # gpus=0: the process that decodes holds the accelerator's memory.
        found = load_from_checkpoint(path).predict(request["rows"], batch_size=8, gpus=0)
        json.dump([float(score) for score in found.scores], answer)


if __name__ == "__main__":
    main()
