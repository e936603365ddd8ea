"""Every table and figure of the papers, and what this machine makes of it: `onward study NAME`."""

from .masked import MLM, STABILITY
from .reporting import Claim, Report, Table
from .study import Run, Setting, Study, Work, conduct, report

STUDIES = {study.name: study for study in (MLM, STABILITY)}

__all__ = ["STUDIES", "Claim", "Report", "Run", "Setting", "Study", "Table", "Work", "conduct", "report"]
