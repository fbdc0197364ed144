"""`ZOO.yaml`: the checks that it stands for, and one line for what it cannot be."""

import pytest

from fakexport.checking.sweep import read_zoo
from fakexport.checking.sweep.zoo_file import ZooFileError


def zoo(folder, text):
    path = folder / "zoo.yaml"
    path.write_text(text)
    return read_zoo(path)


def test_every_combination_in_the_order_of_the_file(tmp_path):
    found = zoo(
        tmp_path,
        """
        models:
          - hf:llama
          - source: models.py:small
            target: cpu
            dtypes: float32
            dynamic: [[x.0=2..8, x.1=2..8], static]
            workload: forward
        targets: [H100, 8xH100]
        dtypes: [bfloat16]
        workloads: [forward, decode]
        device-map: balanced
        timeout: 90
        memory: 1.5 GiB
        """,
    )

    assert [item.command for item in found.items] == [
        "fakexport check hf:llama --target H100 --device-map balanced --dtype bfloat16",
        "fakexport check hf:llama --target H100 --device-map balanced --dtype bfloat16 --workload decode",
        "fakexport check hf:llama --target 8xH100 --device-map balanced --dtype bfloat16",
        "fakexport check hf:llama --target 8xH100 --device-map balanced --dtype bfloat16 --workload decode",
        "fakexport check models.py:small --target cpu --device-map balanced --dtype float32 "
        "--dynamic x.0=2..8 --dynamic x.1=2..8",
        "fakexport check models.py:small --target cpu --device-map balanced --dtype float32",
    ]
    assert (found.limits.seconds, found.limits.bytes) == (90.0, 3 * 2**29)


def test_all_runtimes_are_asked_in_one_check(tmp_path):
    found = zoo(tmp_path, "models: [hf:llama, {source: hf:opt, runtime: aoti}]\nruntimes: [onnx, tensorrt]")

    assert [item.command for item in found.items] == [
        "fakexport check hf:llama --target cpu --runtime onnx --runtime tensorrt",
        "fakexport check hf:opt --target cpu --runtime aoti",
    ]


def test_code_of_a_repository_is_trusted_for_each_model_or_for_all(tmp_path):
    found = zoo(
        tmp_path,
        """
        models: [hf:org/own, {source: hf:org/other, trust-remote-code: false}]
        trust-remote-code: true
        workloads: [forward, prefill]
        """,
    )

    assert [item.command for item in found.items] == [
        "fakexport check hf:org/own --target cpu --trust-remote-code",
        "fakexport check hf:org/own --target cpu --workload prefill --trust-remote-code",
        "fakexport check hf:org/other --target cpu",
        "fakexport check hf:org/other --target cpu --workload prefill",
    ]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "expected an object"),
        ("models: [", "not YAML"),
        ("targets: cpu", "models"),
        ("models: []", "expected at least one model"),
        ("models: [hf:llama]\ntargest: cpu", "targest: unknown key: did you mean 'target"),
        ("models: [{targets: cpu}]", "models[0]"),
        ("models: [hf:llama, hf:llama]", "duplicate check: fakexport check hf:llama"),
        (r'models: ["a\nb", "a\nb"]', r"duplicate check: fakexport check 'a\nb'"),
        ("models: [hf:llama]\ntarget: cpu\ntargets: H100", "given twice"),
        ("models: [hf:llama]\ntargets: []", "expected at least one value"),
        ("models: [hf:llama]\nworkloads: [train]", "expected one of forward, prefill, decode"),
        ("models: [hf:llama]\nmemory: 8 GB", "expected a size such as '8 GiB'"),
        ("models: [hf:llama]\ntimeout: -1", "expected a positive number of seconds"),
        ("models: [hf:llama]\ntimeout: true", "expected a positive number of seconds"),
        ("models: [hf:llama]\ntrust-remote-code: org/own", "expected true or false"),
    ],
)
def test_what_cannot_be_read_is_one_line(tmp_path, text, reason):
    with pytest.raises(ZooFileError) as caught:
        zoo(tmp_path, text)

    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)
