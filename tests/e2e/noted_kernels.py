"""Compile for an absent GPU as fakexport does, and note each Triton kernel.

It replaces `fakexport.deploy.aoti.gpu_worker`. What a simulation needs of a kernel is not in the package.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from torch._inductor.runtime.triton_heuristics import CachingAutotuner

from fakexport.deploy.aoti.gpu_worker import main

_folder = Path()
noted: list[dict[str, Any]] = []
save = CachingAutotuner.save_gpu_kernel


def save_gpu_kernel(self: Any, stream: Any, launcher: Any) -> None:
    folded = self.triton_meta["constants"]
    noted.append(
        {
            "name": self.inductor_meta["kernel_name"],
            "function": self.fn.__name__,
            "source": self.fn.src,
            "helpers": [
                held.src
                for name, held in self.fn.fn.__globals__.items()
                if name.startswith("_triton_helper_fn") and hasattr(held, "src")
            ],
            "constants": dict(launcher.config.kwargs),
            "signature": dict(self.triton_meta["signature"]),
            "arguments": [name for name in launcher.call_args if name not in folded],
            "folded": {str(name): value for name, value in folded.items()},
            "shared": launcher.shared,
            "warps": launcher.config.num_warps,
        }
    )
    (_folder / "kernels.json").write_text(json.dumps(noted))
    save(self, stream, launcher)


def run(arguments: list[str]) -> None:
    global _folder
    _folder = Path(arguments[1])
    CachingAutotuner.save_gpu_kernel = save_gpu_kernel
    main(arguments)


if __name__ == "__main__":
    run(sys.argv[1:])
