"""Compare the results of fakexport without a GPU with a real GPU, in nine minutes on one machine.

    make gpu-proof                                       all steps, on a machine with one NVIDIA GPU
    python -m benchmarks.gpu_proof --steps memory values only these steps
    python -m benchmarks.gpu_proof --pretend --limit 0   without a GPU: every step as far as possible

Offline, if torch and transformers are installed: `PYTHONPATH=src:. python3 -m benchmarks.gpu_proof`.

The most important steps run first, and each result is written to `results.jsonl` at once, so results survive
a time limit. The runner does not use the GPU itself: each case runs in its own process, with `part.py` as
its entry point.

Work that needs no GPU can be prepared on a different machine with the same versions of torch and
transformers, in 25 minutes on two cores. The programs and packages then come from a machine without a GPU:

    python -m benchmarks.gpu_proof --pretend --limit 0 --profile H200 --steps prepare

Then copy `build/gpu_prepared` to the GPU machine. Its folders are named after the profile, both library
versions and the sources of fakexport, so outdated folders are ignored. The steps also use accelerate, typer,
jinja2, pillow, torchvision, safetensors, triton, pytest, a C++ compiler, cmake and the CUDA toolkit.

`measured` contains the results of earlier runs.
"""
