"""From a spec to its source: each form, and one clear line for each thing that is wrong with it."""

import pytest

from fakexport.sources import SourceError, resolve


@pytest.mark.parametrize("spec", ["", "llama", "examples/mlp.py", "onnx:what is this"])
def test_an_unknown_form_gives_the_list_of_forms(spec):
    with pytest.raises(SourceError) as caught:
        resolve(spec)

    message = str(caught.value)
    assert message.startswith(f"{spec!r} is not a source: write ")
    for form in (
        "file.py:FACTORY",
        "package.module:FACTORY",
        "hf:MODEL_TYPE",
        "hf:path/to/config.json",
        "timm:NAME",
    ):
        assert form in message


def test_every_error_is_one_line_and_a_value_error():
    error = SourceError("first\n  second")

    assert str(error) == "first second"
    assert isinstance(error, ValueError)


@pytest.mark.parametrize("spec", ["hf:gpt2", "tests.unit.sources.a_package_module:factory"])
def test_a_source_remembers_its_spec(spec):
    assert resolve(spec).spec == spec
