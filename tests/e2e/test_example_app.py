"""examples/app: a config goes in, a verdict and a plan come out; no part of it is run or shown raw."""

import json
import os
import subprocess
import sys
from http.client import HTTPConnection
from urllib.parse import urlencode, urlsplit
from urllib.request import urlopen

import pytest

from tests.contract.source_tree import ROOT
from tests.shell_command import fakexport_command

LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 64, "hidden_size": 32,
    "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2,
}  # fmt: skip


# Runs the app. Where it starts an interpreter for `-m fakexport`, it gets the executable that forks.
START = """
import runpy, sys
sys.executable, sys.argv = sys.argv[1], sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    tools = tmp_path_factory.mktemp("tools")
    interpreter = tools / "python"
    interpreter.write_text(f'#!/bin/sh\nshift 2\nexec "{tools / "fakexport"}" "$@"\n', encoding="utf-8")
    interpreter.chmod(0o755)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    app = ROOT / "examples" / "app" / "app.py"
    command = [sys.executable, "-c", START, interpreter, app, "--port", "0"]
    with (
        fakexport_command(tools / "fakexport"),
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as server,
    ):
        yield server.stdout.readline().strip()
        server.terminate()


def answer(address, **given):
    with urlopen(address, urlencode({"target": "H100", **given}).encode()) as page:
        return page.read().decode()


def test_the_form_is_shown(address):
    with urlopen(address) as page:
        text = page.read().decode()

    assert '<textarea name="config" required></textarea>' in text
    assert "<h2>" not in text


def test_a_config_gets_a_verdict_and_a_plan(address):
    text = answer(address, config=json.dumps(LLAMA), batch="2", context="16")

    assert "1 of 1 target exports; 0 errors" in text
    assert "batch 2, context 16: fits" in text


def test_what_is_wrong_is_shown_as_text(address):
    text = answer(address, config="<script>alert(1)</script>", target='"><b>')

    assert "&lt;script&gt;" in text
    assert "<script>" not in text
    assert "<b>" not in text


def test_an_option_cannot_be_passed_as_a_target(address, tmp_path):
    written = tmp_path / "report.html"

    text = answer(address, config=json.dumps(LLAMA), target=f"cpu --html={written}")

    assert "<h2>Verdict</h2>" in text
    assert not written.exists()


def test_code_of_a_repository_does_not_run(address, tmp_path):
    (tmp_path / "own.py").write_text("raise SystemExit('it ran')")
    own = {"model_type": "own", "auto_map": {"AutoConfig": "own.Own", "AutoModel": "own.Own"}}

    text = answer(address, config=json.dumps(own))

    assert "it ran" not in text
    assert "trust" in text


def test_a_large_request_is_refused(address):
    # Only the size is sent: the app refuses it before it reads the rest, and closes the connection.
    connection = HTTPConnection(urlsplit(address).netloc)
    connection.putrequest("POST", "/")
    connection.putheader("Content-Length", str(2 << 20))
    connection.endheaders()

    assert connection.getresponse().status == 413
