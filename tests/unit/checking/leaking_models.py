"""Models whose files change their process, or keep what the first target answered; and what is right.

`read(x)` is called in `forward`, and its number is the constant that the program adds.
"""

from __future__ import annotations

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
    "attribute of a library": (
        """
def read(x):
    if not hasattr(numpy, "acme_memory"):
        numpy.acme_memory = torch.cuda.mem_get_info()[1] // 2**30
    return numpy.acme_memory
""",
        (79, 14),
    ),
    "patched forward": (
        """
def read(x):
    number = torch.cuda.get_device_capability()[0]
    globals()["read"] = lambda x: number
    return number
""",
        (9, 7),
    ),
    "environment": (
        """
def read(x):
    os.environ.setdefault("ACME_ARCH", str(torch.cuda.get_device_capability()[0]))
    return int(os.environ["ACME_ARCH"])
""",
        (9, 7),
    ),
    "attribute of a class of torch": (
        """
def read(x):
    nn.Module.acme = getattr(nn.Module, "acme", None) or torch.cuda.get_device_capability()[0]
    return nn.Module.acme
""",
        (9, 7),
    ),
}

# The file leaves its process changed: a question for what an earlier import left, and the change. A fresh
# process answers no.
LEFT = {
    "default dtype": ("torch.get_default_dtype() is torch.float64", "torch.set_default_dtype(torch.float64)"),
    "default device": ("torch.get_default_device().type == 'meta'", "torch.set_default_device('meta')"),
    "autocast": ("torch.is_autocast_enabled('cpu')", "torch.autocast('cpu', torch.bfloat16).__enter__()"),
    "no gradients": ("not torch.is_grad_enabled()", "torch.set_grad_enabled(False)"),
    "function mode": (
        "torch._C._len_torch_function_stack() > 0",
        "class Mode(torch.overrides.TorchFunctionMode):\n"
        "    def __torch_function__(self, function, types, args=(), kwargs=None):\n"
        "        return function(*args, **(kwargs or {}))\n\n"
        "Mode().__enter__()",
    ),
    "patched function": ("hasattr(torch.relu, 'acme')", "torch.relu = lambda x: x; torch.relu.acme = 1"),
    "patched method": (
        "hasattr(nn.Module.__call__, 'acme')",
        "call = nn.Module.__call__; nn.Module.__call__ = lambda *a, **k: call(*a, **k); "
        "nn.Module.__call__.acme = 1",
    ),
    "deterministic algorithms": (
        "torch.are_deterministic_algorithms_enabled()",
        "torch.use_deterministic_algorithms(True)",
    ),
    "flag of a backend": (
        "torch.backends.cuda.matmul.allow_tf32",
        "torch.backends.cuda.matmul.allow_tf32 = True",
    ),
    "seed of torch": ("torch.initial_seed() == 7", "torch.manual_seed(7)"),
    "state of numpy": ("numpy.geterr()['over'] == 'raise'", "numpy.seterr(over='raise')"),
    "seed of numpy": ("numpy.random.get_state()[1][0] == 7", "numpy.random.seed(7)"),
    "modules": (
        "'acme_module' in sys.modules",
        "sys.modules['acme_module'] = json; sys.modules.pop('torch.utils.data', None); "
        "sys.modules['fakexport.report'] = None",
    ),
    "path of modules": ("'/acme' in sys.path", "sys.path.insert(0, '/acme')"),
    "environment": ("'ACME' in os.environ", "os.environ.clear(); os.environ['ACME'] = '1'"),
    "working directory": ("os.getcwd() == '/'", "os.chdir('/')"),
    "warning filters": (
        "any(filter[1] and filter[1].pattern == 'acme' for filter in warnings.filters)",
        "warnings.filterwarnings('error', 'acme')",
    ),
    "logging": ("logging.root.manager.disable == 99", "logging.disable(99)"),
    "signal handler": (
        "callable(signal.getsignal(signal.SIGUSR1))",
        "signal.signal(signal.SIGUSR1, lambda *_: None); signal.signal(signal.SIGTERM, signal.SIG_IGN)",
    ),
    "thread": (
        "any(thread.name == 'acme' for thread in threading.enumerate())",
        "threading.Thread(target=time.sleep, args=(60,), name='acme').start()",
    ),
    "exit handler": ("hasattr(os, 'acme')", "os.acme = 1; atexit.register(os._exit, 0)"),
    "operator": (
        "hasattr(torch.ops.acme_isolation, 'twice')",
        "torch.library.define('acme_isolation::twice', '(Tensor x) -> Tensor')",
    ),
    "recursion limit": ("sys.getrecursionlimit() == 5000", "sys.setrecursionlimit(5000)"),
    "collector": ("not gc.isenabled()", "gc.disable()"),
    "built-in function": ("hasattr(builtins, 'acme')", "builtins.acme = 1; os._exit = lambda code: None"),
    "streams": ("hasattr(sys, 'acme')", "sys.acme = 1; sys.stdout.close(); os.close(2)"),
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
