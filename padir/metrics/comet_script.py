"""The script that runs COMET in an environment without padir; it imports only the standard library and COMET.

It reads {"model": …, "rows": [{"src": …, "mt": …, "ref": …}, …]} from standard input and writes a list with one score
per row to standard output, both as JSON. See `padir.metrics.comet_process`.
"""

import json
import os
import sys


def main() -> None:
    """Reads one request from standard input and writes its scores to standard output."""
    request = json.load(sys.stdin)
    # Standard output carries only the answer, so whatever COMET and its libraries print goes to standard error.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answer:
        os.dup2(2, 1)
        from comet import download_model, load_from_checkpoint

        path = request["model"]
        if not os.path.exists(path):
            path = download_model(path)
        # gpus=0, because the process that decodes already holds the accelerator's memory.
        found = load_from_checkpoint(path).predict(request["rows"], batch_size=8, gpus=0)
        json.dump([float(score) for score in found.scores], answer)


if __name__ == "__main__":
    main()
