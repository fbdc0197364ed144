"""The runtime `acme`: writes a file with a program, and runs it. A real runtime writes its own format."""

import torch


class Runtime:
    def compile(self, program, path, signature):
        """Write the file. It also stores the signature, which fakexport checks before each call."""
        torch.export.save(program, path, extra_files={"signature": signature})

    def open(self, path):
        """Return the signature, and a function from input tensors by name to a sequence of output tensors."""
        extra = {"signature": ""}
        module = torch.export.load(path, extra_files=extra).module()

        def call(inputs):
            with torch.no_grad():
                return [module(*inputs.values())]

        return extra["signature"], call
