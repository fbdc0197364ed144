"""The names of the records of one program in an archive; an archive may have several programs."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True)
class MethodRecords:
    """Where torch's format stores what belongs to one program.

    Args:
        method: The program's name; an archive with a single program calls it `model`, as torch does.
    """

    method: str = "model"

    @property
    def model(self) -> str:
        """The graph."""
        return f"models/{self.method}.json"

    @property
    def weights(self) -> str:
        """Which record is the weight of a name."""
        return f"data/weights/{self.method}_weights_config.json"

    @property
    def constants(self) -> str:
        """Which record is the constant of a name."""
        return f"data/constants/{self.method}_constants_config.json"

    @property
    def sample_inputs(self) -> str:
        """The example inputs, of which fakexport writes none."""
        return f"data/sample_inputs/{self.method}.pt"


def apart(config: str) -> str:
    """Return the record of a config with tensors that are not in the archive.

    It is out of the way of Netron, which opens an archive without a config and none with missing tensors.
    Stock torch refuses both.
    """
    return f"extra/fakexport/{config.rpartition('/')[2]}"


def config_record(config: str, present: Collection[str]) -> str:
    """Return where an archive with these records has a config."""
    return apart(config) if config not in present and apart(config) in present else config


MODEL = MethodRecords().model
WEIGHTS_CONFIG = MethodRecords().weights
CONSTANTS_CONFIG = MethodRecords().constants
