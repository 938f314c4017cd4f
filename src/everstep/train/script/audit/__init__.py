"""The self-audit of a run: a save is restored in a child, trained on for a few steps, and compared with the run itself.

`audits` is the part in the running process: it hands a save over, notes what it holds itself so many steps later, and
compares. The child (`child`) makes itself a copy of the working folder as it was at the run's first start (`copying`),
restores from that one save, and goes the same steps there. It may write nothing else (`walls`), has the lowest
priority, and dies with the run. What is compared is in `evidence`.

    DIR/audit/           while an audit goes on: its order, a folder with links to the save, the copy, its stderr
    DIR/audit-STEP.json  what an audit found that was not exact
"""
