"""`everstep check`: kill a training script on purpose and tell whether it comes back bit for bit.

`Check` runs the user's command twice as it is and once with kills, each in a working folder of its own (`workfolder`),
watched by a witness in its process (``everstep.train.script.witness``), and compares how they ended (`compare`).
"""

from everstep.client.check.checking import Check, Checked
from everstep.client.check.command import Command, probe, read_command
from everstep.client.check.report import as_json, write_report
from everstep.client.check.scene import Mode, Scene, Settings
from everstep.client.check.verdict import Verdict

__all__ = [
    "Check",
    "Checked",
    "Command",
    "Mode",
    "Scene",
    "Settings",
    "Verdict",
    "as_json",
    "probe",
    "read_command",
    "write_report",
]
