"""Device profiles as text."""

from fakexport.devices import load_profiles, profile_named
from fakexport.report import render_device, render_devices


def test_the_table_has_a_row_per_profile():
    header, *rows = render_devices(load_profiles().values(), width=200).splitlines()

    assert header.split() == [
        "name",
        "aliases",
        "type",
        "capability",
        "memory",
        "SMs",
        "bf16",
        "peak",
        "bandwidth",
    ]
    assert [row.split()[0] for row in rows] == list(load_profiles())


def test_a_row_has_the_published_values():
    text = render_devices([profile_named("H100")])

    assert "H100-80GB  H100, H100-SXM  cuda  9.0" in text
    assert "79.2 GiB  132  989.4 TFLOP/s  3.35 TB/s" in text


def test_what_nobody_publishes_is_a_dash():
    assert render_devices([profile_named("cpu")]).splitlines()[1].split() == ["cpu", "-", "cpu", *"-----"]


def test_one_profile_has_every_value_and_every_source():
    profile = profile_named("A10G")

    text = render_device(profile)

    assert text.startswith("A10G\n  device_type = cuda\n")
    assert f"  memory_bytes = {profile.memory_bytes:,}\n      https://" in text
    assert "  peak_flops.int8 = 140 TOP/s\n" in text
    for source in profile.sources.values():
        assert text.count(f"      {source}\n") >= 1


def test_every_profile_can_be_shown():
    for profile in load_profiles().values():
        assert render_device(profile).startswith(profile.name)
