"""Tensor and expert parallelism: one rank of a model as a model of its own."""

from fakexport.parallel.degrees import DegreeMismatch, Degrees
from fakexport.parallel.parallel_source import parallel_source, refuse_with_parallel
from fakexport.parallel.shard import local_shapes
