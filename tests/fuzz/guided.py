"""Coverage-guided fuzzing: `python -m tests.fuzz.guided archive -max_total_time=60 [CORPUS]`.

Needs the extra `fuzz`; `make fuzz` runs every target. Options and folders behind the target's name are
libFuzzer's. An input that breaks a target is printed as well, so that the log of a machine that is gone is
enough: `zlib.decompress(base64.b64decode(PRINTED))` gives it back.
"""

from __future__ import annotations

import base64
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


def main() -> None:
    import atheris
    import torch  # noqa: F401 (before the import hook, which need not look at it)

    # What is imported in here reports its branches to the fuzzer.
    with atheris.instrument_imports(include=INSTRUMENTED):
        from tests.fuzz.corpus import corpus
        from tests.fuzz.targets import TARGETS
    warnings.simplefilter("ignore")
    target, *options = sys.argv[1:] or ["archive"]
    with tempfile.TemporaryDirectory() as folder:
        for number, content in enumerate(corpus(target)):
            (Path(folder) / f"{number}").write_bytes(content)
        atheris.Setup([sys.argv[0], *options, folder], _printing_what_breaks(TARGETS[target]))
        atheris.Fuzz()


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
    main()
