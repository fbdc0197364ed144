"""Documents from an untrusted author: JSON read within limits, into values of a known type. Free of torch."""
