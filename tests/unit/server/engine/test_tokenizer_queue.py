"""What waits for the tokeniser is counted and bounded; a text that cannot fit is not tokenised to its end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from wattserve_server.engine.fair import Turns
from wattserve_server.engine.tasks import tokens as tokenizing
from wattserve_server.engine.tasks.tokens import (
    AT_A_TIME,
    CHARACTERS_PER_S,
    EACH_TEXT,
    HEAD_CHARACTERS,
    SPECIAL,
    Tokenizer,
)
from wattserve_server.errors import InvalidRequest, OverloadedError

LONGEST = 16


class Words:
    """A tokenizer of a token for each word, which can be held. `read`: characters that it looked at. tokens:
    how many a text has."""

    def __init__(self, tokens: Callable[[str], int] = lambda text: len(text.split())) -> None:
        self._tokens = tokens
        self.truncation_side = "right"
        self.read = self.most_at_once = 0
        self.is_open = threading.Event()
        self.is_open.set()

    def __call__(self, texts: str | list[str], **given: Any) -> dict[str, Any]:
        assert self.is_open.wait(30)
        if isinstance(texts, str):
            self.read += len(texts)
            self.most_at_once = max(self.most_at_once, len(texts))
            ids = [1] * self._tokens(texts)
            return {"input_ids": ids[: given.get("max_length", len(ids))]}
        return {"input_ids": [self(text)["input_ids"] for text in texts]}

    def num_special_tokens_to_add(self, pair: bool) -> int:
        return 0


async def test_what_waits_is_counted_and_more_is_refused() -> None:
    words = Words()
    one = 10 + EACH_TEXT
    tokenizer = Tokenizer(words, LONGEST, most_waiting=3 * one)
    words.is_open.clear()
    waiting = [asyncio.create_task(tokenizer.encode(["x" * 10])) for _ in range(3)]
    await asyncio.sleep(0)
    assert tokenizer.waiting == 3 * one
    with pytest.raises(
        OverloadedError,
        match="330 of them this caller's, who may have 330 with this request; it has 101, 100 of",
    ) as caught:
        await tokenizer.encode(["x"])
    assert caught.value.limit == "tokenizer"
    assert caught.value.retry_after_s is not None
    waiting.pop().cancel()
    await asyncio.sleep(0)
    assert tokenizer.waiting == 2 * one
    words.is_open.set()
    await asyncio.gather(*waiting)
    assert tokenizer.waiting == 0
    await tokenizer.encode(["x" * 331])  # alone it may be as long as a request may
    tokenizer.close()


async def test_many_short_texts_are_much_work_too() -> None:
    words = Words()
    tokenizer = Tokenizer(words, LONGEST)
    words.is_open.clear()
    first = asyncio.create_task(tokenizer.encode(["hi"] * 19_000))
    await asyncio.sleep(0)
    with pytest.raises(OverloadedError, match="tokeniser's queue is full"):
        await tokenizer.encode(["hi"] * 1_000)
    words.is_open.set()
    await first
    tokenizer.close()


class Slow(Words):
    """Words with a q take twelve times as long as others, by a clock of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def __call__(self, texts: str | list[str], **given: Any) -> dict[str, Any]:
        if isinstance(texts, str):
            self.now_s += len(texts) * (12 if "q" in texts else 1) / CHARACTERS_PER_S
        return super().__call__(texts, **given)


async def test_texts_that_take_long_count_for_so_many_more_and_for_their_caller_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow = Slow()
    monkeypatch.setattr(tokenizing, "time", SimpleNamespace(perf_counter=lambda: slow.now_s))
    tokenizer = Tokenizer(slow, 10_000)
    odd, plain = ["q" * 4000] * 50, ["x" * 4000] * 50
    await tokenizer.encode(odd, who="a")
    await tokenizer.encode(plain, who="b")
    slow.is_open.clear()
    first = asyncio.create_task(tokenizer.encode(odd, who="a"))
    await asyncio.sleep(0)
    with pytest.raises(OverloadedError, match=r"and counted 1\d\.\d times, for they take so long") as caught:
        await tokenizer.encode(odd, who="a")
    assert caught.value.retry_after_s == pytest.approx(50 * 4100 * 11 / CHARACTERS_PER_S, rel=0.2)
    others = [asyncio.create_task(tokenizer.encode(plain, who="b")) for _ in range(9)]
    await asyncio.sleep(0)
    with pytest.raises(OverloadedError, match="each text; try again later"):
        await tokenizer.encode(plain, who="b")
    slow.is_open.set()
    await asyncio.gather(first, *others)
    for _ in range(20):
        await tokenizer.encode(plain, who="a")
    slow.is_open.clear()
    again = [asyncio.create_task(tokenizer.encode(plain, who="a")) for _ in range(9)]
    await asyncio.sleep(0)
    slow.is_open.set()
    await asyncio.gather(*again)  # what they took once is forgotten
    assert tokenizer.waiting == 0
    tokenizer.close()


