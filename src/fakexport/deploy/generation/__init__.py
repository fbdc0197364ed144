"""Generate tokens with the prefill and decode programs of a bundle, without the model's package."""

from .generator import Generated, Generator, generate
from .prompts import Tokenizer
from .sampling import Sampling
