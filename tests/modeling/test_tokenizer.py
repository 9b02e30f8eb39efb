"""The offline tokenizer reads and writes any text, and keeps fixed text, numbers and words short."""

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flywheel.envs.simulated.vocabulary import ALL_WORDS
from flywheel.modeling.tokenizer import CELLS, GRID, SPECIAL_TOKENS, build_tokenizer, fixed_phrases
from tests.tiny import Tiny

anything = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


@settings(deadline=None, max_examples=300)
@given(text=anything)
def test_any_text_comes_back(tiny: Tiny, text: str) -> None:
    """Up to Unicode normalisation (NFC), which is what Qwen's own tokenizer keeps too."""
    chat = tiny.chat
    assert chat.decode([*chat.tokenise(text), chat.end_id]) == unicodedata.normalize("NFC", text)


@settings(deadline=None, max_examples=100)
@given(numbers=st.lists(st.integers(0, 10**6), max_size=5), words=st.lists(st.sampled_from(ALL_WORDS), max_size=5))
def test_numbers_and_words_in_json_come_back(tiny: Tiny, numbers: list[int], words: list[str]) -> None:
    text = f'<tool_call>\n{{"coordinate": {numbers}, "text": {words}}}\n</tool_call>'
    assert tiny.chat.decode(tiny.chat.tokenise(text)) == text


def test_every_coordinate_and_every_cell_is_one_token(tiny: Tiny) -> None:
    names = [*(str(n) for n in range(GRID + 1)), *(f" {n}" for n in range(CELLS))]
    ids = [tiny.chat.tokenise(name) for name in names]
    assert {len(found) for found in ids} == {1}
    assert len({found[0] for found in ids}) == len(names)


def test_the_words_of_the_desktop_are_one_token_each(tiny: Tiny) -> None:
    assert {len(tiny.chat.tokenise(f" {word}")) for word in ALL_WORDS} == {1}


def test_special_tokens_are_qwens_and_single(tiny: Tiny) -> None:
    for token in SPECIAL_TOKENS:
        assert len(tiny.chat.tokenise(token)) == 1
    assert tiny.chat.processor.tokenizer.eos_token == "<|im_end|>"


def test_training_is_repeatable() -> None:
    first, again = (build_tokenizer(["Click Save . " * 20], ["Action: "], 30) for _ in range(2))
    assert first.get_vocab() == again.get_vocab()


def test_phrases_are_the_fixed_pieces_between_words_and_numbers() -> None:
    found = fixed_phrases(["<|im_start|>system\nBe brief.\n"], ['say "@@" at [10, 20]', "plain"], "@@")
    assert found == ["system\n", "Be brief.\n", 'say "', '" at [', ", "]


@pytest.mark.parametrize("merges", [0, 40])
def test_few_merges_still_write_any_text(merges: int) -> None:
    tokenizer = build_tokenizer(["Click Save . " * 20], [], merges)
    text = "Größe 100 %: „naïve“ \n\t☂"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
