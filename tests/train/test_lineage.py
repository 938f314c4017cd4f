"""The lineage rules under every interleaving: attempts that start, publish, collect and die at any instant."""

from __future__ import annotations

import itertools
from collections.abc import Generator
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.train.lineage import (
    Listing,
    Position,
    Record,
    Wish,
    candidates,
    condemned,
    garbage,
    may_collect,
    preferred,
    visible,
)


def at(text: str) -> Position:
    return Position.parse(text)


def listing(records: dict[int, str | None], manifests: str, **more: object) -> Listing:
    made = {n: Record(n, None if base is None else at(base), 1) for n, base in records.items()}
    return replace(Listing(made, frozenset(at(p) for p in manifests.split())), **more)  # type: ignore[arg-type]


def shown(positions: tuple[Position, ...]) -> str:
    return " ".join(map(str, positions))


# --- examples -------------------------------------------------------------------------------------------------------


def test_what_was_published_past_the_freeze_does_not_exist() -> None:
    seen = listing({1: None, 2: "1:20"}, "1:10 1:20 1:30 2:25 2:40")
    assert shown(visible(seen)) == "1:10 1:20 2:25 2:40"
    assert shown(visible(seen, 1)) == "1:10 1:20 1:30"


def test_an_attempt_off_the_chain_is_not_seen() -> None:
    seen = listing({1: None, 2: "1:20", 3: "1:10"}, "1:10 1:20 2:30 3:15")
    assert shown(visible(seen)) == "1:10 3:15"


def test_restore_of_an_older_step_leaves_everything_after_it() -> None:
    seen = listing({1: None, 2: "1:20", 3: "2:30", 4: "1:10"}, "1:10 1:20 2:30 2:40 3:50")
    assert shown(visible(seen)) == "1:10"


def test_a_lost_record_ends_the_walk_at_its_attempt() -> None:
    assert shown(visible(listing({1: None, 3: "2:30"}, "1:10 2:20 2:30 2:40 3:35"))) == "2:20 2:30 3:35"


def test_an_attempt_whose_record_was_lost_may_be_gone_on_from() -> None:
    assert shown(preferred(listing({}, "1:10 1:20"), None, 2)) == "1:20 1:10"
    assert shown(preferred(listing({1: None}, "1:10 1:20 2:25"), None, 3)) == "2:25"
    assert preferred(listing({}, "1:10"), None, 1) == ()


def test_what_an_attempt_from_nothing_found_is_never_garbage() -> None:
    seen = listing({1: None, 2: "1:20", 3: None, 4: "3:5"}, "1:20 2:30 3:5 3:6 4:8 4:9")
    assert shown(garbage(seen, 4, keep=1)) == "3:6 4:8"
    # The record of attempt 2 is lost: what it began from is not known.
    assert shown(garbage(listing({1: None, 3: "2:30"}, "1:20 2:20 2:30 3:40 3:50"), 3, keep=1)) == "2:20 3:40"


def test_nothing_is_visible_in_an_empty_folder() -> None:
    assert visible(Listing()) == ()
    assert Listing().next_attempt() == 1


def test_numbers_grow_over_claims_and_orphaned_manifests() -> None:
    assert listing({1: None}, "", claims=frozenset({4})).next_attempt() == 5
    assert listing({1: None}, "7:3").next_attempt() == 8


def test_garbage_keeps_the_newest_and_the_base() -> None:
    seen = listing({1: None, 2: "1:20"}, "1:10 1:20 1:30 2:25 2:40 2:50")
    assert shown(garbage(seen, 2, keep=2)) == "1:10 1:30 2:25"
    assert garbage(seen, 1, keep=2) == ()
    assert garbage(replace(seen, claims=frozenset({3})), 2, keep=2) == ()
    with pytest.raises(ValueError, match="keep"):
        garbage(seen, 2, keep=0)


