"""Text of a model or a file, as text that steers no terminal: the one place for it."""


def escaped(text: str) -> str:
    """Return the text as one line of printable characters: no name can steer a terminal or break a line.

    Control characters, line ends and marks of writing direction are shown as Python escapes.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def escaped_lines(text: str) -> str:
    """Return the text escaped like `escaped`, except for its line ends and tabs."""
    if text.isprintable():
        return text
    return "\n".join("\t".join(map(escaped, line.split("\t"))) for line in text.split("\n"))
