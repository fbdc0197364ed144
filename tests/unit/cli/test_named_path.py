"""The file or folder in a source, which the project file, the lock, SARIF and sweeps look for."""

import pytest

from fakexport.models import named_path


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("model.py:factory", ("", "model.py", ":factory")),
        ("hf:conf/config.json", ("hf:", "conf/config.json", "")),
        ("hf:conf:BertModel", ("hf:", "conf", ":BertModel")),
        ("diffusers:conf", ("diffusers:", "conf", "")),
        ("diffusers:conf/vae/encoder", ("diffusers:", "conf", "/vae/encoder")),
        ("hf:org/name", None),
        ("hf:llama", None),
        ("timm:resnet50", None),
        ("diffusers:UNet2DConditionModel", None),
        ("package.module:factory", None),
        ("hf:", None),
    ],
)
def test_the_path_of_a_source_is_found(source, expected, tmp_path):
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "config.json").write_text("{}")
    (tmp_path / "model.py").write_text("")
    (tmp_path / "timm").mkdir()

    assert named_path(source, tmp_path) == expected
