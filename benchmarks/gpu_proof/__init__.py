"""Compare what fakexport says without a GPU with what a GPU does, in nine minutes on one machine.

    make gpu-proof                                       all steps, on a machine with one NVIDIA GPU
    python -m benchmarks.gpu_proof --steps memory values only these steps
    python -m benchmarks.gpu_proof --pretend --limit 0   without a GPU: every step as far as it goes

Offline, if torch and transformers are installed: `PYTHONPATH=src:. python3 -m benchmarks.gpu_proof`.

The steps are ordered by worth, and each result is a line of `results.jsonl` as soon as it is known, so a
time limit loses nothing. The runner does not use the GPU itself: each case has a process of its own, and
`part.py` is its entry.

What needs no GPU can be prepared on a different machine with the same versions of torch and transformers,
which saves two minutes:

    python -m benchmarks.gpu_proof --pretend --limit 0 --profile H200 --steps prepare

Then carry `build/gpu_prepared` along. Its folders are named after the profile, both libraries and the sources
of fakexport, so a stale one is ignored. The steps also use accelerate, typer, jinja2, safetensors, triton,
pytest, a C++ compiler, cmake and the CUDA toolkit.
"""
