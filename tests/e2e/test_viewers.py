"""Graph viewers open what fakexport writes: the real packages, in a real browser."""

import shutil
import socket
import subprocess
import sys
import time
from contextlib import chdir
from pathlib import Path

import pytest
import torch
from torch import nn

from fakexport.archive import load, save, save_bundle
from fakexport.exporting.capture import export
from tests.forked import run_module

pytestmark = pytest.mark.slow
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
NO_GPU = ("--no-sandbox", "--use-gl=swiftshader", "--enable-unsafe-swiftshader", "--ignore-gpu-blocklist")

MODEL = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.drop = nn.Linear(8, 8), nn.Dropout(0.5)
    def forward(self, x):
        return x + self.drop(self.inner(x))

def blocks(): return nn.Sequential(*(Block() for _ in range(3))).train(), (torch.ones(4, 8),)
"""


class Doubled(nn.Module):
    """Has a constant that is computed from a weight, so its value is unknown until weights are bound."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.doubled = self.layer.weight.detach() * 2

    def forward(self, x):
        return self.layer(x) + self.doubled.sum()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """`model.pt2`, without weights, on two devices and with a size that varies."""
    made = tmp_path_factory.mktemp("viewers")
    (made / "models.py").write_text(MODEL)
    placed = ("--target", "cpu+H100", "--device-map", "0=cpu,=cuda:0", "--dynamic", "input.0=2..64")
    fakexport(made, "export", "models.py:blocks", *placed, "-o", "model.pt2", "--no-progress")
    return made


def fakexport(folder, *arguments):
    with chdir(folder):
        done = run_module("fakexport", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stderr.splitlines()


def reachable(process, port):
    end = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < end:
        try:
            return socket.create_connection(("localhost", port), timeout=1).close()
        except OSError:
            time.sleep(0.2)
    raise AssertionError("the server does not listen")


def free_port():
    with socket.socket() as taken:
        taken.bind(("localhost", 0))
        return taken.getsockname()[1]


@pytest.fixture(scope="module")
def browser():
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright, of the extra `browser`")
    if CHROMIUM is None:
        pytest.skip("needs a chromium on the PATH, such as Debian's package")
    with sync_api.sync_playwright() as started:
        running = started.chromium.launch(executable_path=CHROMIUM, args=NO_GPU)
        yield running
        running.close()


def test_model_explorer_shows_the_graph_and_what_colors_it(folder, browser):
    # Its wheel asks for an adapter of 500 MB that it does without:
    # pip install --no-deps ai-edge-model-explorer
    # pip install dacite flask ipython portpicker termcolor watchdog
    pytest.importorskip("model_explorer.config", reason="needs the package ai-edge-model-explorer")
    said = fakexport(folder, "view", "model.pt2", "-o", "graph.json")
    command = said[-1].removeprefix("open it with: ").split()
    assert command[0] == "model-explorer"
    from model_explorer.config import ModelExplorerConfig

    config = ModelExplorerConfig()
    config.add_model_from_path(str(folder / command[1]))
    for name in command[3].split(","):
        config.add_node_data_from_path(str(folder / name))
    port = free_port()
    program = [str(Path(sys.executable).with_name("model-explorer")), *command[1:]]
    options = ["--port", str(port), "--no_open_in_browser", "--skip_health_check"]
    server = subprocess.Popen([*program, *options], cwd=folder)
    page, errors = browser.new_page(), []
    page.on("pageerror", lambda error: errors.append(str(error)))
    try:
        reachable(server, port)
        page.goto(f"http://localhost:{port}/?data={config.to_url_param_value()}")
        page.get_by_text("Root-level nodes stats").wait_for(timeout=60_000)
        page.get_by_text("warning[FE901]").first.wait_for()
        text = page.inner_text("body").split()
    finally:
        server.terminate()
        server.wait()

    count = len(load(folder / "model.pt2").graph.nodes)
    assert text[text.index("count") + 1] == str(count)
    assert {"bytes", "device", "diagnostics", "cuda:0", "cpu"} <= set(text)
    assert not errors


@pytest.mark.parametrize("archive", ["model", "unknown_constant", "bundle"])
def test_netron_opens_archives_without_weights(archive, folder, browser):
    netron = pytest.importorskip("netron", reason="needs the package netron, of the extra `netron`")
    path = folder / f"{archive}.pt2"
    if archive == "unknown_constant":
        with pytest.warns(UserWarning, match="FE601"):
            save(export(Doubled, (torch.ones(2, 4),)), path)
    if archive == "bundle":
        program = load(folder / "model.pt2")
        save_bundle({"first": program, "second": program}, path)
    address = netron.start(str(path), address=("localhost", free_port()), browse=False)
    page = browser.new_page()
    page.context.add_cookies([{"name": "consent", "value": "1", "url": f"http://localhost:{address[1]}"}])
    try:
        page.goto(f"http://localhost:{address[1]}")
        shown = page.locator("body.default, body.alert")
        shown.wait_for(timeout=60_000)

        assert shown.get_attribute("class") == "default", page.inner_text("body")
        names = page.inner_text("body").split()
    finally:
        page.close()
        netron.stop(address)
    program = load(path, method="first" if archive == "bundle" else None)
    calls = [node for node in program.graph.nodes if str(node.target).startswith("aten.linear")]
    assert names.count("linear") == len(calls)
    with pytest.raises(AssertionError, match="not found in PT2 archive"):
        torch.export.load(path)
