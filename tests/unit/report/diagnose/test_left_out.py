"""FE104 of a program that lacks a part of its model."""

import json

import pytest
import torch
from torch import nn

import fakexport as fe
from fakexport.models.sources import ExampleInputs, Source
from fakexport.report.diagnose.left_out import diagnose_left_out
from tests.architectures import ARCHITECTURES


class TwoTowers(nn.Module):
    """Cuts `x` by numbers, and leaves out its second layer without an image."""

    def __init__(self):
        super().__init__()
        self.text, self.image = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x, sizes, image=None):
        found = torch.cat([self.text(part) for part in x.split(sizes)])
        return found if image is None else found + self.image(image)


def test_fix_has_no_input_option_for_lists_of_numbers():
    module = TwoTowers()
    inputs = ExampleInputs(
        kwargs={"x": torch.zeros(5, 4), "sizes": [2, 3]}, omitted={"image": "its shape cannot be derived"}
    )
    program = torch.export.export(module, (), dict(inputs.kwargs))
    source = Source(spec="model", kind="python", factory=TwoTowers, example_inputs=lambda *_: inputs)

    (found,) = diagnose_left_out(source, program, module, inputs)

    assert found.code == "FE104"
    assert found.fix.message == "write a factory that returns the model and all its inputs"


@pytest.mark.parametrize("workload", ["prefill", "decode"])
def test_note_reports_cross_attention_that_no_input_of_a_decoder_reaches(workload, tmp_path):
    by_name = {str(architecture): architecture for architecture in ARCHITECTURES}
    settings = {**by_name["gpt2"].settings, "add_cross_attention": True}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    sources = [f"hf:{tmp_path}", by_name["gemma3"].source(tmp_path)]

    notes = [fe.check(source, workload=workload).verdicts[0].notes for source in sources]

    assert "transformer.h.0.crossattention" in next(note for note in notes[0] if "does not use" in note)
    assert not [note for note in notes[1] if "does not use" in note]  # Decode reads no image on purpose.


def test_note_reports_large_modules_that_derived_inputs_skip(tmp_path):
    by_name = {str(architecture): architecture for architecture in ARCHITECTURES}
    notes = {
        name: [
            note for note in fe.check(by_name[name].source(tmp_path)).verdicts[0].notes if "not use" in note
        ]
        for name in ("granite_docling", "whisper")
    }

    # The image of the example takes the coarse way through the connector.
    assert "model.vision_model.connector.fine" in notes["granite_docling"][0]
    assert notes["whisper"] == []
