"""Read (hostile files included) and write `.pt2` archives."""
