"""Print a zoo file with every model type of transformers: `python tools/transformers_zoo.py > zoo.yaml`.

Each type is built from its default config, at full size. The types are the keys of
`transformers.CONFIG_MAPPING`: one that no auto class makes, or that has no default config, is in the file too
and counts as not passed. Types that are a part of another one (`clip_text_model`) come after the others;
among themselves they are in the order of a digest of their names, so that the beginning of a run is a sample.
"""

from __future__ import annotations

import argparse
import hashlib
import sys

import transformers
from transformers import AutoConfig

_HEADER = """\
# Model types of transformers {version}: {count}, of which {parts} are a part of another one.
# Written by tools/transformers_zoo.py.
timeout: 120
memory: 6 GiB
dtypes: bfloat16
models:
"""
_WAYS = ("H100/static", "cpu/static", "H100/auto", "cpu/auto")


def main() -> None:
    """Print the file: all types for one target and one kind of sizes, then all for the next."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ways", nargs="*", default=_WAYS, metavar="TARGET/SIZES", help=", ".join(_WAYS))
    chosen = parser.parse_args().ways
    configs = dict(transformers.CONFIG_MAPPING.items())
    parts = {
        part.model_type
        for config in configs.values()
        for part in config.sub_configs.values()
        if part is not config and part is not AutoConfig
    }
    types = sorted(configs, key=lambda name: (name in parts, hashlib.sha256(name.encode()).digest()))
    count = len(types)
    header = _HEADER.format(version=transformers.__version__, count=count, parts=len(parts & configs.keys()))
    ways = [
        f"  - {{source: 'hf:{name}', targets: {target}, dynamic: {sizes}}}\n"
        for target, sizes in (way.split("/") for way in chosen)
        for name in types
    ]
    sys.stdout.write(header + "".join(ways))


if __name__ == "__main__":
    main()
