"""A real server, and a real browser for the tests of the page."""

import os
import re
import shutil
import subprocess
import sys

import pytest
import quick_compilation

CHROMIUM = os.environ.get("PADIR_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    if CHROMIUM is None:
        pytest.skip("needs Chromium: apt-get install chromium, or name another one in PADIR_CHROMIUM")
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install '.[dev]'")
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch_persistent_context(
            str(tmp_path_factory.mktemp("profile")),
            executable_path=CHROMIUM,
            headless=True,
            args=FLAGS,
            viewport={"width": 1200, "height": 900},
            reduced_motion="reduce",
            color_scheme="light",
        )
        opened.set_default_timeout(60_000)
        yield opened
        opened.close()


@pytest.fixture
def served(compilation_cache):
    """(process, URL) of the pretrained model, which has compiled nothing yet."""
    options = ["--run_dir=tatoeba_de_en_padir", "--port=0", "--no-warm_up", "--gin.serve.decode=@Refinement()"]
    options += ["--gin.Refinement.target_buckets=(16,)", "--gin.serve.limits=@Limits()", "--gin.Limits.max_seconds=500"]
    environment = {**os.environ, **compilation_cache, "XLA_FLAGS": quick_compilation.child_flags()}
    command = [sys.executable, "-m", "padir.cli", "serve", *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        lines = iter(process.stderr.readline, "")
        found = next((line for line in lines if "running on" in line), None)
        assert found is not None, f"the server has ended with status {process.wait()}"
        yield process, re.search(r"http://127\.0\.0\.1:\d+", found).group()
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