def test_a_marked_checkpoint_is_no_candidate_unless_a_later_attempt_began_from_it() -> None:
    seen = listing({1: None}, "1:10 1:20", marks={at("1:20"): 1})
    assert shown(candidates(seen)) == "1:10"
    began = listing({1: None, 2: "1:20"}, "1:10 1:20", marks={at("1:20"): 1})
    assert not condemned(began, at("1:20"))
    assert condemned(replace(began, marks={at("1:20"): 2}), at("1:20"))


@pytest.mark.parametrize(
    ("base", "since", "offered"),
    [
        ("1:10", None, "1:10"),
        ("1:10", 3, "1:10 2:30 1:20"),
        ("1:77", 3, "2:30 1:20 1:10"),
        ("1:77", None, ""),
        ("1:10", 2, "2:30 1:20 1:10"),
    ],
    ids=["by hand", "by a server", "gone", "gone, by hand", "an attempt that was told has begun"],
)
def test_a_wish_comes_first_and_alone_if_it_is_binding(base: str, since: int | None, offered: str) -> None:
    seen = listing({1: None, 2: "1:20"}, "1:10 1:20 2:30")
    assert shown(preferred(seen, Wish(at(base), since), 9)) == offered
    assert preferred(seen, None, 9) == candidates(seen)


@pytest.mark.parametrize("text", ["", "3", "3:", "a:b", "-1:4", "1:2:3"])
def test_positions_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="ATTEMPT:STEP"):
        Position.parse(text)


def test_a_record_cannot_begin_from_itself_or_the_future() -> None:
    with pytest.raises(ValueError, match="cannot begin"):
        Record(2, at("2:5"), 1)


# --- all interleavings ----------------------------------------------------------------------------------------------


@dataclass
class World:
    """The folder, and an oracle's memory of it. Every method of `Actor` between two yields is one atomic action."""

    records: dict[int, Record] = field(default_factory=dict)
    claims: set[int] = field(default_factory=set)
    marks: dict[Position, int] = field(default_factory=dict)
    manifests: set[Position] = field(default_factory=set)
    began_by: dict[int, int] = field(default_factory=dict)

    def began(self) -> Listing:
        return Listing(records=dict(self.records), claims=frozenset(self.claims))


class Actor:
    """One process group that was told (or took) an attempt number. Steps through the protocol, one action at a time."""

    def __init__(self, world: World, name: int, number: int | None, forced: int | None) -> None:
        self.world = world
        self.name = name
        self.wish = "publish"
        self._forced = forced
        self._life = self._live(number)

    def advance(self, wish: str) -> None:
        self.wish = wish
        next(self._life, None)

    def _list(self) -> Generator[None, None, Listing]:
        seen = self.world.began()
        yield
        marks = dict(self.world.marks)
        yield
        return replace(seen, marks=marks, manifests=frozenset(self.world.manifests))

    def _live(self, number: int | None) -> Generator[None, None, None]:
        world = self.world
        if number is None:
            number = (yield from self._list()).next_attempt()
        world.claims.add(number)
        yield
        seen = yield from self._list()
        if seen.fenced(number) or number in seen.records:
            return
        offered = preferred(seen, None, number)
        base = offered[min(self._forced or 0, len(offered) - 1)] if offered else None
        yield
        if number in world.records:  # create-if-absent says no
            return
        world.records[number] = Record(number, base, 1)
        world.began_by[number] = self.name
        yield
        if world.began().fenced(number):
            return
        step = base.step if base is not None else 0
        while True:
            yield
            step += 1
            if self.wish == "publish":  # also when fenced: the check before a publish may be older than the fence
                world.manifests.add(Position(number, step))
            elif self.wish == "torn":  # crashed before the manifest: the step is lost
                continue
            elif self.wish == "collect":
                yield from self._collect(number)

    def _collect(self, number: int) -> Generator[None, None, None]:
        world = self.world
        seen = yield from self._list()
        yield
        for victim in garbage(seen, number, keep=1):
            world.marks[victim] = max(number, world.marks.get(victim, 0))
            yield
            allowed = may_collect(world.began(), number)
            yield
            if not allowed:
                world.marks.pop(victim, None)
                return
            world.manifests.discard(victim)
            yield
            world.marks.pop(victim, None)


