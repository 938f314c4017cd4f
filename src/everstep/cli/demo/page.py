"""The report as one HTML file that needs nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from everstep.cli import wording

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1120px; margin: 2rem auto; padding: 0 1rem; color: #222; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; } td, th { padding: .15rem .9rem .15rem 0; text-align: left; vertical-align: top; }
td.n { text-align: right; font-variant-numeric: tabular-nums; } code { font-size: .85em; }
.bad { color: #b91c1c; } .good { color: #15803d; } svg { max-width: 100%; height: auto; }
"""


def page(figures: Mapping[str, Any], svg: str, acts: Sequence[Mapping[str, Any]], zero: float) -> str:
    """The page.

    Args:
        figures: of ``summary.json``.
        svg: the timeline.
        acts: what was broken.
        zero: UTC seconds of the submission.
    """
    identical = figures["weights_identical"]
    verdict = "identical, bit for bit" if identical else "DIFFERENT"
    rows = "".join(
        f'<tr><th>{escape(name)}</th><td class="n">{escape(value)}</td></tr>' for name, value in told(figures)
    )
    broken = "".join(
        f'<tr><td class="n">{float(act["at"]) - zero:.1f} s</td><td>{escape(str(act["what"]))}</td>'
        f"<td><code>{escape(str(act['target']))}</code></td><td>step {escape(str(act['step']))}</td></tr>"
        for act in acts
    )
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>everstep demo</title><style>{_STYLE}</style></head><body>
<h1>One training job, {figures["preemptions"]} machines taken away, no step lost for good</h1>
<p>Final weights compared with the undisturbed run: <b class="{"good" if identical else "bad"}">{verdict}</b><br>
<code>{escape(str(figures["weights_sha256"]))}</code></p>
{svg}
<h2>Figures</h2><table>{rows}</table>
<h2>What was broken</h2><table>{broken}</table>
<p>Compute all of it again from the files beside this page: <code>everstep demo --verify DIR</code></p>
</body></html>
"""


def told(figures: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The figures as people read them, in the order of their interest."""
    overhead = {name: seconds for name, seconds in figures["overhead_instance_s"].items() if seconds >= 0.05}
    return [
        ("weights", "identical, bit for bit" if figures["weights_identical"] else "DIFFERENT"),
        ("preemptions", str(figures["preemptions"])),
        ("recoveries", f"{figures['recoveries']} ({figures['attempts']} attempts)"),
        ("steps", f"{figures['steps']}, of which {figures['lost_steps']} had to be done twice"),
        ("bill", f"{wording.money(figures['cost_usd'])}, the meter says {wording.money(figures['metered_usd'])}"),
        ("on demand", wording.money(figures["on_demand_cost_usd"])),
        ("saved", f"{wording.money(figures['saved_usd'])} ({wording.percent(figures['saved_fraction'])})"),
        ("machine time", f"{figures['billed_instance_s']:.1f} s billed, {figures['useful_instance_s']:.1f} s useful"),
        (
            "billed / useful",
            wording.UNKNOWN if figures["billed_per_useful"] is None else f"{figures['billed_per_useful']:.2f}",
        ),
        ("overhead", ", ".join(f"{wording.words(name)} {seconds:.1f} s" for name, seconds in overhead.items())),
        ("wall time", wording.duration(figures["wall_s"])),
    ]
