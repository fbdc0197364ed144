"""Generate tokens with the prefill and decode programs of a bundle, without the model's package."""

from .generate import generate
from .generator import Generated, Generator
from .sampling import Sampling
from .tokenizer import Tokenizer
