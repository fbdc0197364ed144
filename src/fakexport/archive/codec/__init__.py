"""Convert programs to documents of torch's own `.pt2` schema and back, without evaluating or importing
anything.
"""
