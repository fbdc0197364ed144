"""How much memory a program needs on each device, at any size, read off the program.

`liveness.liveness` reads a program once, `peak.sizes_at` evaluates it at sizes, and `Sizes.peak` finds the
peak of a device.
"""
