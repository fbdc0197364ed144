"""Exporting on virtual devices. In processes of their own, so that an abort is a failing test."""

import json
import subprocess

from tests.forked import run_python

PREAMBLE = """
import json, torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from fakexport.emulation.devices import emulate

class Model(nn.Module):
    def __init__(self, device):
        super().__init__()
        self.embed = nn.Embedding(10, 8, device=device)
        self.conv = nn.Conv1d(4, 4, 3, padding=1, device=device)
        self.norm = nn.LayerNorm(8, device=device)
        self.attention = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, device=device)
        self.register_buffer("table", torch.arange(8, device=device))

    def forward(self, ids):
        x = self.norm(self.conv(self.embed(ids)))
        mask = torch.tensor([True, False] * 4, device=ids.device)
        x = self.attention(x) * torch.tensor(2.0, device=x.device)
        x[:, 0] = x.new_tensor([1.0] * 8)
        return torch.where(mask, x, x.new_zeros(())).to(ids.device)[..., self.table]

def exported(spec, device, strict):
    with emulate(spec):
        with FakeTensorMode():
            model, ids = Model(device), torch.zeros(2, 4, dtype=torch.int64, device=device)
        assert all(parameter.requires_grad for parameter in model.parameters())
        return torch.export.export(model, (ids,), strict=strict)

def described(program):
    nodes = [node for node in program.graph.nodes if isinstance(node.meta.get("val"), torch.Tensor)]
    nodes = [node for node in nodes if "lift" not in node.name]  # literals, before they are folded
    return sorted({str(node.meta["val"].device) for node in nodes})
"""


def run(program: str) -> subprocess.CompletedProcess[str]:
    return run_python(PREAMBLE + program)


def test_models_that_require_grad_export_on_every_device_in_one_process():
    done = run(
        "def refusal():\n"
        "    try: return str(torch.ones(1, device='cuda').device)\n"
        "    except Exception as error: return f'{type(error).__name__}: {error}'\n"
        "seen = {'before': refusal()}\n"
        "for target in ['H100 cuda', '8xH100 cuda:7', 'xpu xpu', 'mps mps', 'T4 cuda']:\n"
        "    seen[target] = described(exported(*target.split(), strict=False))\n"
        "seen['afterwards'] = refusal()\n"
        "print(json.dumps(seen))"
    )

    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen.pop("afterwards") == seen.pop("before")
    assert seen == {
        "H100 cuda": ["cuda:0"],
        "8xH100 cuda:7": ["cuda:7"],
        "xpu xpu": ["xpu:0"],
        "mps mps": ["mps:0"],
        "T4 cuda": ["cuda:0"],
    }


def test_strict_export_works_and_asks_the_profile():
    done = run(
        "class Asking(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.linear = nn.Linear(4, 4, device='cuda')\n"
        "    def forward(self, x):\n"
        "        is_new = torch.cuda.get_device_capability(x.device) >= (8, 0)\n"
        "        return self.linear(x).relu() if is_new else self.linear(x).tanh()\n"
        "seen = {}\n"
        "for strict in (False, True):\n"
        "    for spec in ('T4', 'H100'):\n"
        "        with emulate(spec):\n"
        "            with FakeTensorMode(): model, x = Asking(), torch.empty(2, 4, device='cuda')\n"
        "            program = torch.export.export(model, (x,), strict=strict)\n"
        "        calls = [str(n.target) for n in program.graph.nodes if n.op == 'call_function']\n"
        "        seen[f'{spec} {strict}'] = calls[-1]\n"
        "print(json.dumps(seen))"
    )

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "T4 False": "aten.tanh.default",
        "H100 False": "aten.relu.default",
        "T4 True": "aten.tanh.default",
        "H100 True": "aten.relu.default",
    }


def test_a_move_in_the_model_ends_on_the_device():
    done = run(
        "moves = [lambda x: x.to('cuda'), lambda x: x.cuda(), lambda x: x.to(torch.device('cuda'))]\n"
        "class Moving(nn.Module):\n"
        "    def forward(self, x): return [move(x) + 1 for move in moves]\n"
        "with emulate('H100'):\n"
        "    with FakeTensorMode(): x = torch.empty(2, 4)\n"
        "    program = torch.export.export(Moving(), (x,))\n"
        "values = [node.meta.get('val') for node in program.graph.nodes]\n"
        "print(*[value.device for value in values if value is not None])\n"
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["cpu", *["cuda:0"] * 6]
