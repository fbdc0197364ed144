"""Answer the requests of `tokenizers_c.cpp` with the tokenizers package."""

import os
import sys
from pathlib import Path

from tokenizers import Tokenizer


def main() -> None:
    tokenizer: Tokenizer | None = None
    while header := sys.stdin.buffer.readline().decode():
        request, flag, length = header.split()
        body = sys.stdin.buffer.read(int(length)).decode()
        answer = ""
        if request == "open":
            tokenizer = Tokenizer.from_str(body)
        elif request == "encode":
            assert tokenizer is not None
            ids = tokenizer.encode(body, add_special_tokens=flag == "1").ids
            answer = " ".join(map(str, (len(ids), *ids)))
        elif request == "piece":
            assert tokenizer is not None
            answer = tokenizer.id_to_token(int(body)) or ""
        else:
            assert tokenizer is not None
            if counts := os.environ.get("DECODED"):
                with Path(counts).open("a", encoding="utf-8") as file:
                    print(len(body.split()), file=file)
            answer = tokenizer.decode([int(word) for word in body.split()], skip_special_tokens=flag == "1")
        written = answer.encode()
        sys.stdout.buffer.write(b"%d\n%s" % (len(written), written))
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    try:
        main()
    except Exception as error:  # As Rust says it.
        sys.exit(f"called `Result::unwrap()` on an `Err` value: {error}")
