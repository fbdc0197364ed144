"""Small models of some 470 architectures of transformers, made from their own default configs.

`shrink` gives every size of a default config a small value by the name of its field, `overrides` says what
that cannot know, and `catalogue` lists the model types. Nothing is downloaded.
"""

import tomllib
from pathlib import Path

from .architecture import Architecture
from .sample import sampled

__all__ = ["ARCHITECTURES", "Architecture", "sampled"]

ARCHITECTURES = tuple(
    Architecture(model_type, auto_class, is_common=kind == "common")
    for kind, names in tomllib.loads(Path(__file__).with_name("catalogue.toml").read_text()).items()
    for auto_class, model_types in names.items()
    for model_type in model_types.split()
)
