"""Coverage-guided fuzzing: `python -m tests.fuzz.guided archive,toml -max_total_time=60 [CORPUS]`.

Needs the extra `fuzz`; `make fuzz` runs every target, two at a time. Options and folders behind the names are
libFuzzer's. An input that breaks a target is printed as well, so that the log of a machine that is gone is
enough: `zlib.decompress(base64.b64decode(PRINTED))` gives it back.
"""

from __future__ import annotations

import base64
import os
import sys
import tempfile
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path

INSTRUMENTED = [
    "fakexport.archive",
    "fakexport.files.documents",
    "fakexport.models.sources.adapters.adapter_config",
    "fakexport.checking.sweep.zoo_file",
    "fakexport.archive.weights",
]


def main() -> int:
    import atheris
    import torch  # noqa: F401 (before the import hook, which need not look at it)

    # What is imported in here reports its branches to the fuzzer.
    with atheris.instrument_imports(include=INSTRUMENTED):
        from tests.fuzz import corpus, targets  # noqa: F401
    warnings.simplefilter("ignore")
    names, *options = sys.argv[1:] or ["archive"]
    started, ended = 0, []
    for name in names.split(","):
        if started - len(ended) == 2:
            ended.append(os.wait()[1])
        started += 1
        if os.fork() == 0:
            return _fuzz(name, options)
    while len(ended) < started:
        ended.append(os.wait()[1])
    return int(any(ended))


def _fuzz(target: str, options: list[str]) -> int:
    import atheris

    from tests.fuzz.corpus import corpus
    from tests.fuzz.targets import TARGETS

    with tempfile.TemporaryDirectory() as folder:
        for number, content in enumerate(corpus(target)):
            (Path(folder) / f"{number}").write_bytes(content)
        atheris.Setup([sys.argv[0], *options, folder], _printing_what_breaks(TARGETS[target]))
        atheris.Fuzz()
    return 0


def _printing_what_breaks(target: Callable[[bytes], None]) -> Callable[[bytes], None]:
    def call(content: bytes) -> None:
        try:
            target(content)
        except BaseException:
            print(
                f"the input, by zlib and base64: {base64.b64encode(zlib.compress(content)).decode()}",
                flush=True,
            )
            raise

    return call


if __name__ == "__main__":
    sys.exit(main())
