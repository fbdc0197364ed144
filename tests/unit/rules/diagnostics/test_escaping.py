"""Names of an unknown author, as they are shown."""

from fakexport.files import escaped


def test_what_does_not_print_is_escaped():
    assert escaped("a\x1b[2Jb\nc\u202ed\udc80é") == "a\\x1b[2Jb\\nc\\u202ed\\udc80é"
