"""FE210: torch.export does not trace a derivative of torch.func."""

from fakexport.rules.rule import Rule

RULE = Rule(
    code="FE210",
    name="transform_lost",
    severity="error",
    message="torch.func derivative is not traced",
    why="""
`torch.func.grad`, `vjp`, `jacrev`, `jacfwd` and `hessian` wrap their input in a tensor that
`torch.export` does not know. At best the trace stops inside torch (`'Tensor' object has no attribute
'constant'`). At worst it finishes, and the wrapped input is a *constant* of the ExportedProgram: the
program ignores what it is given, and stock `torch.export` does not report it. `torch.vmap`,
`torch.func.jvp` and `torch.func.functional_call` are traced correctly.
""",
    how_to_repair="""
Compute the derivative with `torch.autograd`, which is traced as plain operators:
`torch.autograd.grad(loss, x)` in a `torch.enable_grad()` block, on `x.detach().requires_grad_()`;
`torch.autograd.functional.jacobian` and `hessian` instead of `jacrev`, `jacfwd` and `hessian`.
Per-sample gradients are the gradient of the sum over the samples, if no sample influences another. Export
without `--strict`, which traces none of these.
""",
    failing_model="""
import torch
from torch import nn


def energy(position):
    return position.pow(4).sum()


class Forces(nn.Module):
    def forward(self, x):
        return torch.vmap(torch.func.grad(energy))(x)  # <- FE210


def factory():
    return Forces(), (torch.randn(3, 4),)
""",
    repair="""
-        return torch.vmap(torch.func.grad(energy))(x)
+        with torch.enable_grad():
+            x = x.detach().requires_grad_()
+            (forces,) = torch.autograd.grad(energy(x), x)
+        return forces
""",
    fails_on="capture",
    torch_error="'Tensor' object has no attribute 'constant'",
    links=("https://docs.pytorch.org/docs/stable/func.html",),
)