def exists(world: World, position: Position, head: int) -> bool:
    """The definition again, by recursion: what attempt ``head`` can see."""
    base = world.records[head].base if head in world.records else None
    if position.attempt == head:
        return position in world.manifests
    if base is None or position.attempt > base.attempt:
        return False
    if position.attempt == base.attempt and position.step > base.step:
        return False
    return exists(world, position, base.attempt)


def check(world: World) -> None:
    seen = Listing(dict(world.records), frozenset(world.manifests), dict(world.marks), frozenset(world.claims))
    there = visible(seen)
    newest = seen.newest()
    assert list(there) == sorted(there)
    steps = [p.step for p in there]
    assert steps == sorted(set(steps)), f"not one chain: {shown(there)}"
    if newest is None:
        assert there == ()
        return
    assert set(there) == {p for p in world.manifests if exists(world, p, newest)}
    base = world.records[newest].base
    if base is not None:
        assert base in world.manifests, f"base {base} of attempt {newest} is gone"
        assert base in there
        assert base in candidates(seen), f"base {base} of attempt {newest} cannot be chosen again"


@pytest.mark.parametrize("forced", [0, 1])
@pytest.mark.parametrize("collector_dies", [False, True])
def test_a_collector_and_a_starter_meet_at_every_action(forced: int, collector_dies: bool) -> None:
    """Attempt 1 collects, attempt 2 starts, and each stands still while the other goes on, at every pair of places."""
    chosen = set()
    for collected_first, started, collected_then in itertools.product(range(12), range(8), range(16)):
        world = World()
        old = Actor(world, 1, 1, None)
        for _ in range(12):
            old.advance("publish")
        new = Actor(world, 2, 2, forced)
        turns = [(old, "collect", collected_first), (new, "torn", started)]
        # A newer checkpoint makes the one that the starter may just have chosen a victim.
        turns += [(old, "publish", 2), (old, "collect", collected_then), (new, "torn", 12)]
        turns += [] if collector_dies else [(old, "collect", 30)]
        for actor, wish, count in turns:
            for _ in range(count):
                actor.advance(wish)
                check(world)
        chosen.add(world.records[2].base)
    assert None not in chosen
    assert len(chosen) > 1, "the two never got in each other's way: the test tests nothing"


actions = st.tuples(
    st.sampled_from(["advance"] * 12 + ["start", "start same number", "crash"]),
    st.integers(0, 5),
    st.sampled_from(["publish", "publish", "collect", "torn"]),
    st.sampled_from([None, None, None, 1, 3]),
    st.integers(1, 9),
)


@settings(max_examples=100)
@given(st.lists(actions, min_size=20, max_size=150))
def test_lineage_under_random_partitions(schedule: list[tuple[str, int, str, int | None, int]]) -> None:
    world = World()
    actors: list[Actor] = []
    born, numbered = 0, 0
    for kind, which, wish, forced, burst in schedule:
        if kind == "crash" and actors:
            actors.pop(which % len(actors))
        elif kind.startswith("start") or not actors:
            born += 1
            if kind == "start":
                numbered = max([numbered, *world.records, *world.claims]) + 1
            # A server numbers attempts; without one each takes what it sees as free, perhaps the same as another.
            number = numbered if kind == "start" else None
            actors.append(Actor(world, born, number, forced))
        else:
            # In bursts, so that an actor also gets far while the others stand still at any of their actions.
            for _ in range(burst):
                actors[which % len(actors)].advance(wish)
                check(world)
        check(world)
    assert len(world.began_by) == len(world.records)
