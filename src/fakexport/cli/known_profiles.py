"""The device profiles of the user, known while a command runs."""

from __future__ import annotations

from pathlib import Path

import typer

from fakexport.cli.project_file import project_file_of


def know_profiles(context: typer.Context, file: Path | None) -> Path | None:
    """Register the profiles of a file until the command ends; by default those of [tool.fakexport].

    Args:
        context: Context of the command.
        file: The file passed as `--profiles`.
    Raises:
        ProfileError, ProjectFileError, OSError: a file cannot be read.
    """
    if context.resilient_parsing:
        return file
    project = project_file_of(context) if file is None else None
    chosen = project.profiles if project is not None else file
    if chosen is not None:
        from fakexport.devices import device_profiles

        context.with_resource(device_profiles(chosen))
    return chosen
