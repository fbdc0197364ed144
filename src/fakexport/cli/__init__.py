"""The command line: parse, call one function, render. No capability lives here."""

from fakexport.cli.entry import main