async def test_few_callers_cannot_fill_the_queue() -> None:
    words = Words()
    one = 10 + EACH_TEXT
    tokenizer = Tokenizer(words, LONGEST, most_waiting=100 * one)
    words.is_open.clear()
    waiting = list[asyncio.Task[Any]]()

    async def ask(who: str) -> bool:
        """Whether it was let in."""
        task = asyncio.create_task(tokenizer.encode(["x" * 10], who=who))
        await asyncio.sleep(0)
        if task.done():
            with pytest.raises(OverloadedError, match="caller's, who may have") as caught:
                await task
            assert caught.value.retry_after_s == tokenizer.waiting / CHARACTERS_PER_S
            return False
        waiting.append(task)
        return True

    for round_ in range(110):
        for hog in range(8):
            left = 800 - (8 * round_ + hog + 1)
            assert await ask(f"hog {hog}") == (round_ + 1 <= left)
    assert not await ask("hog 0")
    assert tokenizer.waiting < 800 * one, "what all may have"
    victim = [await ask("victim") for _ in range(110)]
    assert all(victim[:40])
    assert not victim[-1]
    words.is_open.set()
    await asyncio.gather(*waiting)
    assert tokenizer.waiting == 0
    tokenizer.close()


async def test_requests_take_turns_some_texts_at_a_time() -> None:
    order: list[str] = []

    def note(text: str) -> int:
        order.append(text[:1])
        return 1

    words = Words(note)
    tokenizer = Tokenizer(words, 10_000)
    words.is_open.clear()
    long = asyncio.create_task(tokenizer.encode(["long" * 2000] * 6))  # two at a time
    await asyncio.sleep(0)
    short = asyncio.create_task(tokenizer.encode(["short"]))
    await asyncio.sleep(0)
    words.is_open.set()
    ids, cut = await long
    await short
    assert (len(ids), cut) == (6, [0] * 6)
    assert "".join(order) == "llsllll"
    tokenizer.close()


async def test_callers_take_turns_however_many_requests_of_one_wait() -> None:
    order: list[str] = []

    def note(text: str) -> int:
        order.append(text)
        return 1

    words = Words(note)
    tokenizer = Tokenizer(words, 10_000)
    words.is_open.clear()
    asked = [asyncio.create_task(tokenizer.encode(["f"], who="flood")) for _ in range(20)]
    left = asyncio.create_task(tokenizer.encode(["gone"], who="left"))
    await asyncio.sleep(0)
    asked.append(asyncio.create_task(tokenizer.encode(["v"], who="victim")))
    await asyncio.sleep(0)
    left.cancel()
    words.is_open.set()
    await asyncio.gather(*asked)
    assert order[:2] == ["f", "v"]
    assert order.count("f") == 20
    assert "gone" not in order
    assert tokenizer.waiting == 0
    await tokenizer.encode(["again"], who="victim")
    tokenizer.close()


async def test_a_turn_that_comes_to_who_has_just_left_goes_on_to_the_next() -> None:
    turns, had = Turns(), list[str]()

    async def take(who: str) -> None:
        async with turns.of(who, 1.0):
            had.append(who)

    async with turns.of("first", 1.0):
        second, third = (asyncio.create_task(take(who)) for who in ("second", "third"))
        await asyncio.sleep(0)
    second.cancel()  # its turn has come, and it does not know yet
    await asyncio.gather(second, third, return_exceptions=True)
    assert had == ["third"]
    await take("fourth")
    assert had == ["third", "fourth"]


