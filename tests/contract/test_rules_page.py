"""docs/rules.md is what `fakexport explain --all` prints."""

import re

from fakexport.report import explain_all
from fakexport.rules import all_rules
from tests.contract.source_tree import ROOT

PAGE = (ROOT / "docs" / "rules.md").read_text(encoding="utf-8")


def test_the_page_is_up_to_date():
    assert explain_all() == PAGE, "regenerate it: make rules"


def test_every_rule_has_its_heading_once():
    headings = re.findall(r"^## (FE[0-9]{3}):", PAGE, re.MULTILINE)

    assert headings == [known.code for known in all_rules()], "regenerate it: make rules"
