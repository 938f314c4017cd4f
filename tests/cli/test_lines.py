from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from everstep.cli.lines import Joiner
from everstep.client.results import LogPart


def part(text: str, rank: str = "0", *, attempt: int = 1, node: int = 0, eof: bool = False) -> LogPart:
    return LogPart(attempt=attempt, node=node, rank=rank, text=text, eof=eof)


def test_a_line_appears_when_it_is_whole_and_says_where_it_comes_from() -> None:
    joiner = Joiner()
    assert joiner.take(part("step 1 lo")) == ""
    assert joiner.take(part("hello\nwor", "1", node=1)) == "(rank 1) hello\n"
    assert joiner.take(part("pip", "setup", node=1)) == ""
    assert joiner.take(part("ss 2\n")) == "step 1 loss 2\n"
    assert joiner.take(part("", "setup", node=1, eof=True)) == "(setup, node 1) pip\n"
    assert joiner.rest() == "(rank 1) wor\n"
    assert joiner.rest() == ""


def test_a_line_cut_by_a_preemption_is_not_joined_with_the_next_attempt() -> None:
    joiner = Joiner()
    assert joiner.take(part("half a l", attempt=1)) == ""
    assert joiner.take(part("new line\n", attempt=2)) == "new line\n"
    assert joiner.rest() == "half a l\n"


def test_of_one_origin_everything_is_passed_on_at_once() -> None:
    assert Joiner(plain=True).take(part("50 %\r", "3")) == "50 %\r"


@given(st.lists(st.tuples(st.sampled_from("012"), st.text("ab\r\n \u2028", max_size=8)), max_size=60))
def test_every_rank_keeps_its_lines_whatever_the_order(pieces: list[tuple[str, str]]) -> None:
    joiner = Joiner()
    printed = "".join(joiner.take(part(text, rank)) for rank, text in pieces) + joiner.rest()
    for rank, prefix in (("0", ""), ("1", "(rank 1) "), ("2", "(rank 2) ")):
        said = "".join(text for origin, text in pieces if origin == rank)
        lines = [line for line in printed.split("\n")[:-1] if line.startswith("(rank") == bool(prefix)]
        lines = [line.removeprefix(prefix) for line in lines if line.startswith(prefix)]
        assert "\n".join(lines) == said.removesuffix("\n")
