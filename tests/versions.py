"""The tests that a version of torch or transformers cannot pass, and why: they are skipped there.

What a version lacks is in this table alone. A test that fails for a different reason is repaired.
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pytest

__all__ = ["LACKS", "Lack", "release", "skip_what_is_lacking"]


@dataclass(frozen=True)
class Lack:
    """What some versions of a package lack.

    Args:
        package: The package.
        reason: What is missing, for the report of the tests.
        tests: Starts of the names of the tests: a file, a test or one of its cases.
        below: The first version that has it, such as `2.13`; None: no version has it again.
        since: The first version that lacks it; None: the oldest.
    """

    package: str
    reason: str
    tests: Sequence[str]
    below: str | None = None
    since: str | None = None

    @property
    def holds(self) -> bool:
        """Whether the installed version lacks it."""
        here = release(importlib.metadata.version(self.package))
        return (self.below is None or here < release(self.below)) and (
            self.since is None or here >= release(self.since)
        )


def release(version: str) -> tuple[int, ...]:
    """Return the first two numbers of a version: `2.13.0+cpu` -> (2, 13)."""
    return tuple(map(int, re.findall(r"\d+", version)[:2]))


_FACTS = "tests/torch_facts/"
_REPORTS = "tests/unit/report/diagnose/test_public_reports.py::test_findings_and_results_of_reported_models"
_RULES = "tests/unit/rules/test_rule_models.py::test_the_failing_model_fails_at_the_marked_line"

LACKS = (
    Lack(
        "torch",
        "the memo of operators needs torch 2.13",
        (
            f"{_FACTS}test_operator_memo.py::test_nodes_of_answered_operators_are_those_of_stock_torch",
            f"{_FACTS}test_symbolic_arithmetic.py",
            "tests/unit/exporting/capture/test_operator_memo.py",
        ),
        below="2.13",
    ),
    Lack(
        "torch",
        "regions of a gradient mode are left to stock torch before 2.13",
        (f"{_FACTS}test_no_grad_regions.py::test_the_program_is_that_of_stock_torch",),
        below="2.13",
    ),
    Lack(
        "torch",
        "torch 2.11 gives a slice of unknown size a symbol of its own",
        (
            f"{_FACTS}test_trace_corrections.py::test_a_broadcast_of_unknown_size",
            f"{_FACTS}test_trace_corrections.py::test_a_row_next_to_a_known_number_of_others",
        ),
        below="2.12",
    ),
    Lack(
        "torch",
        "torch before 2.13 does not export derivatives of torch.func",
        (
            f"{_FACTS}test_vmap_steps.py::test_a_batched_tensor_is_a_plain_one_with_the_sizes_of_an_element",
            f"{_FACTS}test_vmap_steps.py::test_stock_exports_a_derivative_of_torch_func_with_its_input",
            f"{_FACTS}test_vmap_steps.py::test_a_batched_tensor_gets_other_memory_on_the_same_levels",
            f"{_FACTS}test_vmap_steps.py::test_a_gradient_can_be_wanted_of_a_tensor_while_a_level_is_open",
            f"{_FACTS}test_program_schema.py::test_the_functions_of_a_forward_derivative_stand_in_a_program",
            f"{_RULES}[FE210]",
        ),
        below="2.13",
    ),
    Lack(
        "torch",
        "torch before 2.13 asks for the truth of a symbolic number elsewhere",
        (
            f"{_FACTS}test_data_dependent_questions.py::"
            "test_an_environment_asks_here_for_each_thing_that_data_decides",
            f"{_RULES}[FE301]",
            f"{_REPORTS}[huggingface/transformers#46929]",
        ),
        below="2.13",
    ),
    Lack(
        "torch",
        "the error of stock torch 2.11 for this model has a different text",
        (f"{_REPORTS}[pytorch/pytorch#137111]",),
        below="2.12",
    ),
    Lack(
        "torch",
        "the error of stock torch before 2.13 for this model has a different text",
        (f"{_RULES}[FE502]",),
        below="2.13",
    ),
    Lack(
        "torch",
        "torch before 2.13 fails for a symbolic float of data",
        (
            "tests/unit/exporting/capture/test_assumed_answers.py::"
            "test_the_program_computes_what_eager_mode_does_or_refuses[a float]",
        ),
        below="2.13",
    ),
    Lack(
        "torch",
        "torch before 2.13 cannot round an infinite bound",
        (f"{_FACTS}test_exact_sizes.py::test_only_quotients_of_large_integers_are_rounded_differently",),
        below="2.13",
    ),
    Lack(
        "torch",
        "Inductor of torch 2.11 has no line for a kernel with several outputs",
        (f"{_FACTS}test_inductor_buffers.py::test_the_lines_that_are_read_exist",),
        below="2.12",
    ),
    Lack(
        "torch",
        "TorchDynamo of torch 2.11 fills its table of functions differently",
        (
            f"{_FACTS}test_patching.py::test_replacements_do_not_get_into_the_table_of_torchdynamo",
            f"{_FACTS}test_patching.py::test_a_process_group_that_is_made_while_something_is_replaced",
        ),
        below="2.12",
    ),
    Lack(
        "torch",
        "torch 2.11 takes no enum as an input",
        (
            f"{_REPORTS}[pytorch/pytorch#153061]",
            "tests/unit/report/diagnose/test_public_reports.py::test_guard_rejects_a_different_enum_member",
            "tests/unit/report/diagnose/test_public_reports.py::test_guard_distinguishes_enum_members_from_equal_values[Color.RED",
        ),
        below="2.12",
    ),
    Lack(
        "torch",
        "a condition of torch 2.11 calls a function that no archive can contain",
        (f"{_REPORTS}[pytorch/pytorch#123499]",),
        below="2.12",
    ),
    Lack(
        "torch",
        "fake kernels of torch before 2.13 do not compare these dtypes",
        (
            "tests/unit/report/diagnose/test_dtypes.py::"
            "test_binary_dtype_errors_match_eager_mode[common-embedding]",
        ),
        below="2.13",
    ),
    Lack(
        "torch",
        "memory was measured on a newer oneDNN",
        ("tests/unit/planning/memory/test_temporaries.py::test_a_convolution_takes_blocks[channels last",),
        below="2.12",
    ),
    Lack(
        "torch",
        "the page of operators was written with torch 2.13",
        (
            "tests/unit/benchmarks/test_operator_coverage.py::"
            "test_every_operator_that_only_a_device_runs_is_listed_with_what_becomes_of_it",
        ),
        below="2.13",
    ),
    Lack(
        "torch",
        "the page of operators was written with torch 2.13",
        (
            "tests/unit/benchmarks/test_operator_coverage.py::"
            "test_every_operator_that_only_a_device_runs_is_listed_with_what_becomes_of_it",
        ),
        since="2.14",
    ),
    Lack(
        "torch",
        "torch 2.13 alone refuses this model",
        (f"{_REPORTS}[huggingface/transformers#42721]",),
        below="2.13",
    ),
    Lack(
        "torch",
        "torch 2.14 exports this model",
        (f"{_REPORTS}[huggingface/transformers#42721]",),
        since="2.14",
    ),
    Lack(
        "torch",
        "torch 2.15 exports this model",
        (
            f"{_REPORTS}[pytorch/pytorch#170548]",
            f"{_REPORTS}[pytorch/pytorch#134533]",
        ),
        since="2.15",
    ),
    Lack(
        "transformers",
        "--parallel needs transformers 5.23",
        (
            f"{_FACTS}test_transformers_plans.py",
            "tests/unit/models/parallel/",
            "tests/unit/planning/test_parallel_plan.py",
        ),
        below="5.23",
    ),
    Lack(
        "transformers",
        "longrope is a branch on data before transformers 5.23",
        ("tests/unit/models/sources/test_published_configs.py::test_longrope_is_right_at_both_sides",),
        below="5.23",
    ),
    Lack(
        "transformers",
        "the cache of a sliding window counts in Python before transformers 5.23",
        ("tests/unit/cli/test_generate_command.py",),
        below="5.23",
    ),
    Lack(
        "transformers",
        "this transformers lacks the model type, or chooses a different class",
        (
            "tests/unit/models/sources/test_default_configs.py::"
            "test_before_it_is_trained_for_a_task_a_model_without_a_head_is_taken",
            "tests/unit/models/sources/test_transformers_inputs.py::test_a_model_runs_on_its_inputs[pocket_tts_a",
            "tests/unit/models/sources/test_transformers_inputs.py::test_a_model_runs_on_its_inputs[molmo2_vision]",
            "tests/unit/models/sources/test_transformers_inputs.py::test_a_prompt_asks_one_question_and_gets",
            "tests/unit/models/sources/test_transformers_source.py::"
            "test_a_model_type_becomes_its_most_telling_class[musicgen-",
            "tests/unit/models/sources/test_transformers_source.py::"
            "test_a_model_type_becomes_its_most_telling_class[internlm3-",
            "tests/unit/models/sources/test_transformers_source.py::"
            "test_a_model_type_becomes_its_most_telling_class[got_ocr2_vision-",
            "tests/unit/models/sources/test_transformers_source.py::"
            "test_an_auto_class_gives_what_it_has_for_the_type_though_it_is_anothers",
        ),
        below="5.23",
    ),
    Lack(
        "transformers",
        "llama4 of transformers 5.24 raises an AttributeError in eager mode",
        ("tests/unit/models/sources/test_transformers_inputs.py::test_a_model_runs_on_its_inputs[llama4]",),
        since="5.24",
    ),
)


def skip_what_is_lacking(items: Iterable[pytest.Item]) -> None:
    """Skip the tests that the installed versions cannot pass."""
    lacking = [(start, each) for each in LACKS if each.holds for start in each.tests]
    for item in items:
        for start, each in lacking:
            if item.nodeid.startswith(start):
                version = importlib.metadata.version(each.package)
                item.add_marker(pytest.mark.skip(reason=f"{each.package} {version}: {each.reason}"))
                break
