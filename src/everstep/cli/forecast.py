"""``everstep forecast``: how long machines last, from records of how long they did."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from everstep.cli import wording
from everstep.cli.output import Column, Output, OutputOption, document, facts, field, table
from everstep.model.errors import BadInput, Problem
from everstep.model.units import format_duration, format_instant, parse_duration

if TYPE_CHECKING:
    from everstep.brain.forecast.models import Fitted
    from everstep.brain.forecast.records import Lifetime

app = typer.Typer(no_args_is_help=True)

_DAY_S = 86_400.0


class Model(StrEnum):
    """The models, as `brain.forecast.models.MODELS` names them."""

    FRAILTY = "frailty"
    EXPONENTIAL = "exponential"
    GAMMA_POISSON = "gamma-poisson"
    WEIBULL = "weibull"
    BATHTUB = "bathtub"
    KAPLAN_MEIER = "kaplan-meier"
    NELSON_AALEN = "nelson-aalen"


@dataclass(frozen=True, slots=True)
class PoolForecast:
    """What is expected of one pool.

    Attributes:
        pool: its name; empty = all pools together.
        machines, losses: records, and how many of them ended by preemption.
        hours: lived through, at least.
        factor: its hazard against the baseline; None for models without.
        survival_1h, survival_6h, survival_24h: chance that a new machine lasts so long.
        mean_first_day_h: hours of the first day that a new machine is expected to last.
    """

    pool: str
    machines: int
    losses: int
    hours: float
    factor: float | None
    survival_1h: float
    survival_6h: float
    survival_24h: float
    mean_first_day_h: float


@dataclass(frozen=True, slots=True)
class Score:
    """Attributes: mean_log_likelihood: per later record; None for what has no density, or held a record impossible."""

    model: str
    mean_log_likelihood: float | None


@dataclass(frozen=True, slots=True)
class Scores:
    """Scores of models on the later part of a file.

    Attributes:
        file: the file.
        earlier, later: records that models were fitted to, and judged on.
        cut: start of the first later record.
        scores: best first.
    """

    file: str
    earlier: int
    later: int
    cut: str
    scores: tuple[Score, ...]


FileArgument = Annotated[
    Path,
    typer.Argument(
        metavar="FILE.csv",
        help="Lifetimes: columns `duration_h, observed` and, if known, `pool, start`; or a published set.",
    ),
]
ModelsOption = Annotated[list[Model] | None, typer.Option("--model", help="A model; may be given several times.")]
HalfLifeOption = Annotated[
    str | None,
    typer.Option("--half-life", metavar="DURATION", help="After which a record counts half (`frailty` only)."),
]


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


_POOLS = (
    Column("POOL", lambda p: p.pool or "all"),
    Column("MACHINES", field("machines"), right=True),
    Column("LOST", field("losses"), right=True),
    Column("HOURS", lambda p: f"{p.hours:.0f}", right=True),
    Column("FACTOR", lambda p: "" if p.factor is None else f"{p.factor:.2f}", right=True),
    Column("LASTS 1 H", lambda p: _share(p.survival_1h), right=True),
    Column("6 H", lambda p: _share(p.survival_6h), right=True),
    Column("24 H", lambda p: _share(p.survival_24h), right=True),
    Column("MEAN OF FIRST DAY", lambda p: format_duration(p.mean_first_day_h * 3600.0), right=True),
)

_SCORES = (
    Column("MODEL", field("model")),
    Column(
        "MEAN LOG-LIKELIHOOD",
        lambda s: wording.UNKNOWN if s.mean_log_likelihood is None else f"{s.mean_log_likelihood:.4f}",
        right=True,
    ),
)


@app.command("fit")
def fit(
    file: FileArgument,
    model: Annotated[Model, typer.Option("--model", help="The model to fit.")] = Model.FRAILTY,
    half_life: HalfLifeOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Fit a model to lifetimes and show what it expects of each pool.

    Example: `everstep forecast fit lifetimes.csv`
    """
    from everstep.brain.forecast.models import fitted

    lives = _read(file)
    found = _told(lives, fitted(model.value, lives, half_life_h=_hours(half_life)))
    if output is Output.TABLE:
        table(found, _POOLS)
    else:
        document(found, output)


