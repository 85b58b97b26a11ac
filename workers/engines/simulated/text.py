"""What the simulated engine answers: words chosen by a hash of prompt, seed and choice. Pure; called by `engine`.

A prompt whose last line with `say:` names a text is answered with that text, so that a test can make the engine say
anything through every layer above it. Nothing else in a prompt changes how the engine works. A request for JSON gets
JSON whatever its prompt says. A prompt of token ids that ends within an answer of this engine is answered with its
rest, as a model does that goes on from the tokens before.
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

SAY = "say:"
SENTENCES = (
    "Water finds its way through every gate that is left open.",
    "The keeper counts what passes and writes it down once.",
    "A river shares itself among its fields, each by its measure.",
    "Stone by stone the weir is built across the stream 🌊.",
    "水は低い方へ流れます。",
    "Small fish rise where the current slows.",
    "In spring the snow melts and the level climbs 👩‍🔬 by a hand.",
    "Nothing is lost between the mountain and the mill.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What a request asks of one answer. `stop` strings end it and are not part of it; `json` is what it must be."""

    max_tokens: int
    min_tokens: int = 0
    ignore_eos: bool = False
    seed: int = 0
    choice: int = 0
    stop: tuple[str, ...] = ()
    json: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The decided answer: `tokens[i]` releases `pieces[i]`. `stop_reason` is the stop string that ended it."""

    tokens: tuple[int, ...]
    pieces: tuple[str, ...]
    finish_reason: str
    stop_reason: str | None = None


def decide_answer(*, tokenizer: Tokenizer, eos: int | None, prompt_text: str, wish: Wish, bytewise: bool) -> Answer:
    """The whole answer to `prompt_text`. `bytewise` gives every byte outside ASCII a token of its own."""
    wanted = wish.max_tokens if wish.ignore_eos else wish.min_tokens
    text = wish.json or _said(prompt_text) or _composed(prompt_text, wish)
    encode = _bytewise(tokenizer) if bytewise else lambda part: tokenizer.encode(part, add_special_tokens=False).ids
    tokens = encode(text)
    unit = encode("\n") if wish.json else tokens or encode(SENTENCES[0])  # white space leaves JSON what it is
    while len(tokens) < wanted:
        tokens = tokens + unit
    finish = "length"
    if len(tokens) < wish.max_tokens and not wish.ignore_eos and eos is not None:
        tokens, finish = [*tokens, eos], "stop"
    tokens = tokens[: wish.max_tokens]
    return _cut_at_stop(tokens, list(_pieces(tokenizer, tokens)), finish, wish.stop)


def continue_answer(
    *, tokenizer: Tokenizer, eos: int | None, prompt: list[int], wish: Wish, bytewise: bool
) -> Answer | None:
    """The rest of an answer that `prompt` ends within, `max_tokens` of it at most; None where it ends within none."""
    encode = _bytewise(tokenizer) if bytewise else lambda part: tokenizer.encode(part, add_special_tokens=False).ids
    said = _said(tokenizer.decode(prompt, skip_special_tokens=False))
    first = {ids[0] for ids in map(encode, (*SENTENCES, said)) if ids}
    for begin in (index for index in range(1, len(prompt)) if prompt[index] in first):
        spoken = prompt[begin:]
        answer = decide_answer(
            tokenizer=tokenizer,
            eos=eos,
            prompt_text=tokenizer.decode(prompt[:begin], skip_special_tokens=False),
            wish=replace(wish, max_tokens=wish.max_tokens + len(spoken)),
            bytewise=bytewise,
        )
        if len(answer.tokens) > len(spoken) and list(answer.tokens[: len(spoken)]) == spoken:
            return replace(answer, tokens=answer.tokens[len(spoken) :], pieces=answer.pieces[len(spoken) :])
    return None


def _said(prompt_text: str) -> str:
    lines = [line for line in prompt_text.splitlines() if SAY in line]
    if not lines:
        return ""
    said = lines[-1].split(SAY, 1)[1]
    return said.split("<|im_end|>", 1)[0].strip()


def _composed(prompt_text: str, wish: Wish) -> str:
    digest = hashlib.blake2b(f"{wish.seed}/{wish.choice}/{prompt_text}".encode()).digest()
    count = 2 + digest[0] % 4
    return " ".join(SENTENCES[byte % len(SENTENCES)] for byte in digest[1 : 1 + count])


def _bytewise(tokenizer: Tokenizer) -> Callable[[str], list[int]]:
    symbols = byte_symbols()

    def encode(text: str) -> list[int]:
        ids = [tokenizer.token_to_id(symbols[byte]) for byte in text.encode()]
        if any(item is None for item in ids):
            raise ValueError("this tokenizer has no token for every byte")
        return [item for item in ids if item is not None]

    return encode


def byte_symbols() -> list[str]:
    """The printable character that byte-level BPE writes for each byte (GPT-2's table)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spare = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(spare)) for byte in range(256)]


def _pieces(tokenizer: Tokenizer, tokens: list[int]) -> Iterator[str]:
    """Text released by each token; a token that ends inside a character releases nothing yet."""
    stream = DecodeStream(skip_special_tokens=True)
    for token in tokens:
        yield stream.step(tokenizer, token) or ""


def _cut_at_stop(tokens: list[int], pieces: list[str], finish: str, stops: tuple[str, ...]) -> Answer:
    """End before the first stop string; text that may begin one is held back, as vLLM does."""
    hold = max((len(stop) for stop in stops), default=1) - 1
    whole = ""
    released = 0
    out: list[str] = []
    for index, piece in enumerate(pieces):
        whole += piece
        found = [(whole.index(stop), stop) for stop in stops if stop in whole]
        if found:
            at, stop = min(found)
            out.append(whole[released:at])
            return Answer(tokens=tuple(tokens[: index + 1]), pieces=tuple(out), finish_reason="stop", stop_reason=stop)
        upto = len(whole) if index == len(pieces) - 1 else max(released, len(whole) - hold)
        out.append(whole[released:upto])
        released = upto
    return Answer(tokens=tuple(tokens), pieces=tuple(out), finish_reason=finish)
