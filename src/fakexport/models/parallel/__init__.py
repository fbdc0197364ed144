"""Tensor and expert parallelism: turn one rank's shards of a model into a separate model."""

from fakexport.models.parallel.degrees import DegreeMismatch, Degrees
from fakexport.models.parallel.parallel_source import parallel_source, refuse_with_parallel
from fakexport.models.parallel.shard import local_shapes
