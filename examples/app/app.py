"""A web page that takes a model's config, and shows whether it exports and how much memory it needs.

    python examples/app/app.py

Then open http://localhost:8000. It needs only fakexport with the extra `transformers`. It runs no code of the
model: a config that names code of its repository is an error.
"""

import argparse
import html
import subprocess
import sys
import tempfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs

MOST_BYTES = 1 << 20
TIMEOUT_S = 300
PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Does it export, does it fit?</title>
<style>
body {{ font: 1rem/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }}
textarea {{ width: 100%; height: 14rem; font-family: monospace; box-sizing: border-box; }}
pre {{ overflow-x: auto; background: #8882; padding: 1rem; }}
:root {{ color-scheme: light dark; }}
</style>
<h1>Does it export, does it fit?</h1>
<form method="post">
<p><label>config.json of the model<br><textarea name="config" required>{config}</textarea></label></p>
<p><label>Target <input name="target" value="{target}" required></label>
<label>Batch <input name="batch" type="number" min="1" value="{batch}" required></label>
<label>Context <input name="context" type="number" min="2" value="{context}" required></label>
<button>Check</button></p>
</form>
{results}
</html>
"""
DEFAULTS = {"config": "", "target": "H100", "batch": "1", "context": "4096"}


def fakexport(folder, *arguments):
    """Return the output of a command, which runs in a process of its own."""
    command = [sys.executable, "-m", "fakexport", *arguments, "--no-progress"]
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"stopped after {TIMEOUT_S} s"
    return done.stdout or done.stderr


def results(asked):
    """Yield a title and a text for the verdict and for the plan of a config."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(asked["config"], encoding="utf-8")
        model = ["hf:config.json", f"--target={asked['target']}", "--dtype=bfloat16"]
        sizes = [f"--batch={asked['batch']}", f"--context={asked['context']}"]
        yield "Verdict", fakexport(folder, "check", *model, "--device-map=balanced")
        yield "Plan", fakexport(folder, "plan", *model, "--workload=prefill", "--device-map=balanced", *sizes)


class Handler(BaseHTTPRequestHandler):
    """Shows the form, and below it what fakexport prints for the config."""

    def do_GET(self):
        self.show(DEFAULTS, ())

    def do_POST(self):
        length = int(self.headers.get("Content-Length", 0))
        if length > MOST_BYTES:
            self.send_error(413)
            return
        given = parse_qs(self.rfile.read(length).decode("utf-8", "replace"))
        asked = {name: given.get(name, [default])[0] for name, default in DEFAULTS.items()}
        self.show(asked, results(asked))

    def show(self, asked, found):
        texts = (f"<h2>{title}</h2>\n<pre>{html.escape(text)}</pre>" for title, text in found)
        shown = {name: html.escape(value) for name, value in asked.items()}
        content = PAGE.format(**shown, results="\n".join(texts)).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, default=8000)
    server = ThreadingHTTPServer(("localhost", parser.parse_args().port), Handler)
    print(f"http://localhost:{server.server_port}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
