"""What EC2 tells as history is what ``everstep.market`` reads from a file."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from everstep.market.aws_history import read_aws_history
from everstep.model.offers import Market, Pool
from everstep.ports import HistoryQuery
from everstep.testing.ec2 import Supply, World
from tests.providers.aws.conftest import MakeFake, MakeProvider


async def test_the_vendors_answer_reads_as_the_provider_tells_it(
    make_fake: MakeFake, make_provider: MakeProvider, tmp_path: Path
) -> None:
    now = float(int(time.time()))
    steps = [(now - 9000, 0.1), (now - 3000, 0.2), (now - 1000, 0.15)]
    fake = make_fake(World({("us-east-1a", "g4dn.xlarge"): Supply(steps)}, {"g4dn.xlarge": 0.526}))
    provider: Any = make_provider(fake)
    answer = await provider.calls.ec2("us-east-1", "describe_spot_price_history")
    file = tmp_path / "history.json"
    file.write_text(json.dumps({"SpotPriceHistory": answer["SpotPriceHistory"]}, default=lambda at: at.isoformat()))
    (series,) = read_aws_history(file)
    pool = Pool("aws", "us-east-1a", "g4dn.xlarge", Market.SPOT)
    points = await provider.history(HistoryQuery((pool,), now - 9000))
    assert (series.place.zone, series.place.machine_type) == (pool.zone, pool.machine_type)
    assert list(series.at) == [p.at for p in points]
    assert list(series.spot_usd_per_h) == [p.price_usd_per_h for p in points] == [0.1, 0.2, 0.15]