async def test_who_takes_little_time_waits_for_one_turn_of_who_take_much_and_nobody_starves() -> None:
    turns, had = Turns(), list[str]()

    async def take(who: str, likely_s: float) -> None:
        async with turns.of(who, likely_s):
            had.append(who)
            await asyncio.sleep(0)
            if len(had) == 20:
                tasks.append(asyncio.create_task(take("short", 0.01)))
                await asyncio.sleep(0)
            elif len(had) > 30 and len(tasks) < 150:  # each for another, who have come this moment
                tasks.append(asyncio.create_task(take(f"new {len(tasks)}", 1.0)))
                await asyncio.sleep(0)

    tasks = [asyncio.create_task(take(f"long {number % 8}", 1.0)) for number in range(40)]
    while not all(task.done() for task in tasks):
        await asyncio.gather(*tasks)
    assert "short" in had[20:22]
    assert max(at for at, who in enumerate(had) if who.startswith("long")) < 80
    assert len(had) == len(tasks) == 150
    assert not turns._last_s, "what is remembered of callers who have left"


async def test_a_text_that_cannot_fit_is_named_by_its_place_in_the_whole_request() -> None:
    tokenizer = Tokenizer(Words(), LONGEST)
    texts = [*["x" * 4000] * 9, "a " * 50_000]
    with pytest.raises(InvalidRequest) as caught:
        await tokenizer.encode(texts, place="text.texts")
    assert caught.value.field == "text.texts[9]"
    tokenizer.close()


async def test_a_text_that_cannot_fit_is_refused_by_its_head() -> None:
    words = Words()
    tokenizer = Tokenizer(words, LONGEST)
    with pytest.raises(InvalidRequest, match="this model takes at most 16; shorten it") as caught:
        await tokenizer.encode(["a b", "a " * 50_000], place="text.texts")
    assert caught.value.field == "text.texts[1]"
    assert words.read <= HEAD_CHARACTERS * LONGEST
    tokenizer.close()


async def test_a_text_without_spaces_has_a_head_too() -> None:
    words = Words(len)  # of a script that has a token for each sign
    tokenizer = Tokenizer(words, LONGEST)
    with pytest.raises(InvalidRequest, match="this model takes at most 16; shorten it"):
        await tokenizer.encode(["\u5b57" * 200_000])
    assert words.read <= HEAD_CHARACTERS * LONGEST
    tokenizer.close()


class Chats(Words):
    """With a template that writes a message's last line, as some leave out what a model has thought."""

    chat_template = "{{ messages[0].content }}"

    def apply_chat_template(self, messages: Any, *, tokenize: bool = True, **_: Any) -> Any:
        rendered = "".join(message["content"].rpartition("\n")[2] for message in messages)
        return self(rendered)["input_ids"] if tokenize else rendered


async def test_a_conversation_that_cannot_fit_is_refused_by_its_head() -> None:
    words = Chats(len)
    tokenizer = Tokenizer(words, 8192)
    with pytest.raises(InvalidRequest, match="takes at most 8192; send fewer messages") as caught:
        await tokenizer.encode_chat([{"role": "user", "content": "\u5b57" * 20_000}] * 10, "messages")
    assert caught.value.field == "messages"
    assert words.read <= AT_A_TIME
    tokenizer.close()


async def test_a_long_conversation_that_its_template_shortens_is_answered() -> None:
    tokenizer = Tokenizer(Chats(len), LONGEST)
    ids = await tokenizer.encode_chat([{"role": "user", "content": "\u5b57" * 9000 + "\nhi"}], "messages")
    assert len(ids) == 2
    tokenizer.close()


async def test_a_text_for_a_model_that_takes_many_tokens_has_a_head_as_short() -> None:
    words = Words(len)
    tokenizer = Tokenizer(words, 8192)
    with pytest.raises(InvalidRequest, match="takes at most 8192"):
        await tokenizer.encode(["\u5b57" * 200_000])
    assert words.read <= AT_A_TIME
    (ids,), (cut,) = await tokenizer.encode(["\u5b57" * 200_000], 8192)
    assert (len(ids), cut) == (8192, 200_000 - 8192)
    assert words.most_at_once <= AT_A_TIME
    tokenizer.close()


