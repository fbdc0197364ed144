"""Retargeted programs of real architectures are those of an export for the other device, node for node.

Both ways, from the CPU to an H100 and back, for every architecture that exports for both.
"""

import pytest

from tests.architectures import ARCHITECTURES
from tests.retargeting import ATTENTION, EXPERTS, LITERALS, both_programs, differences
from tests.zoo.test_recovered_constants import EXCLUDED

pytest.importorskip("transformers")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.zoo,
    # What torch thinks of how these models are written.
    pytest.mark.filterwarnings("ignore:The tensor attributes .* were assigned during export:UserWarning"),
    pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths:UserWarning"),
]

# Reason -> architectures of which an export for the other device is another program. The tests look for the
# evidence of each reason (`tests/retargeting.py`), and for nothing besides.
DIFFERENT = {
    ATTENTION: "@ATT@",
    EXPERTS: "@EXP@",
    LITERALS: "@LIT@",
}


def expected(name: str) -> set[str]:
    return {reason for reason, names in DIFFERENT.items() if name in names.split()}


def test_every_exception_is_an_architecture():
    names = {name for text in DIFFERENT.values() for name in text.split()}

    assert names <= {str(architecture) for architecture in ARCHITECTURES}


@pytest.mark.parametrize(
    "architecture",
    [architecture for architecture in ARCHITECTURES if str(architecture) not in EXCLUDED],
    ids=str,
)
def test_it_is_the_program_of_an_export(architecture, tmp_path):
    programs = both_programs(architecture, tmp_path)

    assert differences(programs) == expected(str(architecture))
