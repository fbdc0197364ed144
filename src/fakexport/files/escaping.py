"""Escape text from a model or a file so that it cannot control the terminal."""


def escaped(text: str) -> str:
    """Return the text as one printable line: control and bidirectional characters become Python escapes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def escaped_lines(text: str) -> str:
    """Escape the text like `escaped`, but keep line ends and tabs."""
    if text.isprintable():
        return text
    return "\n".join("\t".join(map(escaped, line.split("\t"))) for line in text.split("\n"))
