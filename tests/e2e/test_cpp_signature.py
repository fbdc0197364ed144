"""The C++ program compares sizes with any signature that a package can have: no arithmetic overflows unseen.

The sources are built with the sanitizer for undefined behavior, which ends the program at the first overflow.
"""

import json
import random
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import cpp_extension

import fakexport.deploy.cpp_project as cpp_project

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++"),
]

SOURCES = Path(cpp_project.__file__).parent / "template" / "src"
MAIN = """
#include <ATen/ops/empty.h>
#include <iostream>
#include "fault.hpp"
#include "json.hpp"
#include "signature.hpp"

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    try {
      const auto value = runner::json::parse(line);
      runner::TensorsByName given;
      for (const auto& size : value.at("sizes").array()) {
        given.emplace("x" + std::to_string(given.size()), at::empty({size.integer()}));
      }
      runner::Signature::of(value.at("signature")).check(given);
      std::cout << "fits\\n";
    } catch (const runner::Fault& fault) {
      std::cout << fault.what() << "\\n";
    }
  }
}
"""
FAR = [-(2**63), 1 - 2**63, -(2**62), -3, -1, 0, 1, 2, 5, 2**31, 2**62, 2**63 - 2, 2**63 - 1]
SIZES = [0, 1, 2, 3, 5, 8, 1 << 10]


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    folder = tmp_path_factory.mktemp("signature")
    (folder / "main.cpp").write_text(MAIN)
    names = ("signature", "condition", "json", "tensor", "dtype", "printable")
    libraries = Path(torch.__file__).parent / "lib"
    subprocess.run(
        [
            *("g++", "-std=c++20", "-O0", "-fsanitize=undefined", "-fno-sanitize-recover=all"),
            f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
            *(f"-isystem{path}" for path in cpp_extension.include_paths()),
            f"-I{SOURCES}",
            folder / "main.cpp",
            *(SOURCES / f"{name}.cpp" for name in names),
            *(f"-L{libraries}", f"-Wl,-rpath,{libraries}", "-Wl,--no-as-needed"),
            *("-ltorch_cpu", "-lc10", "-o", folder / "check"),
        ],
        check=True,
    )
    return folder / "check"


def dimension(dice: random.Random) -> dict[str, Any]:
    return {
        "symbol": dice.choice(["s0", "s1"]),
        "times": dice.choice([number for number in FAR if number > 0]),
        "plus": dice.choice(FAR),
        "lower": dice.choice([None, *FAR]),
        "upper": dice.choice([None, *FAR]),
        "is_checked": True,
    }


def cases() -> Iterator[dict[str, Any]]:
    dice = random.Random(0)
    for _ in range(20_000):
        shapes = [dimension(dice) if dice.random() < 0.9 else dice.choice(FAR) for _ in range(2)]
        inputs = [
            {"name": f"x{number}", "dtype": "float32", "shape": [shape]}
            for number, shape in enumerate(shapes)
        ]
        yield {
            "sizes": [dice.choice(SIZES) for _ in shapes],
            "signature": {"inputs": inputs, "outputs": [], "conditions": []},
        }


def fits(case: dict[str, Any]) -> bool:
    """In integers of any size, of which a symbol has 63 bits."""
    values: dict[str, int] = {}
    for size, tensor in zip(case["sizes"], case["signature"]["inputs"], strict=True):
        (wanted,) = tensor["shape"]
        if isinstance(wanted, int):
            if size != wanted:
                return False
            continue
        value, rest = divmod(size - wanted["plus"], wanted["times"])
        if size - wanted["plus"] >= 2**63 or rest or values.setdefault(wanted["symbol"], value) != value:
            return False
        if wanted["lower"] is not None and size < wanted["lower"]:
            return False
        if wanted["upper"] is not None and size > wanted["upper"]:
            return False
    return True


def test_ranges_whose_bounds_are_far_apart(program):
    made = list(cases())
    lines = "".join(f"{json.dumps(case)}\n" for case in made)
    done = subprocess.run([program], input=lines, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")
    found = [line == "fits" for line in done.stdout.splitlines()]
    expected = [fits(case) for case in made]
    assert found == expected
    assert sum(expected) > 50
