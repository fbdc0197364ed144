"""Ask runtimes whether they take a program that has no weights."""
