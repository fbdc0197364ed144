"""Round trips: fake export, archive, a process without the model's package, binding, and what eager gives.

`reference` has the model and writes a case to a folder: archives, checkpoint, inputs, eager's outputs.
`clean_process` opens the case where no package of models can be imported, and compares.
`python -m tests.round_trip`
does this for every architecture and writes `docs/round_trip.md`.
"""
