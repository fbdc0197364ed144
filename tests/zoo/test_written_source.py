"""Real architectures written as Python give what their programs give, bit for bit."""

from __future__ import annotations

import pytest

from fakexport.models.sources import resolve
from tests.architectures import ARCHITECTURES, sampled
from tests.written_source import assert_gives_the_same, real_program
from tests.zoo.test_recovered_constants import EXCLUDED, NO_PROGRAM, NO_REAL_PROGRAM

pytest.importorskip("transformers")
pytestmark = [
    pytest.mark.zoo,
    # What torch thinks of how these models are written.
    pytest.mark.filterwarnings("ignore:The tensor attributes .* were assigned during export:UserWarning"),
    pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths:UserWarning"),
]

# Tied weights and two stacks, and experts with an operator of transformers.
# A decoder with and one without tied weights, convolutions, two towers.
IN_CI = frozenset(("mixtral", "t5", "gpt2", "llama", "resnet", "clip"))

# Why there is nothing to compare with: the program itself refuses the inputs with which it was exported. The
# placeholders of a video are more than the positions of the small text model: eager refuses them too.
WITHOUT_OUTPUT = frozenset(("splinter", "instructblipvideo"))


@pytest.mark.parametrize(
    "architecture",
    sampled(
        (each for each in ARCHITECTURES if str(each) not in {*EXCLUDED, *WITHOUT_OUTPUT}),
        in_ci=IN_CI,
    ),
)
def test_the_written_module_gives_what_the_program_gives(architecture, tmp_path):
    if not architecture.is_available:
        pytest.skip(f"this transformers has no {architecture}")
    if str(architecture) in NO_PROGRAM | NO_REAL_PROGRAM:
        pytest.skip("it does not export")
    program, inputs = real_program(resolve(architecture.source(tmp_path)))

    written = assert_gives_the_same(program, tmp_path, inputs.args, dict(inputs.kwargs))

    assert written.state_dict().keys() == program.state_dict.keys()
    text = (tmp_path / "program.py").read_text()
    assert str(tmp_path) not in text
    assert "transformers" not in {line.split()[1] for line in text.splitlines() if line.startswith("import ")}
