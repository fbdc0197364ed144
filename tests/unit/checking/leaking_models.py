"""Models whose files change their process, or keep what the first target answered; and what is right.

`read(x)` is called in `forward`, and its number is the constant that the program adds.
"""

__all__ = ["KEPT", "LEFT", "source_of"]

_HEAD = """
import atexit, builtins, functools, gc, json, logging, os, random, signal, sys, threading, time, warnings
import numpy
import torch
from torch import nn
"""
_TAIL = """

class Model(nn.Module):
    def forward(self, x):
        return x + read(x)


def factory():
    return Model(), (torch.zeros(2),)
"""

# What the first target answers is kept. The right constants are those of the H100 and of the T4.
KEPT = {
    "function cache": (
        """
@functools.lru_cache
def capability():
    return torch.cuda.get_device_capability()[0]

def read(x):
    return capability()
""",
        (9, 7),
    ),
    "class variable": (
        """
class Settings:
    capability = None

def read(x):
    if Settings.capability is None:
        Settings.capability = torch.cuda.get_device_capability()[0]
    return Settings.capability
""",
        (9, 7),
    ),
    "module variable": (
        """
name = None

def read(x):
    global name
    name = name or torch.cuda.get_device_name(0)
    return 1 if "H100" in name else 2
""",
        (1, 2),
    ),
    "properties object": (
        """
held = []

def read(x):
    if not held:
        held.append(torch.cuda.get_device_properties(0))
    return held[0].multi_processor_count
""",
        (132, 40),
    ),
    "constructor flag": (
        """
class Registry(dict):
    pass

registry = Registry()

class Flagged(nn.Module):
    def __init__(self):
        super().__init__()
        registry.setdefault("fused", "H100" in torch.cuda.get_device_name())

flagged = functools.cache(Flagged)

def read(x):
    flagged()
    return 1 if registry["fused"] else 2
""",
        (1, 2),
    ),
}

# The file leaves its process changed: a question for what an earlier import left, and the change. A fresh
# process answers no.
LEFT = {
    "default dtype": ("torch.get_default_dtype() is torch.float64", "torch.set_default_dtype(torch.float64)"),
    "default device": ("torch.get_default_device().type == 'meta'", "torch.set_default_device('meta')"),
    "autocast": ("torch.is_autocast_enabled('cpu')", "torch.autocast('cpu', torch.bfloat16).__enter__()"),
    "flag of a backend": (
        "torch.backends.cuda.matmul.allow_tf32",
        "torch.backends.cuda.matmul.allow_tf32 = True",
    ),
    "modules": (
        "'acme_module' in sys.modules",
        "sys.modules['acme_module'] = json; sys.modules.pop('torch.utils.data', None); "
        "sys.modules['fakexport.report'] = None",
    ),
    "environment": ("'ACME' in os.environ", "os.environ.clear(); os.environ['ACME'] = '1'"),
    "working directory": ("os.getcwd() == '/'", "os.chdir('/')"),
    "warning filters": (
        "any(filter[1] and filter[1].pattern == 'acme' for filter in warnings.filters)",
        "warnings.filterwarnings('error', 'acme')",
    ),
    "signal handler": (
        "callable(signal.getsignal(signal.SIGUSR1))",
        "signal.signal(signal.SIGUSR1, lambda *_: None); signal.signal(signal.SIGTERM, signal.SIG_IGN)",
    ),
    "thread": (
        "any(thread.name == 'acme' for thread in threading.enumerate())",
        "threading.Thread(target=time.sleep, args=(60,), name='acme').start()",
    ),
    "exit handler": ("hasattr(os, 'acme')", "os.acme = 1; atexit.register(os._exit, 0)"),
    "built-in function": ("hasattr(builtins, 'acme')", "builtins.acme = 1; os._exit = lambda code: None"),
    "streams": ("hasattr(sys, 'acme')", "sys.acme = 1; sys.stderr.close(); os.close(2)"),
    "dead interpreter functions": (
        "hasattr(os, 'acme_fork')",
        "os.acme_fork = 1; os.fork = None; os.kill = None; os.waitpid = None",
    ),
}


def source_of(case: str) -> str:
    """Return the text of a file with `factory`."""
    if case in KEPT:
        return f"{_HEAD}{KEPT[case][0]}{_TAIL}"
    question, change = LEFT[case]
    return (
        f"{_HEAD}was_left = bool({question})\n{change}\n\n\ndef read(x):\n    return int(was_left)\n{_TAIL}"
    )