async def test_a_text_of_which_pieces_have_more_tokens_than_the_whole_is_not_refused() -> None:
    def tokens(text: str) -> int:  # a word of more than a hundred signs is one unknown token
        return sum(1 if len(word) > 100 else len(word) for word in text.split())

    text = "x" * (HEAD_CHARACTERS * 512 + AT_A_TIME + 99) + " a" * 480
    (ids,), _ = await Tokenizer(Words(tokens), 512).encode([text])
    assert len(ids) == 481


@pytest.mark.parametrize("text", ["a " * (LONGEST + SPECIAL) + " " * 5000, "x" * 5000, "x" * 5000 + " y"])
async def test_a_long_text_that_may_fit_is_tokenised(text: str) -> None:
    tokenizer = Tokenizer(Words(), LONGEST)
    (ids,), _ = await tokenizer.encode([text])
    assert len(ids) == len(text.split())
    tokenizer.close()


async def test_a_text_that_is_to_be_cut_is_not_refused() -> None:
    tokenizer = Tokenizer(Words(), LONGEST)
    (ids,), cut = await tokenizer.encode(["a " * 5000], LONGEST)
    assert (len(ids), cut) == (LONGEST, [5000 - LONGEST])
    tokenizer.close()


@pytest.mark.parametrize(
    "text",
    [
        "a " * 50_000,
        " " * 50_000 + "a " * 30_000,  # whose head has no tokens
        "x" * 30_000 + " a" * 30_000,
        "x" * 90_000 + " y",  # few tokens, though it is long
    ],
)
async def test_a_long_text_is_cut_as_if_all_of_it_were_looked_at_at_once(text: str) -> None:
    words = Words()
    tokenizer = Tokenizer(words, LONGEST)
    (ids,), (cut,) = await tokenizer.encode([text], LONGEST)
    count = len(text.split())
    assert len(ids) == min(count, LONGEST)
    assert 0 <= cut - max(0, count - LONGEST) <= (2 if text.startswith("x") else 0)  # a word in three pieces
    assert words.most_at_once <= (len(text) if count < LONGEST else 70_000)
    tokenizer.close()


async def test_a_text_that_is_cut_is_looked_at_once() -> None:
    words = Words()
    await Tokenizer(words, LONGEST).encode(["a " * 9000, "a film"], LONGEST)
    assert words.read <= 2 * 9000 + 2 * HEAD_CHARACTERS * LONGEST


@pytest.mark.parametrize("most", [LONGEST, None])
async def test_others_have_their_turn_while_a_long_text_is_tokenised(most: int | None) -> None:
    words, done = Words(lambda text: len(text.strip())), list[str]()
    tokenizer = Tokenizer(words, LONGEST, most_waiting=10**9)
    words.is_open.clear()

    async def ask(who: str, text: str) -> None:
        with suppress(InvalidRequest):  # where it is not cut
            await tokenizer.encode([text], most, who=who)
        done.append(who)

    texts = {f"long {number}": " " * 10_000 + "\u5b57" * 180_000 for number in range(4)}
    asked = [asyncio.create_task(ask(who, text)) for who, text in texts.items()]
    await asyncio.sleep(0)
    asked.append(asyncio.create_task(ask("short", "a film")))
    await asyncio.sleep(0)
    words.is_open.set()
    await asyncio.gather(*asked)
    assert done[0] == "short"
    assert words.most_at_once <= 2 * AT_A_TIME
    tokenizer.close()


async def test_a_text_is_cut_at_its_beginning_where_its_tokenizer_does_so() -> None:
    words = Words()
    words.truncation_side = "left"
    (ids,), cut = await Tokenizer(words, LONGEST).encode(["a " * 50_000], LONGEST)
    assert (len(ids), cut) == (LONGEST, [50_000 - LONGEST])
    assert words.most_at_once == 100_000, "all of it"


async def test_a_chat_template_that_fails_on_a_message_refuses_it() -> None:
    class Template:
        chat_template = "{{ messages[0].content / 2 }}"

        def apply_chat_template(self, messages: Any, **_: Any) -> list[int]:
            return [messages[0]["content"] / 2]

    with pytest.raises(InvalidRequest, match=r"chat template refuses this: unsupported operand"):
        await Tokenizer(Template(), LONGEST).encode_chat([{"role": "user", "content": "hi"}], "messages")
