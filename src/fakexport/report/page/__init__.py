"""Reports as HTML that needs nothing but itself. Does not import torch."""