@app.command("score")
def score(
    file: FileArgument,
    model: ModelsOption = None,
    split: Annotated[
        float, typer.Option("--split", min=0.01, max=0.99, help="Share of the records, by start, to fit to.")
    ] = 0.7,
    half_life: HalfLifeOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Fit models to the earlier records and judge them on the later ones.

    The score is the mean log-likelihood per later record, densities per hour: higher is better. Kaplan-Meier and
    Nelson-Aalen have no density, so they have a score only where the moments of loss lie between two looks.

    Example: `everstep forecast score lifetimes.csv --split 0.7`
    """
    from everstep.brain.forecast.models import score as judged
    from everstep.brain.forecast.models import split_by_time

    lives, half_life_h = _read(file), _hours(half_life)
    try:
        earlier, later = split_by_time(lives, split)
    except ValueError as error:
        raise BadInput(
            Problem(str(file), "start", str(error), "score needs a column `start` and two records")
        ) from None
    names = [m.value for m in model or Model]
    values = {name: judged(name, earlier, later, half_life_h=half_life_h) for name in names}
    ranked = sorted(names, key=lambda name: -values[name])
    told = Scores(
        str(file),
        len(earlier),
        len(later),
        format_instant(later[0].start_s or 0.0),
        tuple(Score(name, values[name] if math.isfinite(values[name]) else None) for name in ranked),
    )
    if output is not Output.TABLE:
        document(told, output)
        return
    facts(
        [("fitted to", f"{told.earlier} records that began before {told.cut}"), ("judged on", f"{told.later} records")]
    )
    print()
    table(told.scores, _SCORES)


@app.command("plot")
def plot(
    file: FileArgument,
    out: Annotated[
        Path, typer.Option("--out", metavar="FILE", help="The picture: .html, or .png with the extra `plot`.")
    ] = Path("forecast.html"),
    model: ModelsOption = None,
    until: Annotated[str, typer.Option("--until", metavar="DURATION", help="Where the picture ends.")] = "24h",
) -> None:
    """Draw how long machines lasted, and what models make of it.

    Example: `everstep forecast plot lifetimes.csv --out forecast.html`
    """
    from everstep.brain.forecast.models import MODELS
    from everstep.brain.forecast.nonparametric import kaplan_meier
    from everstep.cli import survival

    if out.suffix not in (".html", ".png"):
        raise BadInput(Problem("--out", "", f"cannot draw '{out.name}'", "end it in .html or .png"))
    hours = _hours(until)
    if not hours:
        raise BadInput(Problem("--until", "", "expected a duration above 0"))
    lives = _read(file)
    names = [m.value for m in model or (Model.FRAILTY, Model.WEIBULL, Model.EXPONENTIAL)]
    curves = [survival.curve("observed (Kaplan-Meier)", kaplan_meier(lives), hours)]
    curves += [survival.curve(name, MODELS[name](lives).of(()), hours) for name in names]
    lost = sum(life.lost for life in lives)
    title = f"{file.name}: {len(lives)} machines, {lost} preempted"
    survival.draw(curves, title, out)
    print(f"wrote {out}")


def _read(file: Path) -> Sequence[Lifetime]:
    from everstep.market.lifetimes import read_lifetimes

    found = read_lifetimes(file)
    if found.paired:
        text = (
            "counts machines without naming them: mean rates are right, how they change with age is not to be believed"
        )
        typer.echo(f"{file}: {text}", err=True)
    return found.lives


def _told(lives: Sequence[Lifetime], model: Fitted) -> list[PoolForecast]:
    """All pools together, then each, those with the most records first."""
    by_pool: dict[tuple[str, ...], list[Lifetime]] = {}
    for life in lives:
        by_pool.setdefault(life.pool, []).append(life)
    pools = sorted((pool for pool in by_pool if pool), key=lambda pool: (-len(by_pool[pool]), pool))
    return [_pool((), lives, model), *(_pool(pool, by_pool[pool], model) for pool in pools)]


def _pool(pool: tuple[str, ...], lives: Sequence[Lifetime], model: Fitted) -> PoolForecast:
    from everstep.brain.forecast.frailty import Frailty
    from everstep.brain.forecast.hazard import mean_residual_s, survival

    hazard = model.of(pool)
    return PoolForecast(
        # The path's last name tells it all; those before it are its cloud and its region once more.
        pool=pool[-1] if pool else "",
        machines=len(lives),
        losses=sum(life.lost for life in lives),
        hours=round(sum(life.lived_h for life in lives), 3),
        factor=model.factor(pool) if isinstance(model, Frailty) else None,
        survival_1h=survival(hazard, 3600.0),
        survival_6h=survival(hazard, 6 * 3600.0),
        survival_24h=survival(hazard, _DAY_S),
        mean_first_day_h=mean_residual_s(hazard, 0.0, _DAY_S) / 3600.0,
    )


def _hours(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        hours = parse_duration(text) / 3600.0
    except ValueError as error:
        raise BadInput(Problem("duration", "", f"{text!r}: {error}")) from None
    if hours <= 0.0:
        raise BadInput(Problem("duration", "", f"{text!r}: expected more than 0"))
    return hours
