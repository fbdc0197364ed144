"""Small tokenizers of the kinds that language models have, and texts that tell them apart."""

import json
from collections.abc import Callable, Mapping

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

_CORPUS = [
    "The capital of France is Paris. It's the people's city, isn't it? We've 12345 euros.",
    "def f(x):\n    return x + 1\n\n\nclass A:\n\tpass\n",
    "你好，世界！这是一个测试。",
    "Привет, мир! Это тест.",
    "naïve café, emoji 😀 and हिन्दी",
] * 20

TEXTS = (
    "The capital of France is",
    "It's I'LL we've\n\n x \n\t y  \r\n z",
    " leading, trailing  ",
    "😀 👩‍👩‍👧‍👦 🏳️‍🌈",
    "你好，世界！中文abc123混合",
    "e\u0301 cafe\u0301 \u00e9 \u212b \u1e9b\u0323 ÀÉÎ",
    "ﬁ Ⅷ ① ½ 𝓗𝓮 \u00a0\u3000\u200b",
    "नमस्ते दुनिया, مرحبا, 한국어, 日本語",
    "1234567890 x=1;y=22;  z=333",
    "a <|end|> b<|begin|><|end|> c",
    "foo<extra>bar <extra> [MASK] <s>x</s>",
    "--dashes",
)


def gpt2() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(_CORPUS, trainer)
    tokenizer.add_special_tokens(["<|begin|>", "<|end|>"])
    tokenizer.add_tokens(["<extra>"])
    return tokenizer


def llama2() -> Tokenizer:
    """BPE of a vocabulary with one token for each byte, as sentencepiece writes it."""
    trained = Tokenizer(models.BPE(unk_token="<unk>"))
    trained.normalizer = normalizers.Replace(" ", "▁")
    trained.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(
        vocab_size=700, special_tokens=special, limit_alphabet=60, show_progress=False
    )
    trained.train_from_iterator(_CORPUS, trainer)
    written = json.loads(trained.to_str())
    written["model"] |= {"byte_fallback": True, "fuse_unk": True}
    written["added_tokens"] = written["added_tokens"][:3]
    tokenizer = Tokenizer.from_str(json.dumps(written | {"pre_tokenizer": None}))
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return tokenizer


def bert() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=500, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(_CORPUS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return tokenizer


def t5() -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=250,
        special_tokens=["<pad>", "</s>", "<unk>"],
        unk_token="<unk>",
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return tokenizer


KINDS: Mapping[str, Callable[[], Tokenizer]] = {kind.__name__: kind for kind in (gpt2, llama2, bert, t5)}
