"""Programs as the documents of torch's own `.pt2` schema, and back: nothing is evaluated or imported."""
