"""Configs of small models, one for each way in which inputs are derived."""

from pathlib import Path

from tests.settings_files import read_settings

_SETTINGS = read_settings(Path(__file__).with_suffix(".json"))
TEXT, ENCODER, SEQ2SEQ, IMAGE = (_SETTINGS["bases"][name] for name in ("text", "encoder", "seq2seq", "image"))

# model type -> config, and the shapes of the inputs that are expected for it
TINY = {
    model_type: (model["config"], {name: tuple(shape) for name, shape in model["inputs"].items()})
    for model_type, model in _SETTINGS["models"].items()
}
