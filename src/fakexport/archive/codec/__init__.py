"""Convert programs to and from torch's own `.pt2` schema, without evaluating or importing anything."""
